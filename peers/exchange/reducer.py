"""Sums of the parts that this peer owns; they grow as slices arrive.

As soon as a piece of every slice is here it is summed, encoded and sent to all receivers. A gather
is handled as a sum: RoundWork puts the slices side by side. Must NOT decide what is summed, nor
look into a piece (RoundWork).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from peers.exchange.interfaces import Bytes, RoundWork
from peers.exchange.payload_keys import ResultKey, SliceKey, slice_key
from peers.exchange.pieces import Encoding, Payload, spans
from protocols.interface import ReducePart
from protocols.types import LowcommError, PeerId

Falsify = Callable[[ReducePart, int, memoryview], None]
"""Fault injection: changes a piece of a sum, which begins at this element of the part."""
PIECES_A_TURN = 2
"""Pieces that are summed at once; then other tasks have their turn, heartbeats for example."""


@dataclass(slots=True)
class Sum:
    """The sum of one part in one attempt."""

    command: ReducePart
    slices: list[Payload | Encoding]
    """In the order of the sum; our own pieces are encoded when they are needed."""
    result: Payload
    spans: list[tuple[int, int]] = field(init=False)
    next: int = 0

    def __post_init__(self) -> None:
        self.spans = list(spans(self.result.elements))

    def terms(self) -> list[Bytes] | None:
        """The next piece of every slice; None if some are missing."""
        start, stop = self.spans[self.next]
        found: list[Bytes] = []
        for each in self.slices:
            if isinstance(each, Encoding):
                first = self.command.start
                found.append(each.cut(first + start, first + stop))
            elif each.has(self.next):
                found.append(each.piece(self.next))
            else:
                return None
        return found


class Reducer:
    """All unfinished sums of this peer."""

    def __init__(
        self,
        *,
        grew: Callable[[ResultKey, Payload, int], None],
        done: Callable[[ReducePart, str], None],
        damaged: Callable[[ReducePart, LowcommError], None],
        failed: Callable[[LowcommError], None],
    ) -> None:
        """Callbacks: `grew` for another piece of a result, `done` for a complete one with its
        digest, `damaged` if a slice is invalid, `failed` if our own cannot be encoded."""
        self._grew = grew
        self._done = done
        self._damaged = damaged
        self._failed = failed
        self.falsify: Falsify | None = None
        self._sums: dict[ResultKey, Sum] = {}
        self._waiting: dict[SliceKey, set[ResultKey]] = {}
        """By slice, the sums that contain it."""
        self._due: set[ResultKey] = set()
        """Sums that are scheduled for another turn."""

    def begin_sum(
        self,
        work: RoundWork,
        me: PeerId,
        command: ReducePart,
        slices: list[Payload | Encoding],
        result: Payload,
    ) -> None:
        """Begin a sum. `slices`: in the order of the command's contributors."""
        key = ResultKey(command.stamp, command.part)
        self._sums[key] = Sum(command, slices, result)
        for term in command.contributors:
            if term.peer != me:
                name = slice_key(*key, term)
                self._waiting.setdefault(name, set()).add(key)
        self._go_on(work, key)

    def grew(self, work: RoundWork, name: SliceKey) -> None:
        """A slice has another piece."""
        for key in self._waiting.get(name, set()) - self._due:
            self._go_on(work, key)

    def drop(self, fragment: int, round_: int) -> None:
        """Drop the sums of this round and earlier ones."""
        for key in [k for k in self._sums if k.ends_with(fragment, round_, released=True)]:
            del self._sums[key]
        for name in [k for k in self._waiting if k.ends_with(fragment, round_, released=True)]:
            del self._waiting[name]

    def keep(self, lineage: int) -> None:
        """Drop the sums of all other lineages."""
        self._sums = {key: one for key, one in self._sums.items() if key.lineage == lineage}
        self._waiting = {k: sums for k, sums in self._waiting.items() if k.lineage == lineage}

    def _go_on(self, work: RoundWork, key: ResultKey) -> None:
        """Sum the available pieces, for one turn."""
        for _ in range(PIECES_A_TURN):
            one = self._sums.get(key)
            try:
                terms = one.terms() if one is not None else None
            except LowcommError as error:
                self._failed(error)
                return
            if one is None or terms is None:
                return
            command, out = one.command, one.result.piece(one.next)
            try:
                start, stop = one.spans[one.next]
                fragment, contributors = command.stamp.fragment, command.contributors
                work.reduce(fragment, stop - start, terms, contributors, out)
                if self.falsify is not None:
                    self.falsify(command, start, out)
            except LowcommError as error:
                del self._sums[key]
                self._damaged(command, error)
                return
            one.result.add_piece(one.next)
            one.next += 1
            self._grew(key, one.result, one.next - 1)
            if not one.result.missing:
                del self._sums[key]
                self._done(command, one.result.digest)
                return
        self._due.add(key)
        asyncio.get_running_loop().call_soon(self._turn, work, key)

    def _turn(self, work: RoundWork, key: ResultKey) -> None:
        self._due.discard(key)
        self._go_on(work, key)
