"""What is to be sent to one peer in bulk, and which piece of it is next.

Results before contributions before states: others wait for the first, what lies in a cache is
sent from there, and nobody's training waits for the last. Over a far line contributions go first:
what others make of them is under way for as long as there are results to send, where else the line
would have nothing to carry at the end but what is still to be summed. A payload that is still being
made gives way to the next one. Must NOT send: the link asks for the next frame when it has room.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from peers.connections.frames import Frame
from peers.exchange.background_rate import Pace
from peers.exchange.pieces import Encoding, Payload, spans
from protocols.messages.peer import ContributionChunk, ResultChunk, StateChunk
from protocols.types.ids import Stamp

STREAMS_MAX = 1024
"""Payloads that wait for one peer; their bytes are held elsewhere and read when due."""


class Stream(Protocol):
    """One payload on its way out."""

    rank: int
    """0: somebody waits for it already."""

    @property
    def stamp(self) -> Stamp | None:
        """None: it is of no round."""
        ...

    def next(self) -> Frame | None:
        """The next piece; None: it is not there yet."""
        ...

    @property
    def over(self) -> bool:
        """Everything was sent."""
        ...

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        """Nobody needs it any more: this round is committed, or even released."""
        ...


class _Cursor:
    """Which piece of a payload is next."""

    def __init__(self, places: Iterable[tuple[int, int]]) -> None:
        """Of all its pieces, in order."""
        self._places = list(places)
        self._next = 0

    @property
    def over(self) -> bool:
        return self._next == len(self._places)

    def _step(self) -> tuple[int, int]:
        """The place of the next piece, which counts as sent."""
        self._next += 1
        return self._places[self._next - 1]


class SliceStream(_Cursor):
    """Elements [start, stop) of our contribution."""

    rank = 1

    def __init__(self, header: ContributionChunk, encoding: Encoding, start: int) -> None:
        """`header`: of the first piece."""
        self._header = header
        self._encoding = encoding
        self._first = start
        super().__init__(spans(header.elements))

    @property
    def stamp(self) -> Stamp:
        return self._header.stamp

    def next(self) -> Frame | None:
        start, stop = self._step()
        piece = self._encoding.cut(self._first + start, self._first + stop)
        return replace(self._header, start=start), piece

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        return _is_of(self._header.stamp, fragment, round_)


class ResultStream(_Cursor):
    """A part's result, as far as it is made; of a gather each slice by itself."""

    rank = 0

    def __init__(
        self, header: ResultChunk, payload: Payload, *, left_out: int | None = None
    ) -> None:
        """`header`: of the first chunk; only that one names what was summed. `left_out`: the layer
        that the receiver has."""
        self._header = header
        self._payload = payload
        starts = [start for start, _ in spans(header.elements)]
        layers = [layer for layer in range(payload.layers) if layer != left_out]
        super().__init__((start, layer) for start in starts for layer in layers)

    def next(self) -> Frame | None:
        index = self._payload.at(*self._places[self._next])
        assert index is not None
        if not self._payload.has(index):
            return None
        first = self._next == 0
        start, layer = self._step()
        header = replace(
            self._header,
            contributors=self._header.contributors if first else (),
            left_out=first and self._header.left_out,
            digest=self._payload.digest_of(index).hex(),
            start=start,
            layer=layer,
        )
        return header, self._payload.chunk(index)

    @property
    def stamp(self) -> Stamp:
        return self._header.stamp

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        unfinished = self._payload.missing > 0  # It will stay so.
        return (released or unfinished) and _is_of(self._header.stamp, fragment, round_)


class Outbound:
    """To one peer, while the connection lasts."""

    def __init__(self, *, far: bool = False) -> None:
        self._far = far
        self._streams: list[Stream] = []

    def add(self, stream: Stream) -> bool:
        """False: too much waits already, the peer is too slow."""
        if len(self._streams) >= STREAMS_MAX:
            return False
        if not stream.over:
            self._streams.append(stream)
            self._streams.sort(key=self._order)  # Stable: first come, first served.
        return True

    def replace(self, rank: int, stream: Stream | None) -> None:
        """Of this rank send nothing but that."""
        self._streams = [known for known in self._streams if known.rank != rank]
        if stream is not None:
            self.add(stream)

    def next(self) -> Frame | None:
        """What to send now; None: nothing, until something is added or made."""
        for stream in self._streams:
            frame = stream.next()
            if frame is not None:
                if stream.over:
                    self._streams.remove(stream)
                return frame
        return None

    def drop(self, fragment: int, round_: int, *, released: bool) -> None:
        """Of this round and before: it is committed, or even released."""
        streams = self._streams
        self._streams = [x for x in streams if not x.ends_with(fragment, round_, released=released)]

    def keep(self, lineage: int) -> None:
        """What is of another one is not sent any more."""
        self._streams = [x for x in self._streams if x.stamp is None or x.stamp.lineage == lineage]

    def _order(self, stream: Stream) -> tuple[int, ...]:
        """The lowest goes first."""
        stamp = stream.stamp
        if stamp is None or not self._far:
            return (stream.rank,)
        # One round after the other, or the results of one would wait for the next one's training.
        return 0, stamp.round, stamp.fragment, -stream.rank


def _is_of(stamp: Stamp, fragment: int, round_: int) -> bool:
    return stamp.fragment == fragment and stamp.round <= round_


class CellStream:
    """Cells that one joiner waits for, in its order; they give way to all payload."""

    rank = 2
    stamp = None

    def __init__(
        self,
        found: Iterable[tuple[StateChunk, memoryview]],
        pace: Pace,
        sent: Callable[[int], None],
    ) -> None:
        self._left = list(found)[::-1]
        self._pace = pace
        self._sent = sent

    def next(self) -> Frame | None:
        chunk, cell = self._left[-1]
        if not self._pace.may_send(cell.nbytes):
            return None
        self._left.pop()
        self._sent(cell.nbytes)
        return chunk, cell

    @property
    def over(self) -> bool:
        return not self._left

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        return False  # It is of no round.
