"""What goes to a peer next: results, contributions, states; and what is not made yet gives way."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.connections.frames import Frame
from peers.exchange import outbound as outbound_module
from peers.exchange.outbound import Outbound, ResultStream, SliceStream, Stream
from peers.exchange.pieces import PIECE_ELEMENTS, Encoding, Payload, Pool, digest_of, spans
from protocols.messages.peer import ContributionChunk, PieceChunk, ResultChunk, StateChunk
from protocols.types.ids import Stamp
from tests.peers.payload_room import (
    ALPHA,
    BETA,
    GAMMA,
    GRAIN,
    STAMP,
    CodedWork,
    contributor,
    gathered,
    pieces_of,
    result_of,
    size_of,
    slice_of,
    some_bytes,
)

Sent = tuple[PieceChunk | StateChunk, bytes]
TWO, THREE = 2 * PIECE_ELEMENTS, 3 * PIECE_ELEMENTS
STATE = StateChunk(1, 2, 3, 0, 4, 0, 3)


class Making:
    """A result that is made piece by piece."""

    def __init__(self, elements: int, *, part: int = 0, stamp: Stamp = STAMP) -> None:
        self.bytes = some_bytes(elements, salt=part)
        self.payload = Payload(elements, size_of, memoryview(bytearray(self.bytes)))
        self.header = result_of(elements, part=part, stamp=stamp)
        self.stream = ResultStream(self.header, self.payload)

    def make(self, index: int) -> None:
        self.payload.add(index, digest_of(self.payload.piece(index)))

    def make_all(self) -> "Making":
        for index in range(len(self.payload)):
            self.make(index)
        return self


def a_slice(elements: int, *, part: int = 0, stamp: Stamp = STAMP) -> SliceStream:
    encoding = Encoding(CodedWork(elements, salt=part), 0, elements, Pool())
    return SliceStream(slice_of(elements, part=part, stamp=stamp), encoding, 0)


class Cells:
    """Of a state: so many chunks, as a donation sends them."""

    rank = 2
    stamp = None

    def __init__(self, count: int = 1) -> None:
        self.left = count

    def next(self) -> Frame | None:
        self.left -= 1
        return STATE, b"state of it!"

    @property
    def is_complete(self) -> bool:
        return not self.left

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        return False


def frames(outbound: Outbound) -> list[Sent]:
    """Everything that can be sent now."""
    found: list[Sent] = []
    while (frame := outbound.next()) is not None:
        found.append(taken(frame))
    return found


def taken(frame: Frame) -> Sent:
    message, piece = frame
    assert isinstance(message, PieceChunk | StateChunk)
    return message, bytes(piece)


def filled(*streams: Stream, far: bool = False) -> Outbound:
    outbound = Outbound(far=far)
    for stream in streams:
        assert outbound.add(stream)
    return outbound


# One payload ------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1, THREE])
def test_every_kind_travels_in_pieces_that_name_their_place(elements: int) -> None:
    payload = some_bytes(elements)
    for header, stream in (
        (slice_of(elements), a_slice(elements)),
        (result_of(elements), Making(elements).make_all().stream),
    ):
        outbound = filled(stream)
        assert frames(outbound) == pieces_of(header, payload)
        assert outbound._streams == []


@pytest.mark.parametrize("elements", [1, TWO + 1])
def test_a_gather_travels_slice_by_slice(elements: int) -> None:
    terms = [contributor(peer) for peer in (ALPHA, BETA, GAMMA)]
    found = gathered([some_bytes(elements, salt) for salt in range(3)], elements)
    payload = Payload(elements, size_of, memoryview(bytearray(found)), layers=3)
    header, pieces = result_of(elements, of=terms), len(list(spans(elements)))
    outbound = filled(ResultStream(header, payload))
    assert frames(outbound) == []
    payload.add_piece(0)
    wanted = pieces_of(header, found)
    assert frames(outbound) == wanted[:3]
    for number in range(1, pieces):
        payload.add_piece(number)
    assert frames(outbound) == wanted[3:]
    assert outbound._streams == []


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_who_has_a_slice_is_told_so_once_and_gets_the_others(left_out: int) -> None:
    header = result_of(TWO + 1, of=[contributor(peer) for peer in (ALPHA, BETA, GAMMA)])
    found = gathered([some_bytes(TWO + 1, salt) for salt in range(3)], TWO + 1)
    payload = Payload(TWO + 1, size_of, memoryview(bytearray(found)), layers=3)
    stream = ResultStream(replace(header, left_out=True), payload, left_out=left_out)
    for number in range(3):
        payload.add_piece(number)
    sent = [chunk for chunk, _ in frames(filled(stream)) if isinstance(chunk, ResultChunk)]
    assert [chunk.layer for chunk in sent] == [x for x in range(3) if x != left_out] * 3
    assert [chunk.left_out for chunk in sent] == [True] + 5 * [False]
    assert [chunk.contributors for chunk in sent] == [header.contributors] + 5 * [()]


def test_a_slice_is_cut_from_the_whole_contribution_where_its_part_lies() -> None:
    work = CodedWork(THREE)
    encoding, first = Encoding(work, 0, THREE, Pool()), GRAIN
    stream = SliceStream(slice_of(PIECE_ELEMENTS + 1, part=1), encoding, first)
    assert work.encoded == [], "nothing is encoded before it is sent"
    one = stream.next()
    assert one is not None
    assert bytes(one[1]) == work.whole[size_of(first) : size_of(first + PIECE_ELEMENTS)]
    assert sorted(work.encoded) == list(spans(THREE))[:2]
    assert not stream.is_complete
    other = stream.next()
    assert other is not None
    assert bytes(other[1]) == work.whole[size_of(first + PIECE_ELEMENTS) :][:5]
    assert stream.is_complete


# Several ----------------------------------------------------------------------------------------


def test_results_go_before_contributions_before_states_whoever_came_first() -> None:
    outbound = filled(Cells(), a_slice(TWO), a_slice(1, part=1))
    first = taken(outbound.next() or pytest.fail("there is a slice"))[0]
    assert first == slice_of(TWO)
    outbound.add(Making(TWO).make_all().stream)
    outbound.add(Making(1, part=1).make_all().stream)
    found = [chunk for chunk, _ in frames(outbound)]
    kinds = [ResultChunk] * 3 + [ContributionChunk] * 2 + [StateChunk]
    assert [type(chunk) for chunk in found] == kinds
    assert [x.part for x in found if not isinstance(x, StateChunk)] == [0, 0, 1, 0, 1]


def test_over_a_far_line_one_round_goes_after_the_other_and_contributions_go_first() -> None:
    outbound = filled(Cells(), far=True)
    fragments = [replace(STAMP, round=9), replace(STAMP, fragment=2), STAMP]
    for stamp in fragments:
        outbound.add(Making(1, stamp=stamp).make_all().stream)
        outbound.add(a_slice(1, stamp=stamp))
    slow = Making(TWO, part=1)
    outbound.add(slow.stream)
    found = [chunk for chunk, _ in frames(outbound)]
    rounds = [x for x in found if isinstance(x, ContributionChunk | ResultChunk)]
    assert [x.stamp for x in rounds] == [each for each in reversed(fragments) for _ in range(2)]
    assert [type(x) for x in rounds] == [ContributionChunk, ResultChunk] * 3
    assert isinstance(found[-1], StateChunk), "it waits for all of them, and they for no result"
    slow.make_all()
    assert len(frames(outbound)) == 2


def test_a_result_that_is_not_made_yet_gives_way_and_goes_on_later() -> None:
    slow, quick = Making(THREE), Making(TWO, part=1)
    outbound = filled(slow.stream, quick.stream, a_slice(TWO))
    slow.make(0)
    quick.make(0)
    found = [taken(outbound.next() or pytest.fail("it waits"))[0] for _ in range(3)]
    assert [(type(x), x.part, x.start) for x in found if not isinstance(x, StateChunk)] == [
        (ResultChunk, 0, 0),
        (ResultChunk, 1, 0),
        (ContributionChunk, 0, 0),
    ]
    slow.make(2)
    assert [type(chunk) for chunk, _ in frames(outbound)] == [ContributionChunk]
    assert outbound.next() is None
    slow.make(1)
    assert [chunk.start for chunk, _ in frames(outbound)] == [PIECE_ELEMENTS, TWO]
    quick.make(1)
    assert [chunk.start for chunk, _ in frames(outbound)] == [PIECE_ELEMENTS]
    assert outbound._streams == []


@settings(deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, PIECE_ELEMENTS, TWO + 1]), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=25),
)
def test_however_results_are_made_and_fetched_each_goes_out_whole_and_in_order(
    sizes: list[int], steps: list[tuple[int, int]]
) -> None:
    made = [Making(size, part=part) for part, size in enumerate(sizes)]
    outbound = filled(*(one.stream for one in made))
    found: list[Sent] = []
    for which, index in steps:
        if which < len(made):
            made[which].make(min(index, len(made[which].payload) - 1))
        elif (frame := outbound.next()) is not None:
            found.append(taken(frame))
    for one in made:
        one.make_all()
    found += frames(outbound)
    for part, one in enumerate(made):
        got = [x for x in found if isinstance(x[0], ResultChunk) and x[0].part == part]
        assert got == pieces_of(one.header, one.bytes)


def test_a_peer_that_is_too_slow_is_told_of_and_what_is_over_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbound_module, "STREAMS_MAX", 3)
    outbound = filled(*(a_slice(1, part=part) for part in range(3)))
    assert not outbound.add(Making(1).make_all().stream)
    assert [type(chunk) for chunk, _ in frames(outbound)] == [ContributionChunk] * 3
    assert outbound.add(a_slice(1))


def test_cells_that_a_joiner_wants_now_take_the_place_of_those_before() -> None:
    outbound = filled(Cells(5), a_slice(1))
    outbound.replace(Cells.rank, Cells(2))
    assert [type(chunk) for chunk, _ in frames(outbound)] == [ContributionChunk, *[StateChunk] * 2]
    outbound.add(Cells(3))
    outbound.replace(Cells.rank, None)
    assert frames(outbound) == []


def test_what_is_nothing_is_not_kept() -> None:
    assert filled(Cells(0))._streams == []


# Over -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("released", [False, True])
def test_what_ends_with_a_commit_and_what_with_a_release(sent: int, released: bool) -> None:
    """Contributions and torn results are needed by nobody then; whole ones by who lags."""
    stamps = [replace(STAMP, round=round_) for round_ in (4, 5, 6)]
    stamps.append(replace(STAMP, fragment=1, round=4))
    streams: dict[tuple[str, int, int], Stream] = {}
    for stamp in stamps:
        torn = Making(THREE, stamp=stamp)
        for index in range(2):
            torn.make(index)
        of = (stamp.fragment, stamp.round)
        streams["slice", *of] = a_slice(THREE, stamp=stamp)
        streams["whole", *of] = Making(THREE, stamp=stamp).make_all().stream
        streams["torn", *of] = torn.stream
    streams["state", 0, 0] = Cells(2)
    outbound = filled(*streams.values())
    for stream in streams.values():
        for _ in range(sent):  # Under way or not is no difference.
            stream.next()
    outbound.drop(0, 5, released=released)
    left = {name for name, stream in streams.items() if stream in outbound._streams}
    gone = {(kind, 0, round_) for kind in ("slice", "torn") for round_ in (4, 5)}
    gone |= {("whole", 0, round_) for round_ in (4, 5) if released}
    assert set(streams) - left == gone
