"""Small payloads for tests: a codec of few bytes a piece, and what links and the core do with them.

Must NOT hold tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lowcomm.numerics.arrays import IN_MEMORY
from peers.exchange.inbound import Inbound, Received
from peers.exchange.interfaces import Bytes, SlicesError
from peers.exchange.payload_keys import ResultKey, SliceKey
from peers.exchange.pieces import PIECE_ELEMENTS, Payload, Pool, digest_of, spans
from protocols.interface import events as v
from protocols.messages.peer import ContributionChunk, PieceChunk, ResultChunk
from protocols.types.errors import LowcommError
from protocols.types.ids import Contributor, PeerId, Stamp

ALPHA, BETA, GAMMA = PeerId("alpha.1"), PeerId("beta.2"), PeerId("gamma.3")
STAMP = Stamp(run=1, lineage=2, view=1, fragment=0, round=5, attempt=0)
GRAIN = PIECE_ELEMENTS // 4
"""Elements that are encoded together."""
BLOCK_BYTES = 5
"""What becomes of them."""
PIECE_BYTES = 4 * BLOCK_BYTES


def size_of(elements: int) -> int:
    return BLOCK_BYTES * -(-elements // GRAIN)


def fp32_size_of(elements: int) -> int:
    """Of a state."""
    return 4 * elements


def contributor(peer: PeerId = ALPHA, manifest: str = "a" * 32) -> Contributor:
    return Contributor(peer, 10, 5, manifest)


def slice_of(
    elements: int, *, peer: PeerId = ALPHA, part: int = 0, stamp: Stamp = STAMP
) -> ContributionChunk:
    """Header of the first piece."""
    return ContributionChunk(stamp, part, contributor(peer), 0, elements)


def result_of(
    elements: int, *, part: int = 0, stamp: Stamp = STAMP, of: Sequence[Contributor] = ()
) -> ResultChunk:
    """Header of the first piece; of a gather if it is told what is in it."""
    terms = tuple(of) or (contributor(),)
    return ResultChunk(stamp, part, terms, "", 0, elements, 0, len(of) or 1, False)


def gathered(wholes: Sequence[bytes], elements: int) -> bytes:
    """As they lie in a result: each piece's layers one after the other."""
    marks = [(size_of(start), size_of(stop)) for start, stop in spans(elements)]
    return b"".join(whole[a:b] for a, b in marks for whole in wholes)


def some_bytes(elements: int, salt: int = 0) -> bytes:
    """Of an encoded payload: no two of its pieces are equal."""
    return bytes((7 * place + place // 11 + 31 * salt) % 251 for place in range(size_of(elements)))


def pieces_of(header: PieceChunk, payload: bytes) -> list[tuple[PieceChunk, bytes]]:
    """As they travel."""
    layers = header.layers if isinstance(header, ResultChunk) else 1
    found: list[tuple[PieceChunk, bytes]] = []
    for start, stop in spans(header.elements):
        for layer in range(layers):
            size = size_of(stop) - size_of(start)
            first = layers * size_of(start) + layer * size
            piece, chunk = payload[first : first + size], replace(header, start=start)
            if isinstance(chunk, ResultChunk):
                terms = () if found else chunk.contributors
                digest = digest_of(piece).hex()
                chunk = replace(chunk, digest=digest, contributors=terms, layer=layer)
            found.append((chunk, piece))
    return found


class CodedWork:
    """Arithmetic that knows what was asked of it; sums depend on their order."""

    arrays = IN_MEMORY

    def __init__(
        self,
        elements: int,
        *,
        salt: int = 0,
        gathers: bool = False,
        place: memoryview | None = None,
    ) -> None:
        self.whole = some_bytes(elements, salt)
        """Our contribution."""
        self.place = place
        """Where to encode it."""
        self.gathers = gathers
        self.checked: list[bytes] = []
        """Pieces of results."""
        self.encoded: list[tuple[int, int]] = []
        self.fails = ""
        """Encoding does, with this text."""
        self.refused = b"\xff" * 1
        """A slice that begins so is none."""
        self.void: tuple[int, ...] = ()
        """Slices that cannot be averaged."""

    def contribution_bytes(self, fragment: int, elements: int) -> int:
        return size_of(elements)

    result_bytes = contribution_bytes

    def encode(self, fragment: int, start: int, stop: int, out: memoryview) -> None:
        if self.fails:
            raise LowcommError(self.fails)
        assert start % GRAIN == 0
        self.encoded.append((start, stop))
        out[:] = self.whole[size_of(start) : size_of(stop)]

    def reduce(
        self,
        fragment: int,
        elements: int,
        slices: Sequence[Bytes],
        contributors: Sequence[Contributor],
        out: memoryview,
    ) -> None:
        assert {len(piece) for piece in slices} == {size_of(elements)}
        assert len(out) == self.layers(fragment, len(slices)) * size_of(elements)
        if self.void:
            raise SlicesError(self.void, "no slice")
        if any(bytes(piece[:1]) == self.refused for piece in slices):
            raise LowcommError("no slice")
        out[:] = b"".join(slices) if self.gathers else summed(slices)

    def layers(self, fragment: int, contributors: int) -> int:
        return contributors if self.gathers else 1

    def begin_contribution(self, fragment: int, manifest: str) -> memoryview | None:
        return self.place

    # What a sum does not need.

    def check_result(
        self, fragment: int, piece: Bytes, elements: int, contributors: Sequence[Contributor]
    ) -> None:
        self.checked.append(bytes(piece))
        if bytes(piece[:1]) == self.refused:
            raise LowcommError("no result")

    def ahead(
        self,
        stamp: Stamp,
        start: int,
        piece: Bytes,
        part: Bytes,
        elements: int,
        contributors: Sequence[Contributor],
    ) -> None:
        raise NotImplementedError

    def apply(
        self,
        stamp: Stamp,
        borders: Sequence[int],
        parts: Sequence[Bytes],
        contributors: Sequence[Contributor],
    ) -> str:
        raise NotImplementedError

    def skip(self, stamp: Stamp) -> str:
        raise NotImplementedError

    def settle(self, fragment: int) -> None:
        raise NotImplementedError

    def lend_state(self, fragment: int, round_: int) -> tuple[Bytes, ...]:
        raise NotImplementedError

    def check_state(
        self, fragment: int, round_: int, state: Sequence[Bytes], before_cell: object = None
    ) -> str:
        raise NotImplementedError

    def adopt_state(
        self,
        fragment: int,
        round_: int,
        buffer: bytearray | memoryview,
        *,
        lineage: int,
        kept: bool = False,
    ) -> None:
        raise NotImplementedError

    def adopt_kept(self, fragment: int, round_: int, *, lineage: int) -> str:
        raise NotImplementedError

    def state_bytes(self, fragment: int) -> int:
        raise NotImplementedError


def summed(slices: Sequence[Bytes]) -> bytes:
    """Byte by byte, and no order gives what another one does."""
    total = bytes(len(slices[0]))
    for each in slices:
        total = bytes((3 * a + b) % 251 for a, b in zip(total, bytes(each), strict=True))
    return total


class Room:
    """The owner of one Inbound: a core that wants everything, unless it is told otherwise."""

    def __init__(self, expects: Callable[[PeerId, PieceChunk], bool] = lambda _peer, _chunk: True):
        self.pool = Pool()
        self.inbound = Inbound(self, self.pool)
        self.expects = expects
        self.events: list[v.Event] = []
        """What the core was told and did not look at yet."""
        self.told: list[v.Event] = []
        """What it did look at."""
        self.grown: list[SliceKey] = []
        self.gathers = False
        self.sound = True
        """Results are."""
        self.results_grown: list[int] = []
        self.me = PeerId("")
        self.own = b""
        """Our contribution."""

    def size_of(self, peer: PeerId, chunk: PieceChunk) -> Callable[[int], int] | None:
        return size_of if self.expects(peer, chunk) else None

    def feed(self, event: v.Event, /) -> None:
        self.events.append(event)

    def grew(self, key: SliceKey) -> None:
        self.grown.append(key)

    def layers(self, fragment: int, contributors: int) -> int:
        return contributors if self.gathers else 1

    def own_layer(self, key: ResultKey, payload: Payload) -> int | None:
        names = [term.peer for term in payload.terms]
        return names.index(self.me) if self.me in names else None

    def own_piece(self, key: ResultKey, payload: Payload, number: int) -> bytes | None:
        start, stop = list(spans(payload.elements))[number]
        return self.own[size_of(start) : size_of(stop)] or None

    def result_grew(self, key: ResultKey, payload: Payload, number: int) -> bool:
        assert payload.has_piece(number)
        assert payload.terms
        self.results_grown.append(number)
        return self.sound

    def bring(self, peer: PeerId, chunk: PieceChunk, piece: bytes) -> bool:
        """What a link does with a piece; False: it was read and dropped."""
        place = self.inbound.place(peer, chunk, len(piece))
        if place is None:
            return False
        assert len(place) == len(piece)
        place[:] = piece
        self.inbound.arrived(peer, chunk)
        return True

    def look(self, *, wants: bool = True) -> list[v.Event]:
        """The core's turn; what it was told."""
        looked, self.events = self.events, []
        for event in looked:
            assert isinstance(event, Received)
            self.inbound.decided(event, wanted=wants)
        self.told += looked
        return looked

    def bring_all(self, peer: PeerId, header: PieceChunk, payload: bytes) -> None:
        """Every piece, and the core looks at each."""
        for chunk, piece in pieces_of(header, payload):
            self.bring(peer, chunk, piece)
            self.look()


def whole(payload: Payload) -> bytes:
    assert not payload.missing
    return bytes(payload.buffer)
