"""Our own parts of rounds: sums that grow as slices arrive.

As soon as a piece of every slice is here it is summed, encoded and on its way to everybody. A
gather is a sum too: the work puts the slices side by side. Must NOT decide what is summed, nor look
into a piece: the work does.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from peers.exchange.interfaces import Bytes, Work
from peers.exchange.payload_keys import ResultKey, SliceKey, slice_key
from peers.exchange.pieces import Encoding, Payload, spans
from protocols.interface.commands import ReducePart
from protocols.types.errors import LowcommError
from protocols.types.ids import PeerId

PIECES_A_TURN = 2
"""Summed at once; then whatever else is ready has its turn: heartbeats, say."""


@dataclass(slots=True)
class Sum:
    """Of one part in one attempt."""

    command: ReducePart
    slices: list[Payload | Encoding]
    """In the order of the sum; ours are made when they are needed."""
    result: Payload
    spans: list[tuple[int, int]] = field(init=False)
    next: int = 0

    def __post_init__(self) -> None:
        self.spans = list(spans(self.result.elements))

    def terms(self) -> list[Bytes] | None:
        """The next piece of every slice; None: some are not here yet."""
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
    """Every sum of this peer that is not finished."""

    def __init__(
        self,
        *,
        grew: Callable[[ResultKey, Payload, int], None],
        done: Callable[[ReducePart, str], None],
        damaged: Callable[[ReducePart, LowcommError], None],
        failed: Callable[[LowcommError], None],
    ) -> None:
        """Called when a result has another piece (which), when it is whole (its digest), when
        somebody's slice turns out to be none, and when ours cannot be encoded."""
        self._grew = grew
        self._done = done
        self._damaged = damaged
        self._failed = failed
        self._sums: dict[ResultKey, Sum] = {}
        self._waiting: dict[SliceKey, set[ResultKey]] = {}
        """Which sums a slice is a term of."""
        self._due: set[ResultKey] = set()
        """Those that have another turn coming."""

    def begin(
        self,
        work: Work,
        me: PeerId,
        command: ReducePart,
        slices: list[Payload | Encoding],
        result: Payload,
    ) -> None:
        """`slices` in the order of the command's contributors."""
        key = ResultKey(command.stamp, command.part)
        self._sums[key] = Sum(command, slices, result)
        for term in command.contributors:
            if term.peer != me:
                name = slice_key(*key, term)
                self._waiting.setdefault(name, set()).add(key)
        self._go_on(work, key)

    def grew(self, work: Work, name: SliceKey) -> None:
        """A slice has another piece."""
        for key in self._waiting.get(name, set()) - self._due:
            self._go_on(work, key)

    def drop(self, fragment: int, round_: int) -> None:
        """Of this round and before."""
        for key in [k for k in self._sums if k.ends_with(fragment, round_, released=True)]:
            del self._sums[key]
        for name in [k for k in self._waiting if k.ends_with(fragment, round_, released=True)]:
            del self._waiting[name]

    def keep(self, lineage: int) -> None:
        """Of this one alone."""
        self._sums = {key: one for key, one in self._sums.items() if key.lineage == lineage}
        self._waiting = {k: sums for k, sums in self._waiting.items() if k.lineage == lineage}

    def _go_on(self, work: Work, key: ResultKey) -> None:
        """Sum what is here, for a turn."""
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
                work.reduce(stop - start, terms, command.contributors, out)
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

    def _turn(self, work: Work, key: ResultKey) -> None:
        self._due.discard(key)
        self._go_on(work, key)
