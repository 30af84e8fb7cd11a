"""A worker's side of the gate: carries out the harness's orders, and records their times.

Runs in environments of other systems too: must NOT import anything of this project but this file,
nor torch before a system's own file does.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

BLOCK_ELEMENTS = 1 << 18
LOOK_S = 0.01
FILE_TIMEOUT_S = 60.0
now = time.monotonic
"""The clock of all processes of the machine, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """The arguments of a worker, passed as JSON at its start."""

    node: int
    peers: int
    elements: int
    codec: str
    gate: str
    """Path of the Unix socket on which the harness listens."""
    source: str
    """Path of a file with this node's contribution: fp32 [elements]."""
    result: str
    """Path of a file for this node's result: fp32 [elements]."""
    directory: str
    """A directory shared by the workers of a system, in which they find each other."""
    host: str
    """The address of this node."""
    device: str
    """The network device that has this address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The record of one exchange by one worker. Times are in seconds on the clock `now`."""

    handed: float
    """When the contribution was handed over."""
    received: float
    """When the result was in the worker's own buffer."""
    contributors: int = 0
    """Number of contributions in the mean; 0: not known."""
    reduced: float | None = None
    """When the data was moved and summed; quorum, commit and division may follow. None: not
    known."""
    data_path_s: float | None = None
    """Seconds for moving and summing the data, from this worker's first byte on."""
    lag_p99_s: float | None = None
    """Lateness of the daemon's event loop in the last minute; None: no report since the last
    exchange."""
    lag_max_s: float | None = None
    busy_lag_p99_s: float | None = None
    """The same while payload moved, over as many samples as a minute has."""
    heartbeat_late_p99_s: float | None = None
    """The same for heartbeats received from other daemons."""
    heartbeat_late_max_s: float | None = None
    copy_in_s: float = 0.0
    """Seconds for which the training thread was blocked before `handed` ..."""
    copy_out_s: float = 0.0
    """... and before `received`, both by copying."""


class Exchanger(Protocol):
    """The interface that each system's file implements."""

    def prepare(self, sign: int) -> None:
        """Put `sign` x the source in place. Not timed."""
        ...

    def exchange(self) -> Marks: ...

    def mean_block(self, block: slice) -> F32:
        """A block of the mean, as this worker has it after `exchange`."""
        ...


def main(make: Callable[[WorkerTask], Exchanger], argv: Sequence[str] = ()) -> None:
    """Make the exchanger, connect to the gate, and carry out orders until the harness ends the
    process."""
    values: dict[str, Any] = json.loads((argv or sys.argv)[1])
    task = WorkerTask(**values)
    exchanger = make(task)
    with socket.socket(socket.AF_UNIX) as gate:
        gate.connect(task.gate)
        _tell(gate, {"node": task.node})
        for line in gate.makefile("rb"):
            order: dict[str, Any] = json.loads(line)
            match order["do"]:
                case "prepare":
                    exchanger.prepare(order["sign"])
                    _tell(gate, {})
                case "exchange":
                    _tell(gate, asdict(exchanger.exchange()))
                case _:
                    _keep(exchanger, task)
                    _tell(gate, {})


def read_source(path: str, out_P: F32, *, start: int = 0) -> None:
    """Fill `out_P` with elements of the source, from element `start` on."""
    view = out_P.data.cast("B")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(view):
            read = os.preadv(descriptor, [view[done:]], 4 * start + done)
            assert read, f"{path} is too short"
            done += read
    finally:
        os.close(descriptor)


def signed_source(path: str, out_P: F32, sign: int) -> None:
    """Read the whole source, or its negative, into `out_P`."""
    read_source(path, out_P)
    if sign < 0:
        np.negative(out_P, out=out_P)


def blocks(elements: int) -> list[slice]:
    return [
        slice(start, min(start + BLOCK_ELEMENTS, elements))
        for start in range(0, elements, BLOCK_ELEMENTS)
    ]


def say(directory: str, name: str, text: str) -> None:
    """Publish a text under this name for the other workers of this system."""
    path = os.path.join(directory, name)
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.replace(path + ".new", path)


def hear(directory: str, name: str) -> str:
    """Wait for the text that another worker publishes under this name. Raises TimeoutError."""
    path, deadline = os.path.join(directory, name), now() + FILE_TIMEOUT_S
    while not os.path.exists(path):
        if now() > deadline:
            raise TimeoutError(f"no worker published {name} within {FILE_TIMEOUT_S:g} s")
        time.sleep(LOOK_S)
    with open(path, encoding="ascii") as file:
        return file.read()


def connected(task: WorkerTask, name: str) -> dict[int, socket.socket]:
    """Open a TCP connection with each other worker of the system `name`, which does the same."""
    links: dict[int, socket.socket] = {}
    with socket.create_server((task.host, 0)) as server:
        port = server.getsockname()[1]
        say(task.directory, f"{name}-{task.node}", f"{task.host}:{port}")
        for other in range(task.node):
            host, _, port = hear(task.directory, f"{name}-{other}").rpartition(":")
            links[other] = socket.create_connection((host, int(port)))
            links[other].sendall(bytes([task.node]))
        while len(links) < task.peers - 1:
            link, _ = server.accept()
            links[link.recv(1)[0]] = link
    return links


def _keep(exchanger: Exchanger, task: WorkerTask) -> None:
    # Written, not mapped: a mapping would count as memory of this worker.
    with open(task.result, "r+b", buffering=0) as file:
        for block in blocks(task.elements):
            data = np.ascontiguousarray(exchanger.mean_block(block)).data.cast("B")
            written = file.write(data)
            assert written == len(data), "the result's file is full"


def _tell(gate: socket.socket, values: dict[str, Any]) -> None:
    gate.sendall(json.dumps(values).encode() + b"\n")
