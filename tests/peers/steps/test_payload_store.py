"""Payloads of steps: memory for what may come, whole and intact ones only, and their way out."""

from dataclasses import replace

import pytest

from peers.steps.payload_store import OPEN_MAX, UNDECIDED_MAX, PayloadStore, StepStream, digest_of
from protocols.interface.events import StepReceived
from protocols.messages.peer import StepChunk
from protocols.types.ids import PeerId, Stamp
from protocols.types.limits import CHUNK_BYTES_MAX

ALPHA, BETA, GAMMA = PeerId("alpha.1"), PeerId("beta.2"), PeerId("gamma.3")
STAMP = Stamp(run=1, lineage=2, view=1, fragment=0, round=5, attempt=0)
SMALL = bytes(range(200))
LARGE = bytes(n * n % 251 for n in range(1 << 10)) * (5 << 9)
"""Two whole chunks, and half of one."""


class Room:
    """The payloads of one peer, and a core that has not looked at anything yet."""

    def __init__(self) -> None:
        self.events: list[StepReceived] = []
        self.may = True
        self.payloads = PayloadStore(lambda _peer, _chunk: self.may, self.events.append)

    def bring(self, sender: PeerId, chunk: StepChunk, piece: bytes) -> bool:
        """What a link does with a piece; False: it was read and dropped."""
        place = self.payloads.place(sender, chunk, len(piece))
        if place is None:
            return False
        place[:] = piece
        self.payloads.arrived(sender, chunk)
        return True

    def bring_all(self, sender: PeerId, payload: bytes, *, header: StepChunk) -> None:
        stream = StepStream(header, payload)
        while not stream.is_complete:
            frame = stream.next()
            assert frame is not None
            chunk, piece = frame
            assert isinstance(chunk, StepChunk)
            self.bring(sender, chunk, bytes(piece))

    def decide(self, *, wanted: bool = True) -> None:
        looked, self.events[:] = list(self.events), []
        for event in looked:
            self.payloads.decided(event, wanted=wanted)


def of(payload: bytes, *, whose: PeerId = ALPHA) -> StepChunk:
    return StepChunk(STAMP, whose, digest_of(payload), 0, len(payload))


def test_what_is_whole_is_put_before_the_core_and_kept_if_it_counts() -> None:
    room = Room()
    for payload in (SMALL, LARGE):
        room.bring_all(ALPHA, payload, header=of(payload))
        assert room.events == [StepReceived(ALPHA, STAMP, ALPHA, digest_of(payload))]
        assert digest_of(payload) not in room.payloads.held
        room.decide()
        assert bytes(room.payloads.held[digest_of(payload)]) == payload
    assert room.payloads.refused == 0


def test_what_does_not_count_is_dropped() -> None:
    room = Room()
    room.bring_all(ALPHA, SMALL, header=of(SMALL))
    room.decide(wanted=False)
    assert room.payloads.held == {}
    assert room.payloads.refused == 1


def test_pieces_have_a_limit() -> None:
    stream = StepStream(of(LARGE), LARGE)
    sizes: list[int] = []
    while not stream.is_complete:
        frame = stream.next()
        assert frame is not None
        sizes.append(len(frame[1]))
    assert sizes == [CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX // 2]


def test_nobody_gets_memory_for_what_may_not_come() -> None:
    room = Room()
    room.may = False
    assert room.payloads.place(ALPHA, of(SMALL), len(SMALL)) is None
    assert room.payloads.refused == 1


def test_bytes_that_are_not_what_their_digest_says_never_came() -> None:
    room = Room()
    assert room.bring(ALPHA, of(SMALL), SMALL[::-1])
    assert room.events == []
    assert room.payloads.refused == 1
    room.bring_all(ALPHA, SMALL, header=of(SMALL))
    assert len(room.events) == 1


def test_a_payload_that_breaks_off_is_begun_again() -> None:
    room = Room()
    room.bring(ALPHA, of(LARGE), LARGE[:CHUNK_BYTES_MAX])
    room.payloads.forget(ALPHA)
    room.bring_all(ALPHA, LARGE, header=of(LARGE))
    assert len(room.events) == 1


def piece_of(payload: bytes, index: int) -> tuple[StepChunk, bytes]:
    start = index * CHUNK_BYTES_MAX
    return replace(of(payload), start_byte=start), payload[start : start + CHUNK_BYTES_MAX]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_pieces_come_by_several_connections_in_any_order(order: tuple[int, ...]) -> None:
    room = Room()
    for index in order:
        assert room.bring(ALPHA, *piece_of(LARGE, index))
    room.decide()
    assert bytes(room.payloads.held[digest_of(LARGE)]) == LARGE


def test_a_piece_is_written_once() -> None:
    """By another connection it could be changed after it was hashed. Who asked for it again, as it
    took long, gets two copies: of both together one becomes whole."""
    room = Room()
    chunk, piece = piece_of(LARGE, 1)
    place = room.payloads.place(ALPHA, chunk, len(piece))
    assert place is not None
    assert room.bring(ALPHA, *piece_of(LARGE, 0))
    for index in (0, 1):
        again, size = piece_of(LARGE, index)[0], len(piece_of(LARGE, index)[1])
        assert room.payloads.place(ALPHA, again, size) is None
    assert room.bring(ALPHA, *piece_of(LARGE, 2))
    place[:] = piece
    room.payloads.arrived(ALPHA, chunk)
    room.decide()
    assert bytes(room.payloads.held[digest_of(LARGE)]) == LARGE
    assert room.payloads.refused == 0


@pytest.mark.parametrize("start", [1, CHUNK_BYTES_MAX - 1, 3 * CHUNK_BYTES_MAX])
def test_a_piece_that_begins_nowhere_is_refused(start: int) -> None:
    room = Room()
    assert not room.bring(ALPHA, replace(of(LARGE), start_byte=start), bytes(CHUNK_BYTES_MAX))
    assert room.payloads.refused == 1


def test_a_piece_never_reaches_beyond_its_payload() -> None:
    room = Room()
    assert room.payloads.place(ALPHA, of(SMALL), len(SMALL) + 1) is None
    assert room.payloads.refused == 1


def test_so_many_payloads_are_open_from_each() -> None:
    room = Room()
    for step in range(OPEN_MAX):
        chunk, piece = piece_of(LARGE, 0)
        stamp = replace(STAMP, round=step + 1)
        assert room.bring(ALPHA, replace(chunk, stamp=stamp), piece)
    room.bring_all(BETA, SMALL, header=of(SMALL, whose=BETA))
    assert (len(room.events), room.payloads.refused) == (1, 0)
    room.bring_all(ALPHA, SMALL, header=of(SMALL))
    assert (len(room.events), room.payloads.refused) == (2, 1), "the oldest: its rest never comes"


def test_the_same_bytes_of_two_peers_are_kept_once_and_count_for_both() -> None:
    room = Room()
    room.bring_all(ALPHA, SMALL, header=of(SMALL))
    room.decide()
    assert not room.bring(BETA, of(SMALL, whose=BETA), SMALL)
    assert room.events == [StepReceived(BETA, STAMP, BETA, digest_of(SMALL))]
    room.decide()
    assert list(room.payloads.held) == [digest_of(SMALL)]
    assert room.payloads.refused == 0


def test_who_floods_us_gets_no_more_memory() -> None:
    room = Room()
    for step in range(UNDECIDED_MAX + 1):
        payload = step.to_bytes(2, "little")
        stamp = replace(STAMP, round=step + 1)
        room.bring_all(ALPHA, payload, header=replace(of(payload), stamp=stamp))
    assert len(room.events) == UNDECIDED_MAX
    room.bring_all(GAMMA, SMALL, header=of(SMALL))
    assert len(room.events) == UNDECIDED_MAX + 1, "another's are no worse for it"


def test_what_nobody_names_any_more_is_dropped() -> None:
    room = Room()
    room.payloads.keep_own(digest_of(SMALL), SMALL)
    room.payloads.keep_own(digest_of(LARGE), LARGE)
    room.payloads.prune({digest_of(LARGE)})
    assert list(room.payloads.held) == [digest_of(LARGE)]
