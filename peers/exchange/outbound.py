"""The bulk data for one peer, and which piece is sent next.

Results go before contributions before states: other peers wait for results, which are still in a
cache, and no training waits for states. Over a far line contributions go first: their sums arrive
while there are results to send, so that the line is not idle at the end. A payload that is still
being made gives way to the next one. Must NOT send: the connection asks for the next frame when it
has room.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from peers.connections.frames import Frame
from peers.exchange.background_rate import BackgroundRate
from peers.exchange.pieces import Encoding, Payload, spans
from protocols.messages import ContributionChunk, ResultChunk, StateChunk
from protocols.types import LowcommError, PeerId, Stamp

STREAMS_MAX = 1024
"""Payloads that wait for one peer; their bytes are elsewhere and read when due."""


class Stream(Protocol):
    """A payload that is being sent."""

    rank: int
    """Its priority; 0 is the first."""

    @property
    def stamp(self) -> Stamp | None:
        """The stamp; None if it is of no round."""
        ...

    def next(self) -> Frame | None:
        """The next piece; None if it is not there yet."""
        ...

    @property
    def is_complete(self) -> bool:
        """Is everything sent?"""
        ...

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        """Is it not needed any more once this round is committed, or released?"""
        ...


class _Cursor:
    """The position in a payload."""

    def __init__(self, places: Iterable[tuple[int, int]]) -> None:
        """`places`: of all pieces, in order."""
        self._places = list(places)
        self._next = 0

    @property
    def is_complete(self) -> bool:
        return self._next == len(self._places)

    def _step(self) -> tuple[int, int]:
        """The place of the next piece, which counts as sent."""
        self._next += 1
        return self._places[self._next - 1]


class SliceStream(_Cursor):
    """Elements [start, stop) of our contribution."""

    rank = 1

    def __init__(self, header: ContributionChunk, encoding: Encoding, start: int) -> None:
        """`header`: that of the first piece."""
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
    """A part's result, as far as it is made; in a gather slice by slice."""

    rank = 0

    def __init__(
        self, header: ResultChunk, payload: Payload, *, left_out: int | None = None
    ) -> None:
        """`header`: that of the first chunk, the only one that names contributors. `left_out`: the
        layer that the receiver has."""
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
        unfinished = self._payload.missing > 0  # It will never be complete.
        return (released or unfinished) and _is_of(self._header.stamp, fragment, round_)


class Outbound:
    """All payloads for one peer, while it is connected."""

    def __init__(self, *, far: bool = False) -> None:
        self._far = far
        self._streams: list[Stream] = []

    def add(self, stream: Stream) -> bool:
        """Add a payload; False if too many wait, i.e. the peer is too slow."""
        if len(self._streams) >= STREAMS_MAX:
            return False
        if not stream.is_complete:
            self._streams.append(stream)
            self._streams.sort(key=self._order)  # The sort is stable: first come, first served.
        return True

    def replace(self, rank: int, stream: Stream | None) -> None:
        """Of this priority send only this stream."""
        self._streams = [known for known in self._streams if known.rank != rank]
        if stream is not None:
            self.add(stream)

    def next(self) -> Frame | None:
        """The next frame; None until a payload is added or goes on."""
        for stream in self._streams:
            frame = stream.next()
            if frame is not None:
                if stream.is_complete:
                    self._streams.remove(stream)
                return frame
        return None

    def drop(self, fragment: int, round_: int, *, released: bool) -> None:
        """Drop payloads of this round and earlier ones that are not needed any more."""
        streams = self._streams
        self._streams = [x for x in streams if not x.ends_with(fragment, round_, released=released)]

    def keep(self, lineage: int) -> None:
        """Drop payloads of other lineages."""
        self._streams = [x for x in self._streams if x.stamp is None or x.stamp.lineage == lineage]

    def _order(self, stream: Stream) -> tuple[int, ...]:
        """The sort key: the lowest one is sent first."""
        stamp = stream.stamp
        if stamp is None or not self._far:
            return (stream.rank,)
        # By round: else results of one round would wait for contributions of the next one.
        return 0, stamp.round, stamp.fragment, -stream.rank


class Outbounds:
    """The payloads for all connected peers."""

    def __init__(self, failed: Callable[[LowcommError], None]) -> None:
        """`failed`: called if our own arithmetic fails."""
        self.wake: Callable[[PeerId], None] = lambda peer: None
        """Called when there is something to send to this peer."""
        self._failed = failed
        self._outbound: dict[PeerId, Outbound] = {}

    def meet(self, peer: PeerId, *, far: bool) -> None:
        self._outbound[peer] = Outbound(far=far)

    def forget(self, peer: PeerId) -> None:
        self._outbound.pop(peer, None)

    def send(self, peer: PeerId, stream: Stream) -> bool:
        """False if the peer is too slow: too much waits for it."""
        outbound = self._outbound.get(peer)
        if outbound is None:
            return True  # Not connected any more: the core learns that, and repeats the command.
        fits = outbound.add(stream)
        self.wake(peer)
        return fits

    def replace_cells(self, peer: PeerId, stream: Stream | None) -> None:
        """Of states, send the peer only this stream from now on."""
        outbound = self._outbound.get(peer)
        if outbound is not None:
            outbound.replace(CellStream.rank, stream)
            self.wake(peer)

    def wake_all(self) -> None:
        """Wake all peers: pieces that were missing may be there."""
        for peer in self._outbound:
            self.wake(peer)

    def next_chunk(self, peer: PeerId) -> Frame | None:
        outbound = self._outbound.get(peer)
        try:
            return outbound.next() if outbound is not None else None
        except LowcommError as error:
            self._failed(error)
            return None

    def drop(self, fragment: int, round_: int, *, released: bool) -> None:
        """Drop payloads of this round and earlier ones that are not needed any more."""
        for outbound in self._outbound.values():
            outbound.drop(fragment, round_, released=released)

    def keep(self, lineage: int) -> None:
        """Drop payloads of other lineages."""
        for outbound in self._outbound.values():
            outbound.keep(lineage)


def _is_of(stamp: Stamp, fragment: int, round_: int) -> bool:
    return stamp.fragment == fragment and stamp.round <= round_


class CellStream:
    """Cells for one joiner, in the order that it wants; they give way to all payload."""

    rank = 2
    stamp = None

    def __init__(
        self,
        found: Iterable[tuple[StateChunk, memoryview]],
        pace: BackgroundRate,
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
    def is_complete(self) -> bool:
        return not self._left

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        return False  # It is of no round.
