"""Sealed chunks: exactly what was sent arrives, and nothing else opens."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings

from peers.connections import encryption
from peers.connections.control import Link
from peers.connections.encryption import (
    RECORD_BYTES,
    TAG_BYTES,
    Keys,
    Seal,
    SealedReader,
    SealedWriter,
    Tickets,
)
from peers.connections.frames import PREFIX, STAGE_BYTES
from protocols.messages.peer import ResultChunk
from protocols.types import limits
from protocols.types.ids import Contributor, PeerId, Stamp
from protocols.wire import codec
from protocols.wire.validators import WireError
from tests.peers.chunk_room import CUTS, SIZES, Taker, payloads_of, pour, state_chunk, written
from tests.peers.link_room import Recorder

SECRET, OTHER = b"s" * 32, b"o" * 32
PAYLOADS = [b"one!" * 1000, b"two!" * (RECORD_BYTES // 2), b"3"]
"""The second one takes two records."""


def sealed(payloads: Sequence[bytes], secret: bytes = SECRET) -> list[bytes]:
    """The frames."""
    writer = SealedWriter(Seal(secret))
    return written(writer, [(state_chunk(len(p)), p) for p in payloads])


def opened(stream: bytes, taker: Taker) -> list[bytes]:
    pour(SealedReader(taker, Seal(SECRET)), stream)
    return taker.payloads


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, cuts=CUTS, sent=CUTS)
def test_chunks_arrive_exactly_however_the_stream_is_cut(
    sizes: list[int], cuts: list[int], sent: list[int]
) -> None:
    payloads = payloads_of(sizes)
    writer, taker = SealedWriter(Seal(SECRET)), Taker()
    frames = [(state_chunk(len(p)), p) for p in payloads]
    stream = b"".join(written(writer, frames, sent))
    pour(SealedReader(taker, Seal(SECRET)), stream, cuts)
    assert taker.payloads == payloads
    for payload in payloads:
        assert len(payload) < 16 or payload[:16] not in stream


def test_an_array_is_ours_again_once_its_last_record_is_sealed() -> None:
    """A state that is lent out stays as it is, and the next one is made elsewhere meanwhile."""
    array = bytearray(RECORD_BYTES + 5)
    writer = SealedWriter(Seal(SECRET))
    assert written(writer, [(state_chunk(len(array)), memoryview(array))])
    array.append(0)  # BufferError while anybody has a view of it.


def test_a_refused_chunk_is_read_and_dropped_and_the_next_one_arrives() -> None:
    taker = Taker()
    taker.refuses = 2
    assert opened(b"".join(sealed(PAYLOADS)), taker) == PAYLOADS[2:]


def test_all_that_is_dropped_goes_through_one_small_buffer() -> None:
    taker, frames = Taker(), sealed([PAYLOADS[1]] * 4)
    taker.refuses, reader = 4, SealedReader(taker, Seal(SECRET))
    seen: list[object] = []
    for frame in frames:
        pour(reader, frame)
        seen.append(reader._dropped.obj)
    assert all(each is seen[0] for each in seen)
    assert reader._dropped.nbytes == RECORD_BYTES


def test_a_head_longer_than_the_stage_arrives() -> None:
    names = [Contributor(PeerId(f"peer.{n}"), 1, 1, "a" * 32) for n in range(limits.PEERS_MAX)]
    chunk = ResultChunk(Stamp(1, 2, 3, 0, 4, 0), 0, tuple(names), "b" * 32, 0, 1, 0, 1, False)
    assert len(codec.encode(chunk)) > 3 * STAGE_BYTES
    taker = Taker()
    assert opened(b"".join(written(SealedWriter(Seal(SECRET)), [(chunk, b"1234")])), taker)


def swapped(frames: list[bytes]) -> bytes:
    return frames[1] + frames[0] + frames[2]


def flipped(place: Callable[[list[bytes]], int]) -> Callable[[list[bytes]], bytes]:
    def flip(frames: list[bytes]) -> bytes:
        stream = bytearray(b"".join(frames))
        stream[place(frames)] ^= 4
        return bytes(stream)

    return flip


def records_swapped(frames: list[bytes]) -> bytes:
    """Within the second frame; its records are equally long, and of equal bytes."""
    rest = len(frames[1]) - 2 * (RECORD_BYTES + TAG_BYTES)
    head, records = frames[1][:rest], frames[1][rest:]
    half = len(records) // 2
    return frames[0] + head + records[half:] + records[:half] + frames[2]


def shortened(frames: list[bytes]) -> bytes:
    """The second payload seems to be one record long."""
    head_bytes, _ = PREFIX.unpack_from(frames[1])
    return frames[0] + PREFIX.pack(head_bytes, RECORD_BYTES) + frames[1][PREFIX.size :] + frames[2]


WRONG: dict[str, tuple[int, Callable[[list[bytes]], bytes]]] = {
    "a bit of a payload": (0, flipped(lambda frames: len(frames[0]) - 100)),
    "a bit of a tag": (0, flipped(lambda frames: len(frames[0]) - 1)),
    "a bit of a head": (0, flipped(lambda frames: PREFIX.size)),
    "a bit of the head's length": (0, flipped(lambda frames: 0)),
    "a bit of the payload's length": (0, flipped(lambda frames: 4)),
    "a frame again": (1, lambda frames: frames[0] * 2),
    "a frame left out": (0, lambda frames: frames[1]),
    "frames in another order": (0, swapped),
    "records in another order": (1, records_swapped),
    "a shorter payload": (1, shortened),
    "a frame cut off": (1, lambda frames: frames[0] + frames[1][:-1000] + frames[2] * 200),
    "somebody else's": (0, lambda frames: b"".join(sealed(PAYLOADS, OTHER))),
    "in the clear": (0, lambda frames: PREFIX.pack(40, 1 << 20) + bytes(1 << 20)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_exactly_what_was_sent_does_not_open(what: str) -> None:
    arrive, change = WRONG[what]
    taker = Taker()
    with pytest.raises(WireError, match=r"does not open|a chunk of"):
        opened(change(sealed(PAYLOADS)), taker)
    assert taker.payloads == PAYLOADS[:arrive]


def test_a_stream_that_ends_early_delivers_whole_chunks_only() -> None:
    stream = b"".join(sealed(PAYLOADS))
    assert opened(stream[:-1], Taker()) == PAYLOADS[:2]


def test_what_one_side_sealed_does_not_open_at_itself() -> None:
    """Whoever sends us our own bytes back has no key."""
    keys = Keys.of(SECRET)
    assert len({keys.ticket, keys.dialling[:16], keys.accepting[:16]}) == 3
    (stream,) = sealed(PAYLOADS[:1], keys.dialling)
    with pytest.raises(WireError):
        pour(SealedReader(Taker(), Seal(keys.accepting)), stream)


def test_keys_are_made_of_the_secret_by_hkdf_and_records_counted() -> None:
    """Written out, so that another change of the form is seen."""

    def derived(secret: bytes, what: bytes, size: int) -> bytes:
        info = b"lowcomm bulk 1 " + what
        return HKDF(hashes.SHA256(), size, salt=None, info=info).derive(secret)

    keys = Keys.of(SECRET)
    assert keys.ticket == derived(SECRET, b"ticket", 16)
    (stream,) = sealed([b"12345678"], keys.dialling)
    cipher = AESGCM(derived(derived(SECRET, b"dialling", 32), b"key", 32))
    head_bytes, payload_bytes = PREFIX.unpack_from(stream)
    prefix, head, record = stream[:8], stream[8 : 24 + head_bytes], stream[24 + head_bytes :]
    assert payload_bytes == 8
    opened_head = cipher.decrypt((0).to_bytes(12, "big"), head, prefix)
    assert codec.decode(opened_head, size_max=100) == state_chunk(8)
    assert cipher.decrypt((1).to_bytes(12, "big"), record, prefix) == b"12345678"


def test_both_go_on_with_the_next_key_and_no_nonce_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encryption, "RECORDS_PER_KEY", 3)
    used: set[bytes] = set()

    class Watched(Seal):
        def _nonce(self) -> bytes:
            nonce = super()._nonce()
            assert nonce not in used
            used.add(nonce)
            ciphers[self._cipher] += 1
            return nonce

    ciphers = Counter[AESGCM]()
    payloads = PAYLOADS * 3
    frames = [(state_chunk(len(p)), p) for p in payloads]
    stream = b"".join(written(SealedWriter(Watched(SECRET)), frames))
    assert len(used) == 21
    assert list(ciphers.values()) == [3] * 7, "no key seals one record more"
    assert opened(stream, Taker()) == payloads
    monkeypatch.setattr(encryption, "RECORDS_PER_KEY", 4)
    with pytest.raises(WireError):
        opened(stream, Taker())


# Tickets ------------------------------------------------------------------------------------------


def new_link() -> Link:
    return Link(Recorder(), accepted=True)


def test_a_ticket_is_good_once_and_the_next_one_is_another() -> None:
    tickets, link = Tickets(), new_link()
    secret = tickets.give(link)
    assert tickets.give(link) == secret, "it was not used yet"
    keys = Keys.of(secret)
    assert tickets.take(keys.ticket) == (link, keys)
    assert tickets.take(keys.ticket) is None
    assert tickets.give(link) != secret
    assert len(tickets) == 1


def test_a_ticket_ends_with_its_connection() -> None:
    tickets, one, other = Tickets(), new_link(), new_link()
    gone, stays = Keys.of(tickets.give(one)), Keys.of(tickets.give(other))
    tickets.void(one)
    tickets.void(one)
    assert tickets.take(gone.ticket) is None
    assert tickets.take(b"x" * 16) is None
    assert tickets.take(stays.ticket) == (other, stays)
    assert len(tickets) == 0
