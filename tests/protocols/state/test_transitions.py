"""A run may see any number of peers: who was gone longest is forgotten, and a snapshot holds."""

import pytest

from protocols.messages import log_entries as e
from protocols.state import run_state as replicated
from protocols.state import transitions
from protocols.state.run_state import RunState
from protocols.types import limits
from protocols.types.errors import LogError
from protocols.types.ids import PeerId, Version
from protocols.wire.codec import decode_image, encode_image
from tests.protocols.scenes import START, A, B, C, D, contributor, info, log_of, members_of, run

BEGUN = (run(), e.Member(info(A)), e.Elected(A))


def cut(peer: PeerId, slot: int) -> e.Cut:
    return e.Cut(info(peer, slot), (A,), (Version(0, 0, START),))


def read(*bodies: e.Entry) -> RunState:
    return members_of(log_of(*BEGUN, *bodies))


def visitor(number: int) -> PeerId:
    return PeerId(f"visitor.{number:08x}")


@pytest.fixture
def three_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "SEATS_MAX", 3)


@pytest.mark.usefixtures("three_seats")
def test_who_was_gone_longest_is_forgotten_and_nobody_who_is_there() -> None:
    run_state = read(cut(B, 1), cut(C, 2), e.Lost(C, "x"), e.Lost(B, "x"))
    assert list(run_state.seats) == [A, B, C]
    run_state = read(cut(B, 1), cut(C, 2), e.Lost(C, "x"), e.Lost(B, "x"), cut(D, 3))
    assert list(run_state.seats) == [A, C, D], "A came first, and is there"
    assert run_state.returned.keys() == {A, C, D}
    assert run_state.losses == {C: 1}


@pytest.mark.usefixtures("three_seats")
def test_who_came_again_is_remembered_longer() -> None:
    run_state = read(cut(B, 1), cut(C, 2), e.Lost(C, "x"), cut(B, 1), e.Lost(B, "x"), cut(D, 3))
    assert list(run_state.seats) == [A, B, D]
    assert run_state.slot_of(B) == 1
    assert run_state.slot_of(C) == 4, "a number of its own, not its old one"


def test_after_more_peers_than_a_snapshot_can_name_it_can_still_be_read() -> None:
    run_state = read()
    log = log_of(*BEGUN)
    for number in range(limits.SEATS_MAX + 5):
        for body in (cut(visitor(number), 1 + number), e.Lost(visitor(number), "x")):
            transitions.apply(run_state, log.append(body, term=1))
    again = RunState()
    transitions.become(again, decode_image(encode_image(transitions.image_of(run_state))))
    assert again == run_state
    assert A in run_state.seats
    assert run_state.slot_of(visitor(0)) == limits.SEATS_MAX + 6


def test_nobody_is_let_in_whom_no_message_could_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "PEERS_MAX", 2)
    run_state = read(cut(B, 1), cut(B, 1))
    assert (run_state.has_room(B), run_state.has_room(C)) == (
        True,
        False,
    )
    with pytest.raises(LogError, match="but the run is full"):
        read(cut(B, 1), cut(C, 2))
    assert read(cut(B, 1), e.Lost(B, "x"), cut(C, 2)).receivers.keys() == {A, C}


@pytest.mark.parametrize(("round_", "left"), [(7, {B: 2, C: 2}), (8, {B: 1, C: 2})])
def test_a_loss_is_forgiven_to_who_is_counted_again(round_: int, left: dict[PeerId, int]) -> None:
    counted = e.Commit(1, 0, round_, 0, (contributor(A), contributor(B)), (0, 1), "ab" * 16, "")
    assert transitions.forgiven({B: 2, C: 2}, counted) == left
