"""Getting in, being able, coming back: what a follower does and says about itself."""

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.transfer import CellSpan
from protocols.participant.training_start import LINKS_S, PACE_S
from protocols.transfer.donor import root_of
from protocols.transfer.receiver import LIES
from protocols.types.ids import Version, digest_text
from tests.protocols.scenes import (
    RULES,
    START,
    A,
    B,
    C,
    D,
    Follower,
    commit,
    follower,
    info,
    join,
    state_digest,
    told,
    view,
)
from tests.protocols.stepping import stepper

LEAF = bytes(range(32))
"""Of the only cell of a state."""
ROOT = root_of(LEAF)


def joining() -> Follower:
    """B has read of the run, was accepted by its shell and has asked for a cut."""
    scene = Follower(B)
    scene.begins()
    return scene


# Joining --------------------------------------------------------------------------------------


def test_a_joiner_reads_the_log_before_it_asks_for_a_cut() -> None:
    scene = Follower(B)
    scene.meets(A)
    assert told(scene) == [m.ReadLog(0)]
    scene = Follower(B)
    scene.begins()
    assert told(scene) == [join(B, "new")]


def test_a_cut_is_in_the_log_before_the_state_is_asked_for() -> None:
    scene = joining()
    index = scene.gets_cut()
    assert scene.one(c.ExpectState) == c.ExpectState(index, (A,), (Version(0, 0, START),))
    assert told(scene) == []
    scene.reads(e.Roots(B, index, (ROOT,)))
    assert told(scene) == [m.FetchLeaves(index, 0, 0)]
    scene.hears(A, m.Leaves(index, 0, 0, 1, LEAF))
    assert told(scene) == [m.FetchState(index, (CellSpan(0, 0, 1),))]
    scene.on(v.CellReceived(A, index, 0, 0, LEAF))
    assert scene.said == [c.KeepCell(A, index, 0, 0), c.CheckState(index, 0)]
    scene.gets_state()
    assert scene.one(c.AdoptState) == c.AdoptState(index, 0, 0)
    assert scene.caught_up(index, ROOT) in told(scene)


def test_whoever_was_there_before_is_dialled() -> None:
    scene = joining()
    scene.reads(e.Cut(info(C, 1), (A,), (Version(0, 0, START),)), e.Member(info(C, 1)))
    scene.gets_cut(slot=2)
    assert scene.all(c.Connect) == [c.Connect(C, "c:1")]


def test_a_donor_that_is_not_connected_yet_is_asked_when_it_is() -> None:
    scene = joining()
    scene.reads(e.Cut(info(C, 1), (A,), (Version(0, 0, START),)), e.Member(info(C, 1)))
    index = scene.gets_cut(donor=C, slot=2)
    scene.reads(e.Roots(B, index, (ROOT,)))
    assert scene.sent(m.FetchLeaves) == []
    scene.meets(C)
    assert scene.sent(m.FetchLeaves) == [(C, m.FetchLeaves(index, 0, 0))]


def test_a_state_that_does_not_match_is_not_taken_and_another_is_asked_for() -> None:
    scene = joining()
    scene.gets_cut()
    scene.gets_state(digest=digest_text("a lie"))
    assert scene.all(c.AdoptState) == []
    assert scene.notes("transfer") != []
    assert told(scene) == [join(B, "the roots were not of the cut's state", against=A)]


def test_a_donor_that_lies_is_accused_when_no_other_is_left() -> None:
    scene = joining()
    index = scene.gets_cut()
    scene.reads(e.Roots(B, index, (ROOT,)))
    scene.hears(A, m.Leaves(index, 0, 0, 1, LEAF[::-1]))
    (note,) = scene.notes("transfer")
    assert A in note
    assert told(scene) == [join(B, LIES, against=A)]


def test_a_donor_whose_own_state_is_damaged_gives_nothing_and_asks_for_another() -> None:
    scene = follower(B)
    scene.reads(e.Cut(info(C, 2), (A, B), (Version(0, 0, START),)))
    index = scene.log.last_index
    assert scene.one(c.CopyState) == c.CopyState(index, 0, 0)
    scene.on(v.StateCopied(index, 0, 1))
    assert scene.one(c.HashState) == c.HashState(index, 0)
    scene.on(v.StateHashed(index, 0, digest_text("rot"), LEAF))
    assert scene.sent(m.NoState) == [(C, m.NoState(index))]
    assert m.CutRoots(C, index, ()) in told(scene), "the leader waits for nothing more of it"
    assert scene.notes("diverged") != []
    assert join(B, "our state is damaged", against=B) in told(scene)


def test_who_knows_that_its_state_is_damaged_says_that_it_has_one_when_it_got_another() -> None:
    """Seed 3599567348: two such were each other's donors for ever."""
    scene = follower(B)
    scene.reads(e.Cut(info(C, 2), (A, B), (Version(0, 0, START),)))
    given = scene.log.last_index
    scene.on(v.StateCopied(given, 0, 1))
    scene.on(v.StateHashed(given, 0, digest_text("rot"), LEAF))
    scene.gets_cut()
    assert scene.sent(m.Have) == [], "though leaders hear all of who is let in again"
    scene.gets_state()
    lineage = scene.core.run_state.lineage
    assert scene.sent(m.Have) == [(A, m.Have(lineage, 0, 0, START))]


def test_a_donor_that_finds_its_copy_damaged_says_that_it_has_none_until_it_gets_another() -> None:
    scene = stepper(C)
    scene.reads(e.Cut(info(D, 3), (A, B), (Version(0, 0, START),)))
    given, lineage = scene.log.last_index, scene.core.run_state.lineage
    scene.on(v.StateCopied(given, 0, 1))
    scene.on(v.StateHashed(given, 0, digest_text("rot"), LEAF))
    assert scene.told(m.Have) == [m.Have(lineage, 0, 0, "")]
    index = scene.gets_cut()
    assert m.Have(lineage, 0, 0, START) not in scene.told(m.Have)
    scene.on(v.StateReceived(index, 0, 0, START))
    assert scene.told(m.Have) == [m.Have(lineage, 0, 0, START)]


def test_a_donor_says_its_roots_to_each_leader() -> None:
    scene = follower(B)
    scene.reads(e.Cut(info(C, 2), (A, B), (Version(0, 0, START),)))
    index = scene.log.last_index
    scene.on(v.StateCopied(index, 0, 1))
    scene.on(v.StateHashed(index, 0, START, LEAF))
    report = m.CutRoots(C, index, (ROOT,))
    assert told(scene) == [report]
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.meets(A)
    assert report in told(scene)
    scene.reads(e.Member(info(C, 2)))
    assert scene.one(c.ReleaseCopy) == c.ReleaseCopy(C, index)
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.meets(A)
    assert report not in told(scene)


@pytest.mark.parametrize("fragment", [1, 65535])
def test_a_state_of_no_fragment_changes_nothing(fragment: int) -> None:
    scene = joining()
    index = scene.gets_cut()
    assert scene.on(v.StateReceived(index, fragment, 0, START)) == []


def test_when_the_donor_is_lost_another_cut_is_asked_for() -> None:
    scene = joining()
    scene.reads(e.Cut(info(C, 1), (A,), (Version(0, 0, START),)), e.Member(info(C, 1)))
    scene.gets_cut(donor=C, slot=2)
    scene.reads(e.Lost(C, "silent"))
    assert told(scene) == [join(B, "the donors are gone")]


def test_when_the_donor_went_on_another_cut_is_asked_for() -> None:
    scene = joining()
    index = scene.gets_cut()
    assert scene.hears(A, m.NoState(index - 1)) == [], "an earlier cut"
    assert scene.hears(C, m.NoState(index)) == [], "another peer"
    scene.hears(A, m.NoState(index))
    assert told(scene) == [join(B, "the donors have moved on to a later state")]


def test_a_transfer_that_takes_too_long_is_asked_for_again() -> None:
    scene = joining()
    scene.gets_cut()
    asked: list[m.Control] = []
    for _ in range(int(RULES.transfer_timeout_s) + 1):
        scene.hears(A, m.Heartbeat())
        scene.said = scene.waits(1.0)
        asked += [x for x in told(scene) if isinstance(x, m.Join)]
    assert asked == [join(B, "the transfer took too long")]


def test_a_broken_connection_costs_no_second_cut_and_nothing_that_came() -> None:
    scene = joining()
    index, leaves = scene.gets_cut(), LEAF + LEAF[::-1]
    scene.reads(e.Roots(B, index, (root_of(leaves),)))
    scene.hears(A, m.Leaves(index, 0, 0, 2, leaves))
    scene.on(v.CellReceived(A, index, 0, 0, LEAF))
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.meets(A)
    assert told(scene) == [m.FetchState(index, (CellSpan(0, 1, 2),))]


def test_caught_up_is_said_again_if_it_may_have_been_lost() -> None:
    """Else the leader would wait for it for ever."""
    scene = joining()
    index = scene.gets_cut()
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.gets_state()
    assert told(scene) == []
    scene.meets(A)
    assert told(scene) == [scene.caught_up(index), m.FetchState(index, ())]
    scene.reads(e.Member(info(B, 1)))
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.meets(A)
    assert scene.caught_up(index) not in told(scene)


def test_a_restarted_peer_takes_no_part_in_what_its_earlier_life_did() -> None:
    scene = Follower(B, incarnation=2)
    scene.meets(A)
    said = scene.reads(*(entry.body for entry in follower(B).log.entries))
    states = [x for x in said if isinstance(x, c.ExpectState)]
    assert states == [], "that state went to the other life"
    assert not scene.core.member_status.is_member
    scene.on(v.RunAccepted(RULES))
    assert told(scene) == [join(B, "restarted", incarnation=2)]
    scene.reads(e.Lost(B, "restarted"))
    assert told(scene) == []


# Being able -----------------------------------------------------------------------------------


def test_a_member_says_whether_it_is_able() -> None:
    scene = joining()
    scene.gets_cut()
    scene.gets_state()
    scene.reads(e.Member(info(B, 1)))
    assert told(scene) == [m.NotReadyToTrain("its ranks are not ready")]
    scene.on(v.TrainersReady())
    assert told(scene) == [m.ReadyToTrain()]


def test_ranks_start_with_the_first_view() -> None:
    scene = follower(B)
    assert scene.one(c.Resume) == c.Resume(0, 0, "anew", first=False, finish=False)


def training_joiner() -> Follower:
    """A joiner into a running run, with its state and ranks."""
    scene = joining()
    scene.reads(view(1, A))
    scene.gets_cut()
    scene.gets_state()
    scene.reads(e.Member(info(B, 1)))
    scene.on(v.TrainersReady())
    return scene


def test_a_joiner_into_a_running_run_is_able_after_some_steps() -> None:
    scene = training_joiner()
    assert scene.one(c.Resume) == c.Resume(0, 0, "anew", first=True, finish=False)
    assert told(scene) == []
    scene.on(v.TrainersAble())
    assert told(scene) == [m.ReadyToTrain()]


def returning() -> Follower:
    """A member of a roster of three; its ranks were replaced, and its link to C is down."""
    scene = follower(B, C)
    scene.on(v.TrainersLost("crash"))
    scene.on(v.PeerDisconnected(C, "end of stream"))
    scene.on(v.TrainersReady())
    scene.encode(1)
    return scene


def test_a_peer_that_is_not_connected_with_the_roster_is_not_waited_for() -> None:
    """Seen: the others waited for slices and results that it could not send or get."""
    scene = returning()
    assert m.ReadyToTrain() not in told(scene)
    scene.meets(C)
    assert m.ReadyToTrain() in told(scene)


def test_a_link_that_cannot_be_made_is_not_waited_for_long() -> None:
    """The leader then chooses which peers to exclude."""
    scene = returning()
    scene.said = scene.waits(LINKS_S)
    assert m.ReadyToTrain() in told(scene)


def test_a_joiner_that_lacks_a_result_is_not_waited_for() -> None:
    scene = training_joiner()
    scene.reads(commit(scene, 1, A))
    scene.on(v.TrainersAble())
    assert m.ReadyToTrain() not in told(scene)
    scene.said = scene.waits(PACE_S)
    assert m.ReadyToTrain() in told(scene), "its line may be too slow to get each result in time"


def test_crashed_ranks_are_not_waited_for() -> None:
    scene = follower(B)
    scene.on(v.TrainersLost("out of\nmemory"))
    assert told(scene) == [m.NotReadyToTrain("out of memory")]
    scene.on(v.TrainersReady())
    assert scene.all(c.Resume) != []
    assert told(scene) == []
    scene.encode(1)
    assert m.ReadyToTrain() in told(scene)


def test_stalled_ranks_are_not_waited_for_until_they_make_steps_again() -> None:
    scene = follower(B)
    scene.on(v.TrainersStalled("no step for\n3 s"))
    assert told(scene) == [m.NotReadyToTrain("no step for 3 s")]
    scene.on(v.TrainersMoving())
    assert told(scene) == [m.ReadyToTrain()]


def test_ranks_that_are_lost_after_a_stall_have_not_stalled() -> None:
    scene = follower(B)
    scene.on(v.TrainersStalled("no step"))
    scene.on(v.TrainersLost("stopped by a signal"))
    assert told(scene)[-1] == m.NotReadyToTrain("stopped by a signal")
    scene.on(v.TrainersReady())
    scene.encode(1)
    assert m.ReadyToTrain() in told(scene)


def test_a_joiner_that_stalls_is_not_able_sooner() -> None:
    scene = training_joiner()
    scene.on(v.TrainersStalled("no step"))
    scene.on(v.TrainersMoving())
    assert m.ReadyToTrain() not in told(scene)


def test_what_the_leader_may_have_missed_is_said_again() -> None:
    """Else it would wait in each round for ranks that are gone."""
    scene = follower(B)
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.on(v.TrainersLost("crash"))
    assert told(scene) == []
    scene.meets(A)
    assert m.NotReadyToTrain("crash") in told(scene)


def test_a_member_without_its_state_is_not_able_until_its_next_contribution() -> None:
    """Said too early, it was void when the cut came, and never said again."""
    scene = follower(B, C)
    diverge(scene)
    assert told(scene)[0] == m.NotReadyToTrain("its ranks are not ready")
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.on(v.ContributionReady(0, 100, 10))
    scene.meets(A)
    assert m.ReadyToTrain() not in told(scene)
    scene.gets_cut(1, slot=2)
    scene.gets_state(1)
    assert m.ReadyToTrain() in told(scene), "its ranks wait with a contribution"


# Diverging and coming back --------------------------------------------------------------------


def diverge(scene: Follower) -> None:
    """Round 1 is committed with everybody's state before it but ours."""
    scene.reads(commit(scene, 1, A, B, C, state=digest_text("another state")))


def test_a_wrong_state_is_named_and_healed_by_a_new_cut() -> None:
    scene = follower(B, C)
    diverge(scene)
    assert scene.notes("diverged") == ["our state at round 0 is not the majority's"]
    assert join(B, "diverged") in told(scene)
    scene.reads(commit(scene, 2, A, B, C, state=digest_text("and another")))
    assert told(scene) == [], "asking again would start the transfer again"
    scene.gets_cut(2, slot=2)
    scene.gets_state(2)
    assert scene.core.rounds[0].version == 2
    assert scene.core.rounds[0].state_digest == state_digest(2)
    scene.reads(commit(scene, 3, A, B, C, state=state_digest(2)))
    assert scene.notes("diverged") == []


def test_a_round_that_is_applied_late_is_checked_against_the_next_commit() -> None:
    scene = follower(B, C)
    scene.reads(commit(scene, 1, A, B, C))
    scene.reads(commit(scene, 2, A, B, C, state=digest_text("another state")))
    stamp = scene.stamp(1)
    for part, owner in enumerate(scene.core.run_state.views[-1].parts[0].owners):
        scene.result(stamp, part, A if owner == B else owner, A, B, C)
    assert scene.all(c.ApplyRound) != []
    scene.applied(1)
    assert scene.notes("diverged") != []


def test_whoever_is_declared_lost_and_lives_asks_to_come_back() -> None:
    scene = follower(B, C)
    scene.encode(1)
    scene.reads(e.Lost(B, "silent for 10.0 s"))
    assert told(scene) == [join(B, "declared lost")]
    scene.gets_cut(slot=2)
    scene.gets_state()
    assert scene.all(c.Resume) == [], "round 1 may still count its contribution"
    scene.reads(e.Member(info(B, 2)))
    assert m.ReadyToTrain() in told(scene)


def test_a_state_that_comes_while_a_round_is_applied_waits_for_it() -> None:
    """Else the step would be made on the new state, or its answer taken for the newer one."""
    scene = follower(B, C)
    scene.reads(e.Lost(B, "silent"))
    scene.gets_cut(slot=2)
    scene.reads(commit(scene, 1, A, B, C))
    for part in range(3):
        scene.result(scene.stamp(1), part, A, A, B, C)
    assert scene.all(c.ApplyRound) != []
    scene.gets_state()
    assert scene.all(c.AdoptState) == []
    scene.applied(1)
    assert scene.all(c.AdoptState) != []
    assert scene.core.rounds[0].version == 0, "and round 1 again, from the cut on"
    assert scene.all(c.ApplyRound) != []


# Going ----------------------------------------------------------------------------------------


def test_leaving_is_said_again_if_it_may_have_been_lost() -> None:
    """Else the leader would wait for a peer that has finished, and so would everybody."""
    scene = follower(B, C)
    scene.on(v.LeaveRequested("a person asked"))
    assert told(scene) == [m.Leave("a person asked")]
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.meets(A)
    assert m.Leave("a person asked") in told(scene)


def test_who_leaves_says_what_it_lacks_until_it_is_out() -> None:
    """Seed 300147: cut, left, and cut again for ever. Seed 3100557: nobody had the state, and the
    run did not go back, for one that was on its way out had not said that it has none either."""
    scene = follower(B, C)
    scene.on(v.LeaveRequested("a person asked"))
    diverge(scene)
    assert join(B, "diverged") in told(scene)
    scene.reads(e.Left(B, "a person asked"))
    assert [x for x in told(scene) if isinstance(x, m.Join)] == []
