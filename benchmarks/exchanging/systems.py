"""The harness's interface to a system, and the start of its workers.

Must NOT time anything, nor distinguish systems: each has a file of its own.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import benchmarks
from benchmarks.exchanging.gate import Gate, GateError
from benchmarks.exchanging.network import SystemNetwork
from benchmarks.exchanging.payloads import PayloadFiles
from benchmarks.exchanging.venvs import python_with
from benchmarks.exchanging.worker import Marks, WorkerTask
from peers.processes import Child, start_child
from protocols.types import LowcommError
from sims.cluster import descendants

START_TIMEOUT_S = 180.0
"""Enough for four processes that import torch, on a busy machine."""
ROOT = Path(benchmarks.__file__).parent.parent
LOG_LINES_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOrder:
    """One exchange: the peers, the payloads and the network."""

    peers: int
    codec: str
    payloads: PayloadFiles
    network: SystemNetwork
    directory: Path
    """A directory of this system alone; it exists."""
    python: str
    """Path of the interpreter for the workers."""
    encrypted: bool = False

    @property
    def elements(self) -> int:
        return self.payloads.sources[0].size

    def task(self, node: int) -> WorkerTask:
        return WorkerTask(
            node=node,
            peers=self.peers,
            elements=self.elements,
            codec=self.codec,
            gate=str(self.directory / "gate"),
            source=self.payloads.source_paths[node],
            result=self.payloads.result_paths[node],
            directory=str(self.directory),
            host=self.network.places[node].listen.rpartition(":")[0],
            device=self.network.device,
        )


@dataclass(frozen=True, slots=True)
class SystemPeer:
    """One peer of a running system."""

    child: Child
    log: Path
    is_daemon: bool = False
    """Whether the child is lowcomm's daemon, and its children its training. Otherwise it is only a
    guard."""

    def working(self) -> list[int]:
        """Process ids that take part in the exchange."""
        below = sorted(descendants(self.child.pid))
        return [self.child.pid, *below] if self.is_daemon else below

    def exchanging(self) -> list[int]:
        """Process ids that count for the memory of the exchange."""
        return [self.child.pid] if self.is_daemon else self.working()


Complete = Callable[[Sequence[Marks]], tuple[Marks, ...]]


@dataclass(frozen=True, slots=True)
class Side:
    """A running system: its workers wait at the gate."""

    gate: Gate
    peers: tuple[SystemPeer, ...]
    complete: Complete = tuple
    """Adds to the marks of an exchange the fields that workers cannot know."""

    def last_words(self) -> str:
        """The last log lines and exit status of the peers that have ended, or of all peers, for an
        error text."""
        told: list[str] = []
        ended = [peer for peer in self.peers if peer.child.returncode is not None]
        for peer in ended or self.peers:
            if peer.log.exists():
                text = peer.log.read_text(encoding="utf-8", errors="replace")
                told += [line.strip() for line in text.splitlines()[-LOG_LINES_TOLD:]]
        told += [f"exit status {peer.child.returncode}" for peer in ended]
        return " | ".join(dict.fromkeys(line for line in told if line))


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system that can be compared."""

    name: str
    version: str
    start: Callable[[ExchangeOrder], AbstractAsyncContextManager[Side]]
    """Starts the workers, and ends them with the context. Raises LowcommError."""
    codec: Callable[[str], str]
    """The codec that it sends if asked for this one; raises ConfigError if there is no comparable
    one."""
    payload_bytes: Callable[[str, int], int | None] = lambda _, elements: 8 * elements
    """Encoded bytes of so many elements, contribution and result together; None if that depends on
    the number of contributors."""
    copies: float
    """Peak memory of one peer, as a multiple of the exchanged values, as measured ..."""
    base_bytes: int
    """... and bytes for its programs."""
    note: str = ""
    requirements: tuple[str, ...] = ()
    """Requirements for pip, if the system is not part of this installation."""
    python: str = sys.executable
    """Path of the interpreter for the workers."""
    missing: str = ""
    """Why the system cannot be used here; "" if it can."""


def prepared(system: System, *, codec: str, tell: Callable[[str], None]) -> System:
    """Return the system with an interpreter that can import it, or with the reason why there is
    none."""
    try:
        system.codec(codec)
        if system.requirements:
            return replace(system, python=python_with(system.requirements, tell=tell))
    except LowcommError as error:
        return replace(system, missing=str(error))
    return system


@asynccontextmanager
async def workers(order: ExchangeOrder, module: str, *, name: str) -> AsyncGenerator[Side]:
    """Start one process for each peer, which runs a module of this package."""
    path = os.environ.get("PYTHONPATH", "")
    env = {
        **os.environ,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *([path] if path else [])]),
    }
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(new_gate(order, name))
        peers: list[SystemPeer] = []
        for place in order.network.places:
            log = order.directory / f"{place.peer}.log"
            argv = [sys.executable, "-m", "sims.logged", str(log), order.python, "-m", module]
            argv.append(json.dumps(asdict(order.task(place.peer))))
            guard = [sys.executable, "-m", "benchmarks.exchanging.guard", str(os.getpid())]
            child = start_child([*guard, *place.command(argv)], env=env)
            stack.push_async_callback(child.stop)
            peers.append(SystemPeer(child, log))
        side = Side(gate, tuple(peers))
        await opened(side)
        yield side


def new_gate(order: ExchangeOrder, name: str) -> Gate:
    return Gate(order.directory / "gate", system=name, workers=order.peers)


async def opened(side: Side) -> None:
    """Wait until all workers are connected. Raises GateError, at once if a process has ended."""
    arriving = asyncio.ensure_future(side.gate.opened(within_s=START_TIMEOUT_S))
    ending = [asyncio.ensure_future(peer.child.wait()) for peer in side.peers]
    try:
        await asyncio.wait([arriving, *ending], return_when=asyncio.FIRST_COMPLETED)
        late = arriving.done() and arriving.exception()
    finally:
        for future in (arriving, *ending):
            future.cancel()
        await asyncio.gather(arriving, *ending, return_exceptions=True)
    if late or not side.gate.is_open:
        why = late or f"{side.gate.system}: a process ended at its start"
        raise GateError(f"{why}: {side.last_words()}")
