"""Chunks become payloads whole or not at all, in bounded memory; and nothing is kept for ever."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from peers.payloads import Assembler, PayloadStore, Transfer, chunks

from protocols.ids import Contributor, PeerId, Stamp, Version
from protocols.limits import CHUNK_BYTES_MAX
from protocols.messages import Chunk, ContributionChunk

ALPHA, BETA = PeerId("alpha.1"), PeerId("beta.2")
STAMP = Stamp(run=1, lineage=2, view=1, fragment=0, group=0, round=5, attempt=0)
SIZES = st.sampled_from([1, 1000, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, 3 * CHUNK_BYTES_MAX])
LIMIT = 3 * CHUNK_BYTES_MAX


def contributor(peer: PeerId = ALPHA, manifest: str = "a" * 32) -> Contributor:
    return Contributor(peer, 10, 5, manifest)


def header(part: int = 0, total: int = 0) -> ContributionChunk:
    return ContributionChunk(STAMP, part, contributor(), 0, total)


def receive(assembler: Assembler, peer: PeerId, chunk: Chunk, payload: bytes) -> bytes | None:
    """What a link does with a chunk."""
    place = assembler.place(peer, chunk, len(payload))
    if place is None:
        return None
    place[:] = payload
    whole = assembler.received(peer, chunk)
    return None if whole is None else bytes(whole)


@given(size=SIZES)
def test_a_payload_is_cut_into_chunks_and_put_together_again(size: int) -> None:
    payload = (bytes(range(251)) * (size // 251 + 1))[:size]
    assembler = Assembler(lambda _peer, chunk: chunk.total_bytes == size)
    wholes: list[bytes | None] = []
    for chunk, piece in chunks(header(), payload):
        assert isinstance(chunk, ContributionChunk)
        assert len(piece) <= CHUNK_BYTES_MAX
        wholes.append(receive(assembler, ALPHA, chunk, bytes(piece)))
    assert wholes == [None] * (len(wholes) - 1) + [payload]
    assert assembler.refused == 0


PIECES = st.lists(
    st.tuples(
        st.sampled_from([ALPHA, BETA]),
        st.integers(0, 1),
        st.sampled_from([0, 1, CHUNK_BYTES_MAX, 2 * CHUNK_BYTES_MAX, 1 << 62]),
        st.sampled_from([0, 1, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, LIMIT, LIMIT + 1, 1 << 62]),
        st.sampled_from([1, 2, CHUNK_BYTES_MAX]),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(pieces=PIECES)
def test_no_order_of_chunks_makes_a_torn_payload_or_takes_more_memory(
    pieces: list[tuple[PeerId, int, int, int, int]],
) -> None:
    assembler = Assembler(lambda _peer, chunk: chunk.total_bytes <= LIMIT)
    for peer, part, offset, total, size in pieces:
        chunk = replace(header(part, total), offset_bytes=offset)
        whole = receive(assembler, peer, chunk, b"\1" * size)
        assert whole is None or whole == b"\1" * total, "a byte that nobody sent"
        held = [len(one.buffer) for one in assembler._open.values()]
        assert len(held) <= 2
        assert all(size <= LIMIT for size in held)


def test_nobody_gets_memory_for_what_is_not_expected() -> None:
    assembler = Assembler(lambda peer, _chunk: peer == ALPHA)
    assert assembler.place(BETA, header(total=10), 10) is None
    assert assembler.place(ALPHA, header(total=10), 10) is not None
    assert assembler.refused == 1


def test_a_payload_that_broke_off_is_counted_and_its_rest_is_dropped() -> None:
    assembler = Assembler(lambda _peer, _chunk: True)
    first, second = (chunk for chunk, _ in chunks(header(), bytes(CHUNK_BYTES_MAX + 10)))
    assert receive(assembler, ALPHA, first, bytes(CHUNK_BYTES_MAX)) is None
    assert receive(assembler, ALPHA, header(1, total=3), b"abc") == b"abc"
    assert receive(assembler, ALPHA, second, bytes(10)) is None
    assert assembler.refused == 1


def test_a_new_connection_begins_anew() -> None:
    assembler = Assembler(lambda _peer, _chunk: True)
    payload = bytes(CHUNK_BYTES_MAX + 10)
    (first, _), (second, _) = chunks(header(), payload)
    receive(assembler, ALPHA, first, bytes(CHUNK_BYTES_MAX))
    assembler.forget(ALPHA)
    assert receive(assembler, ALPHA, second, bytes(10)) is None
    assert receive(assembler, ALPHA, first, bytes(CHUNK_BYTES_MAX)) is None
    assert receive(assembler, ALPHA, second, bytes(10)) == payload


def test_slices_go_with_the_commit_and_the_rest_with_the_release() -> None:
    store = PayloadStore()
    for round_ in (4, 5, 6):
        stamp = replace(STAMP, round=round_)
        store.slices[store.slice_key(stamp, 0, contributor())] = b"slice"
        store.encoded[0, round_] = b"encoded"
        store.results[stamp, 0] = b"result"
    other = replace(STAMP, fragment=1)
    store.slices[store.slice_key(other, 0, contributor())] = b"of another fragment"
    store.results[other, 0] = b"of another fragment"
    store.encoded[1, 5] = b"of another fragment"
    store.drop_slices(0, 5)
    assert [key[:2] for key in store.slices] == [(0, 6), (1, 5)]
    assert len(store.encoded) == len(store.results) == 4
    store.release(0, 5)
    assert set(store.encoded) == {(0, 6), (1, 5)}
    assert {(s.fragment, s.round) for s, _ in store.results} == {(0, 6), (1, 5)}
    assert len(store.slices) == 2


def test_a_slice_is_kept_by_its_bytes_and_not_by_its_attempt() -> None:
    key = PayloadStore.slice_key(STAMP, 0, contributor())
    assert PayloadStore.slice_key(replace(STAMP, attempt=3), 0, contributor()) == key
    assert PayloadStore.slice_key(STAMP, 0, contributor(manifest="b" * 32)) != key
    assert PayloadStore.slice_key(replace(STAMP, view=2), 0, contributor()) != key


def test_a_transfer_takes_each_fragment_once_and_from_its_donor() -> None:
    versions = (Version(0, 5, ""), Version(1, 5, ""))
    transfer = Transfer(ALPHA, 7, versions, since=0.0)
    assert not transfer.lacks(BETA, 7, 0)
    assert not transfer.lacks(ALPHA, 6, 0)
    assert not transfer.lacks(ALPHA, 7, 2)
    assert transfer.lacks(ALPHA, 7, 0)
    transfer.states[0] = b"12345"
    assert not transfer.lacks(ALPHA, 7, 0)
    assert transfer.adopt(0) == b"12345"
    assert not transfer.lacks(ALPHA, 7, 0)
    assert not transfer.complete
    transfer.states[1] = b"67"
    transfer.adopt(1)
    assert transfer.complete
    assert transfer.size_bytes == 7
