"""Orders with their data: what the daemon writes for the ranks, and reads of what they wrote.

Large data is handled in the worker thread, small data in the event loop's. Must NOT give an order,
nor decide what counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from peers.exchange.interfaces import Bytes, StepWork
from peers.ipc.step_orders import OrderKind, StepSlots
from peers.steps.payload_store import digest_of
from protocols.interface import commands as c


class OrderMemory(Protocol):
    """The memory that the daemon shares with the ranks."""

    @property
    def memory(self) -> StepSlots: ...


@dataclass(slots=True, eq=False)
class Task:
    """An order with its data."""

    kind: OrderKind
    step: int
    batch: int = 0
    apply: c.ApplyStep | None = None
    payloads: Sequence[Bytes] = ()
    """The payloads of an "apply", or the state of a "load"."""
    counted: bool = False
    """Is the ranks' last payload among them?"""
    shown: Callable[[str], None] | None = None
    """The callback of a "show"."""
    evaluate: bool = False
    number: int = 0
    """The number of the order, once it is given."""
    void: bool = False
    """Its result is not needed any more."""
    ahead: bool = False
    """The ranks went on to it by themselves, before the core has asked for it."""

    @property
    def lineage(self) -> int:
        """The lineage of an "apply"; 0 for other orders."""
        apply = self.apply
        return apply.stamp.lineage if apply is not None else 0


class OrderData:
    """Moves the data of orders between the shared memory and the arithmetic."""

    def __init__(self, work: StepWork, ranks: OrderMemory) -> None:
        self._work = work
        self._ranks = ranks

    def write_mean(self, task: Task) -> Sequence[int]:
        memory = self._ranks.memory
        return self._work.write_mean(task.step, task.payloads, memory.mean)

    def write_base(self, task: Task) -> str:
        (base,) = task.payloads
        memory = self._ranks.memory
        memory.given[:] = base
        return self._work.state_digest(base)

    def take_payload(self, task: Task) -> tuple[str, Bytes]:
        del task
        memory = self._ranks.memory
        payload = self._work.make_payload(memory.payload)
        return digest_of(payload), payload

    def take_state(self, task: Task) -> tuple[str, Bytes | None]:
        memory = self._ranks.memory
        shown = memory.shown
        kept: memoryview | None = None
        if task.apply is None or task.apply.keep:
            kept = self._work.arrays.buffer(len(shown))
            kept[:] = shown
        return self._work.state_digest(shown if kept is None else kept), kept
