"""How a state is asked for, given and taken; and what that means for the rounds meanwhile."""

from protocols import commands as c
from protocols import entries as e
from protocols.catchup import HOLD_S, Catchup
from protocols.commands import ExpectState, Send, ServeState
from protocols.ids import PeerId, Version
from protocols.membership import KEEP_COMMITS
from protocols.messages import FetchState, NoState
from protocols.rounds import KEEP_ROUNDS
from tests.protocols.fragment import Peer, only, training
from tests.protocols.scenes import BORDERS, START, A, B, C, info, state_digest

VERSIONS = (Version(0, 3, state_digest(3)), Version(1, 2, state_digest(2)))
FOR_B = e.Cut(info(B, 1), A, VERSIONS)
"""A gives B its state: round 3 of fragment 0, round 2 of fragment 1."""
FAR = frozenset[PeerId]()
NEAR = frozenset((A,))


def granted() -> Catchup:
    catchup = Catchup("new")
    assert catchup.granted(7, FOR_B, 60.0) == [ExpectState(A, 7, VERSIONS)]
    return catchup


def owing(*, now: float = 0.0) -> Catchup:
    catchup = Catchup("")
    catchup.owe(7, FOR_B, now)
    return catchup


# Taking ---------------------------------------------------------------------------------------


def test_until_the_last_fragment_is_here_a_state_is_needed() -> None:
    catchup = Catchup("new")
    assert catchup.needed
    catchup.granted(7, FOR_B, 60.0)
    assert (catchup.needed, catchup.asking, catchup.complete) == (True, "", 0)
    catchup.arrived(0)
    assert catchup.needed
    assert catchup.expected(A, 7, 0) is None, "it is here already"
    catchup.arrived(1)
    assert (catchup.needed, catchup.complete) == (False, 7)


def test_only_the_donor_of_the_present_cut_is_listened_to() -> None:
    catchup = granted()
    assert catchup.expected(A, 7, 1) == VERSIONS[1]
    assert catchup.expected(C, 7, 1) is None
    assert catchup.expected(A, 6, 1) is None
    assert catchup.expected(A, 7, 2) is None


def test_the_donor_is_asked_once_per_connection() -> None:
    catchup = granted()
    assert catchup.request(FAR) == []
    assert catchup.request(NEAR) == [Send(A, FetchState(7))]
    assert catchup.request(NEAR) == []
    catchup.disconnected(C)
    assert catchup.request(NEAR) == []
    catchup.disconnected(A)
    assert catchup.request(NEAR) == [Send(A, FetchState(7))], "what was under way is lost"


def test_a_state_that_does_not_come_is_late() -> None:
    catchup = granted()
    assert catchup.deadline == 60.0
    assert not catchup.is_late(59.9)
    assert catchup.is_late(60.0)
    catchup.ask("it took too long", 60.0)
    assert not catchup.is_late(99.0)
    assert catchup.deadline == float("inf")


def test_people_see_since_when_a_state_is_needed() -> None:
    catchup = Catchup("")
    catchup.ask("diverged", 5.0)
    catchup.ask("the donor is gone", 9.0)
    assert catchup.since == 5.0


def test_a_lost_donor_is_noticed() -> None:
    catchup = granted()
    assert not catchup.gone(C)
    assert catchup.gone(A)
    assert not Catchup("new").gone(A)


# Giving ---------------------------------------------------------------------------------------


def test_a_donor_gives_what_it_holds_when_it_is_asked() -> None:
    catchup = owing()
    assert catchup.serve([3, 2], 7, 0.0) == []
    catchup.wanted(B, 7)
    assert catchup.serve([3, 2], 7, 0.0) == [ServeState(B, 7, VERSIONS)]
    assert catchup.serve([3, 2], 7, 0.0) == []
    catchup.wanted(B, 7)
    assert catchup.serve([3, 2], 7, 0.0) != [], "its connection broke, and it asks again"


def test_who_asks_before_the_donor_has_read_the_cut_waits() -> None:
    catchup = Catchup("")
    catchup.wanted(B, 7)
    assert catchup.serve([3, 2], 6, 0.0) == []
    catchup.owe(7, FOR_B, 0.0)
    assert catchup.serve([3, 2], 7, 0.0) == [ServeState(B, 7, VERSIONS)]


def test_a_donor_that_went_on_says_so_at_once() -> None:
    """Else the joiner would wait until the transfer is late."""
    catchup = owing()
    catchup.wanted(B, 7)
    assert catchup.serve([4, 2], 7, 0.0) == [Send(B, NoState(7))]


def test_a_donor_gives_nothing_while_its_memory_changes() -> None:
    """Three joiners accused an honest donor: each had got the next round's state."""
    catchup = owing()
    catchup.wanted(B, 7)
    assert catchup.serve([3, None], 7, 0.0) == []
    assert catchup.serve([None, 2], 7, 0.0) == []
    assert catchup.serve([4, 2], 7, 0.0) == [Send(B, NoState(7))]


def test_a_donor_that_is_about_to_apply_what_the_cut_names_does_it_first() -> None:
    """With several fragments in flight one of them nearly always is."""
    catchup = owing()
    catchup.wanted(B, 7)
    assert catchup.serve([3, 1], 7, 0.0) == []
    assert catchup.stays(0, 3), "the other fragment waits for it"
    assert catchup.serve([3, 2], 7, 0.1) == [ServeState(B, 7, VERSIONS)]
    late = owing()
    late.wanted(B, 7)
    assert late.serve([3, 1], 7, HOLD_S) == [Send(B, NoState(7))]
    mixed = owing()
    mixed.wanted(B, 7)
    assert mixed.serve([4, 1], 7, 0.0) == [Send(B, NoState(7))]


def test_nobody_gets_what_no_cut_names() -> None:
    catchup = owing()
    catchup.wanted(C, 7)
    assert catchup.serve([3, 2], 7, 0.0) == [Send(C, NoState(7))]
    catchup.wanted(B, 6)
    assert catchup.serve([3, 2], 7, 0.0) == [Send(B, NoState(6))], "an earlier cut"
    catchup.gone(B)
    catchup.wanted(B, 7)
    assert catchup.serve([3, 2], 7, 0.0) == [Send(B, NoState(7))]


def test_a_donor_stays_where_the_cut_is_until_it_is_asked_but_not_for_long() -> None:
    """No joiner could be served by somebody whose rounds are quicker than its connection."""
    catchup = owing(now=5.0)
    assert catchup.stays(0, 3)
    assert catchup.stays(1, 2)
    assert not catchup.stays(1, 1), "the last round before the cut is to be applied"
    assert catchup.deadline == 5.0 + HOLD_S
    catchup.serve([3, 2], 7, 5.0 + HOLD_S)
    assert not catchup.stays(0, 3)
    assert catchup.deadline == float("inf")
    asked = owing()
    asked.wanted(B, 7)
    asked.serve([3, 2], 7, 0.1)
    assert not asked.stays(0, 3)


def test_a_request_dies_with_its_connection() -> None:
    catchup = Catchup("")
    catchup.wanted(B, 7)
    catchup.disconnected(B)
    catchup.owe(7, FOR_B, 0.0)
    assert catchup.serve([3, 2], 7, 0.0) == []


# What a transfer means for rounds -----------------------------------------------------------


def skipping(rounds: int, *, counted: bool = True) -> Peer:
    """B contributed to round 1, then missed that many rounds."""
    peer = training()
    peer.contributes()
    if not counted:
        peer.reads(e.Attempt(1, 0, 0, 1, 1, (A, C), (A, A, C), "b is slow"))
    peer.commits(*((A, B, C) if counted else (A, C)))
    for _ in range(rounds - 1):
        peer.commits(A, B, C)
    return peer


def test_a_transfer_moves_waiting_ranks_along() -> None:
    kept = skipping(2, counted=False).rounds.state_received(2, state_digest(2))
    assert only(c.Resume, kept) == [c.Resume(0, 2, "rebase", first=False, finish=False)]
    counted = skipping(2).rounds.state_received(2, state_digest(2))
    assert only(c.Resume, counted) == [c.Resume(0, 2, "counted", first=False, finish=False)]


def test_work_that_a_forgotten_commit_may_have_counted_is_not_kept() -> None:
    """Else it would be counted a second time."""
    rounds = KEEP_COMMITS + 2
    peer = skipping(rounds)
    assert peer.members.commit(0, 1) is None
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
    assert len(peer.rounds.held.results) == KEEP_ROUNDS


def test_results_do_not_pile_up_while_a_state_is_long_in_coming() -> None:
    peer = Peer()
    peer.rounds.version = -1
    released: list[c.Command] = []
    for round_ in range(1, 40):
        peer.gets_results(A, B, C, round_=round_)
        peer.commits(A, B, C)
        released += peer.does()
        assert len(peer.rounds.held.results) <= KEEP_COMMITS
    assert released[-1] == c.ReleaseRound(0, 39 - KEEP_COMMITS), "the shell drops them as well"


def test_without_a_state_there_is_nothing_to_do() -> None:
    peer = Peer()
    peer.rounds.version = -1
    assert peer.does() == []
    assert not peer.rounds.behind
    assert not peer.rounds.finished
