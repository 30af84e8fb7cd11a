"""Arriving payloads: gives memory to expected ones, and reports complete ones.

Memory is given only for a payload that its sender may send now, and each byte is accepted once.
Must NOT decide whether a payload counts (the core), nor look into it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from peers.exchange.gather import ResultOwner, arrived
from peers.exchange.payload_keys import Key, ResultKey, SliceKey, key_of, slice_key
from peers.exchange.pieces import Payload, Pool, digest_of
from protocols.interface import events as v
from protocols.messages import ContributionChunk, PieceChunk, ResultChunk
from protocols.state import OWNERS_MAX
from protocols.types import PeerId

OPEN_MAX = 64
"""Payloads of one peer that are under way or refused; more would be an error of the peer."""
Received = v.SliceBegun | v.SliceReceived | v.ResultReceived
HERE = b"."
"""The digest of a piece that needs none."""
Piece = tuple[Key, int, int]
"""(payload, first element, layer)."""
K = TypeVar("K", SliceKey, ResultKey, Key)


class InboundOwner(ResultOwner, Protocol):
    """Callbacks of Inbound to its owner. No method may raise or block."""

    def size_of(self, peer: PeerId, chunk: PieceChunk) -> Callable[[int], int] | None:
        """A function from elements to bytes of one layer, if this payload may come from the peer
        with its number of layers; None if it may not."""
        ...

    def feed(self, event: v.Event, /) -> None: ...

    def grew(self, key: SliceKey) -> None:
        """Another piece of a slice has arrived."""
        ...


class Inbound:
    """The arriving payloads of all peers."""

    def __init__(self, owner: InboundOwner, pool: Pool) -> None:
        self.slices: dict[SliceKey, Payload] = {}
        """Slices that the core counts as begun or held."""
        self.results: dict[ResultKey, Payload] = {}
        """Complete results of all peers, and our own that are being made."""
        self.refused = 0
        """Number of payloads that got no memory, broke off, or were unwanted."""
        self.lives: dict[PeerId, int] = {}
        """Incarnations of connected peers."""
        self._owner = owner
        self._pool = pool
        self._open: dict[PeerId, dict[Key, Payload | None]] = {}
        """By peer, payloads under way; None: refused, the rest is dropped."""
        self._coming: defaultdict[PeerId, dict[Piece, Payload]] = defaultdict(dict)
        """By peer, pieces that connections are writing to their places."""
        self._undecided: dict[tuple[type[Received], PeerId, Key], Payload] = {}
        """Payloads that the core has not handled yet."""

    # The link's side ------------------------------------------------------------------------

    def place(self, peer: PeerId, chunk: PieceChunk, size: int) -> memoryview | None:
        """The memory for the next `size` bytes; None: drop them."""
        key = key_of(chunk)
        opened = self._open.setdefault(peer, {})
        if key not in opened and not self._begin(peer, key, chunk, opened):
            return None
        payload = opened[key]
        if payload is None:
            return None  # Its beginning was refused and counted.
        layer, layers = _layer_of(chunk)
        index = payload.index_of(chunk.start, size, layer)
        same = (payload.elements, payload.layers) == (chunk.elements, layers)
        if index is None or not same or layer == payload.own:
            self._refuse(peer, key)
            return None
        coming, piece = self._coming[peer], (key, chunk.start, layer)
        if payload.has(index) or piece in coming:
            return None  # Another connection must not write to a piece that is checked already.
        coming[piece] = payload
        return payload.chunk(index)

    def _begin(
        self, peer: PeerId, key: Key, chunk: PieceChunk, opened: dict[Key, Payload | None]
    ) -> bool:
        """The first piece of a payload on this connection. False if it is unwanted."""
        if isinstance(key, ResultKey) and key in self.results:
            return False
        if len(opened) >= OPEN_MAX:
            self.refused += 1
            return False
        begun = self._begun(peer, key) if isinstance(key, SliceKey) else None
        if begun is not None:
            opened[key] = begun  # An interrupted payload goes on.
            return True
        size_of = self._owner.size_of(peer, chunk)
        if size_of is None:
            self.refused += 1
            opened[key] = None
        elif isinstance(key, SliceKey) and key.contributor.peer != peer:
            opened[key] = None  # The core reports the lie, and needs no bytes of it.
            self._owner.feed(v.SliceBegun(peer, chunk.stamp, chunk.part, key.contributor))
        else:
            _, layers = _layer_of(chunk)
            buffer = self._pool.take(layers * size_of(chunk.elements))
            opened[key] = payload = Payload(chunk.elements, size_of, buffer, layers=layers)
            payload.life = self.lives.get(peer, 0)
        return True

    def _begun(self, peer: PeerId, key: SliceKey) -> Payload | None:
        """The part of the peer's own slice that is here, handled by the core or not. A peer cannot
        write into the slice of another one."""
        if key.contributor.peer != peer:
            return None
        found = self.slices.get(key)
        for kind in (v.SliceBegun, v.SliceReceived):
            if found is None:
                found = self._undecided.get((kind, peer, key))
        return found

    def arrived(self, peer: PeerId, chunk: PieceChunk) -> None:
        """The piece is in its place."""
        key, (layer, _) = key_of(chunk), _layer_of(chunk)
        payload = self._coming.get(peer, {}).pop((key, chunk.start, layer), None)
        if payload is None or self._open.get(peer, {}).get(key) is not payload:
            return  # Refused meanwhile, or over: its memory is not used.
        index = payload.at(chunk.start, layer)
        if index is None or payload.has(index):
            return  # It is here by another connection.
        digest = digest_of(payload.chunk(index)) if isinstance(chunk, ResultChunk) else HERE
        if isinstance(chunk, ResultChunk) and digest.hex() != chunk.digest:
            self._refuse(peer, key)  # Damaged on its way, or forged: as if it had not come.
            return
        payload.add(index, digest)
        match chunk:
            case ContributionChunk():
                self._slice_arrived(peer, chunk, payload)
            case ResultChunk():
                self._result_arrived(peer, chunk, payload)

    def elements_beside(self, peer: PeerId, key: Key) -> int:
        """Elements of other payloads for which the sender has memory: all under way in the same
        view or attempt, under any name; and those that are here, of the same contribution or
        result."""
        beside: dict[Key, Payload | None] = {}
        for part in range(OWNERS_MAX):
            if isinstance(key, SliceKey):
                other = key._replace(part=part)
                beside[other] = self._begun(peer, other)
            else:
                result = key._replace(part=part)
                waiting = self._undecided.get((v.ResultReceived, peer, result))
                beside[result] = self.results.get(result, waiting)
        opened = self._open.get(peer, {})
        beside |= {other: opened[other] for other in opened if key.is_beside(other)}
        beside.pop(key, None)
        return sum(payload.elements for payload in beside.values() if payload is not None)

    def forget(self, peer: PeerId) -> None:
        """The peer is disconnected: incomplete payloads are never used (I2)."""
        self._open.pop(peer, None)
        self._coming.pop(peer, None)
        self.lives.pop(peer, None)

    # Decisions of the core --------------------------------------------------------------------

    def decided(self, event: Received, *, wanted: bool) -> None:
        """The core has handled a payload: keep it if it counts as held or begun, else drop it.

        Called before the core's commands are done, since they may need these bytes.
        """
        key = _event_key(event)
        payload = self._undecided.pop((type(event), event.sender, key), None)
        if not wanted:
            self._refuse(event.sender, key)
        elif payload is not None and isinstance(key, SliceKey):
            self.slices.setdefault(key, payload)  # The first one stays: it may be in a sum already.
        elif payload is not None and isinstance(key, ResultKey):
            self.results[key] = payload

    def end(self, fragment: int, round_: int, *, released: bool) -> None:
        """Free the contributions of this round and earlier ones; if `released` the results too."""

        def ended(keys: Iterable[K]) -> list[K]:
            return [key for key in keys if key.ends_with(fragment, round_, released=released)]

        over = [self.slices.pop(key) for key in ended(self.slices)]
        over += [self.results.pop(key) for key in ended(self.results)]
        for opened in self._open.values():
            for key in ended(opened):
                del opened[key]  # Further pieces of it are dropped.
        for payload in over:
            if not payload.missing:  # Otherwise a connection may still be writing there.
                self._pool.give(payload.buffer)

    def keep(self, lineage: int) -> None:
        """Drop payloads of other lineages; their memory is not reused while connections may write
        to it."""
        self.slices = {k: payload for k, payload in self.slices.items() if k.lineage == lineage}
        self.results = {k: payload for k, payload in self.results.items() if k.lineage == lineage}
        for opened in self._open.values():
            for key in [key for key in opened if key.lineage != lineage]:
                del opened[key]

    # Complete payloads ------------------------------------------------------------------------

    def _slice_arrived(self, peer: PeerId, chunk: ContributionChunk, payload: Payload) -> None:
        key = slice_key(chunk.stamp, chunk.part, chunk.contributor)
        name = (peer, chunk.stamp, chunk.part, chunk.contributor)
        if not payload.missing:
            self._tell(v.SliceReceived(*name), payload)
            del self._open[peer][key]
        elif payload.missing == len(payload) - 1:
            self._tell(v.SliceBegun(*name), payload)
        if key in self.slices:
            self._owner.grew(key)

    def _result_arrived(self, peer: PeerId, chunk: ResultChunk, payload: Payload) -> None:
        key = ResultKey(chunk.stamp, chunk.part)

        def coming() -> list[int]:
            return [layer for other, _, layer in self._coming.get(peer, {}) if other == key]

        if not arrived(self._owner, key, chunk, payload, coming):
            self._refuse(peer, key)
        elif not payload.missing:
            del self._open[peer][key]
            of = (peer, chunk.stamp, chunk.part)
            self._tell(v.ResultReceived(*of, payload.terms, payload.digest), payload)

    def _tell(self, event: Received, payload: Payload) -> None:
        """Report a payload to the core, unless the sender's last one of this key still waits."""
        key = (type(event), event.sender, _event_key(event))
        if key in self._undecided:
            self.refused += 1
            return
        self._undecided[key] = payload
        self._owner.feed(event)

    def _refuse(self, peer: PeerId, key: Key) -> None:
        """Drop all further pieces of the payload on this connection."""
        self.refused += 1
        if key in self._open.get(peer, {}):
            self._open[peer][key] = None


def _layer_of(chunk: PieceChunk) -> tuple[int, int]:
    """(layer, number of layers)."""
    return (chunk.layer, chunk.layers) if isinstance(chunk, ResultChunk) else (0, 1)


def _event_key(event: Received) -> SliceKey | ResultKey:
    if isinstance(event, v.ResultReceived):
        return ResultKey(event.stamp, event.part)
    return slice_key(event.stamp, event.part, event.contributor)
