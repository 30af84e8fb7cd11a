"""The side of the gate that a system's own process is on: it does what the harness says, when it
says so, and writes down when each thing was done.

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
"""One clock for all processes of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker is told when it starts, as JSON."""

    node: int
    peers: int
    elements: int
    codec: str
    gate: str
    """The harness listens here, a Unix socket."""
    source: str
    """A file of what this node contributes: fp32 [elements]."""
    result: str
    """A file for what came of it: fp32 [elements]."""
    directory: str
    """Shared by the workers of a system, to find each other."""
    host: str
    """The address of this node."""
    device: str
    """The network device that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """One exchange, as one worker saw it. Moments are of `now`."""

    handed: float
    """The contribution is handed over."""
    received: float
    """The result is in the worker's own buffer."""
    contributors: int = 0
    """Whose contributions are in the mean; 0: nobody could say."""
    reduced: float | None = None
    """The data has been moved and summed; quorum, commit and division may follow."""
    data_path_s: float | None = None
    """The same, as a duration, from the first byte of this worker on."""
    lag_p99_s: float | None = None
    """How late its loop was, in the last minute; None: nobody said so since the last exchange."""
    lag_max_s: float | None = None
    busy_lag_p99_s: float | None = None
    """The same while payload moved, of as many samples as a minute has."""
    heartbeat_late_p99_s: float | None = None
    """The same of others' heartbeats that it heard."""
    heartbeat_late_max_s: float | None = None
    copy_in_s: float = 0.0
    """The training thread was blocked by this, before `handed` ..."""
    copy_out_s: float = 0.0
    """... and by this, before `received`."""


class Exchanger(Protocol):
    """What each system's file implements."""

    def prepare(self, sign: int) -> None:
        """Have `sign` x the source at hand; nobody looks at the time."""
        ...

    def exchange(self) -> Marks: ...

    def result(self, block: slice) -> F32:
        """A piece of the mean, as this worker has it after `exchange`."""
        ...


def main(make: Callable[[Task], Exchanger], argv: Sequence[str] = ()) -> None:
    """Make the exchanger, go to the gate, do as told until the harness ends us."""
    values: dict[str, Any] = json.loads((argv or sys.argv)[1])
    task = Task(**values)
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
    """`out_P.size` elements of the source, from element `start` on."""
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
    """The whole source, or its negative."""
    read_source(path, out_P)
    if sign < 0:
        np.negative(out_P, out=out_P)


def blocks(elements: int) -> list[slice]:
    return [
        slice(start, min(start + BLOCK_ELEMENTS, elements))
        for start in range(0, elements, BLOCK_ELEMENTS)
    ]


def say(directory: str, name: str, text: str) -> None:
    """Leave a word for the other workers of this system."""
    path = os.path.join(directory, name)
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.replace(path + ".new", path)


def hear(directory: str, name: str) -> str:
    """Wait for the word that another worker leaves. Raises TimeoutError."""
    path, deadline = os.path.join(directory, name), now() + FILE_TIMEOUT_S
    while not os.path.exists(path):
        if now() > deadline:
            raise TimeoutError(f"nobody left {name} within {FILE_TIMEOUT_S:g} s")
        time.sleep(LOOK_S)
    with open(path, encoding="ascii") as file:
        return file.read()


def connected(task: Task, name: str) -> dict[int, socket.socket]:
    """A TCP connection with each other worker of the system `name`, which does the same."""
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


def _keep(exchanger: Exchanger, task: Task) -> None:
    # Written, not mapped: what is mapped would count as this worker's memory.
    with open(task.result, "r+b", buffering=0) as file:
        for block in blocks(task.elements):
            data = np.ascontiguousarray(exchanger.result(block)).data.cast("B")
            written = file.write(data)
            assert written == len(data), "the result's file is full"


def _tell(gate: socket.socket, values: dict[str, Any]) -> None:
    gate.sendall(json.dumps(values).encode() + b"\n")
