"""What a system is to the harness, and how its workers are started.

Must NOT time anything, nor know one system from another: each has a file of its own.
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
from benchmarks.exchanging import proc
from benchmarks.exchanging.gate import Gate, GateError
from benchmarks.exchanging.network import Network
from benchmarks.exchanging.payloads import Payloads
from benchmarks.exchanging.venvs import python_with
from benchmarks.exchanging.worker import Marks, Task
from peers.processes.processes import Child, start_child
from protocols.types.errors import LowcommError

START_TIMEOUT_S = 180.0
"""Four processes that import torch, on a busy machine."""
ROOT = Path(benchmarks.__file__).parent.parent
LOG_LINES_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be exchanged, where."""

    peers: int
    codec: str
    payloads: Payloads
    network: Network
    directory: Path
    """Of this system alone; it exists."""
    python: str
    """The interpreter for its workers."""
    encrypted: bool = False

    @property
    def elements(self) -> int:
        return self.payloads.sources[0].size

    def task(self, node: int) -> Task:
        return Task(
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
class Peer:
    """One peer of a running system."""

    child: Child
    log: Path
    is_daemon: bool = False
    """Of ours: what it started stands for the training. Otherwise it only guards the others."""

    def working(self) -> list[int]:
        """Who takes part."""
        family = proc.family(self.child.pid)
        return family if self.is_daemon else family[1:]

    def exchanging(self) -> list[int]:
        """Whose memory it needs for the exchange."""
        return [self.child.pid] if self.is_daemon else self.working()


Complete = Callable[[Sequence[Marks]], tuple[Marks, ...]]


@dataclass(frozen=True, slots=True)
class Side:
    """A running system: its workers wait at the gate."""

    gate: Gate
    peers: tuple[Peer, ...]
    complete: Complete = tuple
    """Adds to the marks of an exchange what the workers cannot know."""

    def last_words(self) -> str:
        """From the logs of the peers that have ended, or of all, for who wants to know why."""
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
    """One of those that can be compared."""

    name: str
    version: str
    start: Callable[[Order], AbstractAsyncContextManager[Side]]
    """Its workers, until the end of the context. Raises LowcommError."""
    codec: Callable[[str], str]
    """What it sends when it is asked for a codec; raises ConfigError when that is no comparison."""
    payload_bytes: Callable[[str, int], int | None] = lambda _, elements: 8 * elements
    """What a codec makes of so many elements, contribution and result together; None: that depends
    on how many contribute."""
    copies: float
    """So many times what is exchanged does one peer have in memory at most, as measured ..."""
    base_bytes: int
    """... and this much for its programs."""
    note: str = ""
    requirements: tuple[str, ...] = ()
    """What pip is asked for, if it does not come with what runs this."""
    python: str = sys.executable
    """The interpreter for its workers."""
    missing: str = ""
    """Why it cannot be had here."""


def prepared(system: System, *, codec: str, tell: Callable[[str], None]) -> System:
    """With an interpreter that has it, or with the reason why not."""
    try:
        system.codec(codec)
        if system.requirements:
            return replace(system, python=python_with(system.requirements, tell=tell))
    except LowcommError as error:
        return replace(system, missing=str(error))
    return system


@asynccontextmanager
async def workers(order: Order, module: str, *, name: str) -> AsyncGenerator[Side]:
    """One process for each peer, which runs a module of this package."""
    path = os.environ.get("PYTHONPATH", "")
    env = {
        **os.environ,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *([path] if path else [])]),
    }
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(new_gate(order, name))
        peers: list[Peer] = []
        for place in order.network.places:
            log = order.directory / f"{place.peer}.log"
            argv = [sys.executable, "-m", "sims.logged", str(log), order.python, "-m", module]
            argv.append(json.dumps(asdict(order.task(place.peer))))
            guard = [sys.executable, "-m", "benchmarks.exchanging.guard", str(os.getpid())]
            child = start_child([*guard, *place.command(argv)], env=env)
            stack.push_async_callback(child.stop)
            peers.append(Peer(child, log))
        side = Side(gate, tuple(peers))
        await opened(side)
        yield side


def new_gate(order: Order, name: str) -> Gate:
    return Gate(order.directory / "gate", system=name, workers=order.peers)


async def opened(side: Side) -> None:
    """Wait for all workers, but not for those of a process that has ended. Raises GateError."""
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
