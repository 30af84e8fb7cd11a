"""How a state is asked for and taken; and what that means for the rounds meanwhile."""

import pytest

from protocols.interface import commands as c
from protocols.interface.commands import ExpectState, Send, Verdict
from protocols.messages import log_entries as e
from protocols.messages.peer import FetchLeaves, FetchState
from protocols.rounds.fragment_rounds import KEEP_ROUNDS
from protocols.state.run_state import KEEP_COMMITS
from protocols.transfer.catch_up import CatchUp
from protocols.types.ids import Version
from tests.protocols.fragment import Peer, only, training
from tests.protocols.scenes import BORDERS, START, A, B, C, info, state_digest

VERSIONS = (Version(0, 3, state_digest(3)), Version(1, 2, state_digest(2)))
FOR_B = e.Cut(info(B, 1), (A, C), VERSIONS)
"""A and C give B its state: round 3 of fragment 0, round 2 of fragment 1."""
ROOTS = ("0" * 64, "1" * 64)
NEAR = frozenset((A,))


def granted(catchup: CatchUp | None = None) -> CatchUp:
    catchup = catchup or CatchUp("new")
    said = catchup.granted(7, FOR_B, now=0.0, patience_s=60.0)
    assert said == [ExpectState(7, (A, C), VERSIONS)]
    return catchup


# Taking ---------------------------------------------------------------------------------------


def test_until_the_last_fragment_is_here_a_state_is_needed() -> None:
    catchup = CatchUp("new")
    assert catchup.needed
    granted(catchup)
    assert (catchup.needed, catchup.asking, catchup.complete) == (True, "", 0)
    catchup.arrived(0)
    assert catchup.needed
    assert catchup.expected(7, 0) is None, "it is here already"
    catchup.arrived(1)
    assert (catchup.needed, catchup.complete) == (False, 7)


def test_only_what_the_present_cut_names_is_expected() -> None:
    catchup = granted()
    assert catchup.expected(7, 1) == VERSIONS[1]
    assert catchup.expected(6, 1) is None
    assert catchup.expected(7, 2) is None


def test_donors_are_asked_when_the_log_has_said_the_roots() -> None:
    catchup = granted()
    assert catchup.request(0.0, NEAR, ()) == []
    assert catchup.request(0.0, NEAR, ROOTS) == [
        Send(A, FetchLeaves(7, 0, 0)),
        Send(A, FetchLeaves(7, 1, 0)),
    ]
    assert catchup.request(0.0, NEAR, ROOTS) == []


def test_donors_hear_once_that_everything_is_here() -> None:
    catchup = granted()
    for fragment in (0, 1):
        catchup.arrived(fragment)
    assert catchup.request(0.0, NEAR, ROOTS) == [Send(A, FetchState(7, ()))]
    assert catchup.request(0.0, NEAR, ROOTS) == []
    assert catchup.request(0.0, NEAR | {C}, ROOTS) == [Send(C, FetchState(7, ()))]


def test_a_state_that_does_not_come_is_late() -> None:
    catchup = granted()
    assert catchup.deadline == 60.0
    assert catchup.failed(59.9) == ""
    assert catchup.failed(60.0) == "the transfer took too long"
    catchup.ask("it took too long", 60.0)
    assert catchup.failed(99.0) == ""
    assert catchup.deadline == float("inf")


def test_people_see_since_when_a_state_is_needed() -> None:
    catchup = CatchUp("")
    catchup.ask("diverged", 5.0)
    catchup.ask("the donors are gone", 9.0)
    assert catchup.since == 5.0


def test_a_cut_whose_donors_are_all_gone_brings_nothing() -> None:
    catchup = granted()
    assert catchup.transfer is not None
    catchup.transfer.gone(C)
    assert catchup.failed(0.0) == ""
    catchup.transfer.gone(A)
    assert catchup.failed(0.0) == "the donors are gone"


# What a transfer means for rounds -----------------------------------------------------------


def skipping(rounds: int, *, counted: bool = True) -> Peer:
    """B contributed to round 1, then missed that many rounds."""
    peer = training()
    peer.contributes()
    if not counted:
        peer.reads(e.Attempt(1, 0, 1, 1, (A, C), (A, A, C), "b is slow"))
    peer.commits(*((A, B, C) if counted else (A, C)))
    for _ in range(rounds - 1):
        peer.commits(A, B, C)
    return peer


def test_a_transfer_moves_waiting_ranks_along() -> None:
    kept = skipping(2, counted=False).rounds.state_received(2, state_digest(2))
    assert only(c.Resume, kept) == [c.Resume(0, 2, "rebase", first=False, finish=False)]
    counted = skipping(2).rounds.state_received(2, state_digest(2))
    assert only(c.Resume, counted) == [c.Resume(0, 2, "counted", first=False, finish=False)]


@pytest.mark.parametrize(("rounds", "kind"), [(4, "counted"), (5, "anew")])
def test_work_on_a_model_of_long_ago_is_not_kept_beside_what_was_counted(
    rounds: int, kind: Verdict
) -> None:
    """Seed 222: ranks that train while a result is under way kept steps of five rounds before."""
    peer = skipping(rounds)
    assert peer.run_state.commit(0, 1) is not None, "it is known that the work was counted"
    made = peer.rounds.state_received(rounds, state_digest(rounds))
    assert only(c.Resume, made) == [c.Resume(0, rounds, kind, first=False, finish=False)]


def test_work_that_a_forgotten_commit_may_have_counted_is_not_kept() -> None:
    """Else it would be counted a second time."""
    rounds = KEEP_COMMITS + 2
    peer = skipping(rounds)
    assert peer.run_state.commit(0, 1) is None
    made = peer.rounds.state_received(rounds, state_digest(rounds))
    assert only(c.Resume, made) == [c.Resume(0, rounds, "anew", first=False, finish=False)]


def test_a_contribution_to_a_round_after_the_cut_waits_for_its_commit() -> None:
    """Resumed too early, the same work would be contributed again and counted twice."""
    peer = training()
    peer.goes_through(A, C)
    peer.contributes(2)
    assert only(c.Resume, peer.rounds.state_received(1, state_digest(1))) == []
    peer.gets_results(A, B, C, round_=2)
    peer.commits(A, B, C)
    peer.does()
    made = peer.rounds.applied(2, state_digest(2))
    assert only(c.Resume, made) == [c.Resume(0, 2, "counted", first=False, finish=False)]


def test_ranks_that_train_are_not_disturbed_by_a_transfer() -> None:
    peer = training()
    peer.commits(A, B, C)
    made = peer.rounds.state_received(1, state_digest(1))
    assert only(c.Resume, made) == []
    assert peer.rounds.version == 1


def test_a_diverged_peer_goes_back_to_the_cut_and_on_from_there() -> None:
    """What it needs for that is kept however long the transfer takes."""
    peer = training()
    peer.rounds.awaited = 0
    for _ in range(KEEP_COMMITS - 1):
        peer.goes_through(A, C)
    peer.rounds.state_received(0, START)
    for round_ in range(1, KEEP_COMMITS):
        stamp = peer.stamp(round_, attempt=1)
        assert c.ApplyRound(stamp, BORDERS, counted=False) in peer.does()
        peer.rounds.applied(round_, state_digest(round_))
    assert peer.rounds.awaited is None
    assert len(peer.rounds.exchange.held.results) == KEEP_ROUNDS


def test_results_do_not_pile_up_while_a_state_is_long_in_coming() -> None:
    peer = Peer()
    peer.rounds.version = -1
    released: list[c.Command] = []
    for round_ in range(1, 40):
        peer.gets_results(A, B, C, round_=round_)
        peer.commits(A, B, C)
        released += peer.does()
        assert len(peer.rounds.exchange.held.results) <= KEEP_COMMITS
    assert released[-1] == c.ReleaseRound(0, 39 - KEEP_COMMITS), "the shell drops them as well"


def test_without_a_state_there_is_nothing_to_do() -> None:
    peer = Peer()
    peer.rounds.version = -1
    assert peer.does() == []
    assert not peer.rounds.behind
    assert not peer.rounds.finished
