"""Where a run goes back to: to a checkpoint, or, when only a committed round's result is gone with
all who had it, to where the others are."""

from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.leader.decisions import Leader
from protocols.leader.joins import Joins
from protocols.leader.recovery import best, usable
from protocols.leader.reports import Reports
from protocols.leader.step_views import StepViews
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.node import Raft
from protocols.state import transitions
from protocols.state.checkpoint_progress import progress_at
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId, Version, digest_text
from protocols.types.sample_ranges import SampleRange
from tests.protocols.room import RULES, Room
from tests.protocols.scenes import (
    BORDERS,
    START,
    A,
    B,
    C,
    Follower,
    caught_up,
    commit,
    contributor,
    follower,
    info,
    join,
    log_of,
    members_of,
    run,
    state_digest,
    told,
    view,
)
from tests.protocols.scenes import RULES as SCENE_RULES

LOST_S = 30.0
"""Until the others have asked everybody for the result, and given up."""


def agreed() -> RunState:
    """Three rounds of A and B are committed."""
    digest = digest_text("a result")
    terms = (contributor(A), contributor(B))
    rounds = [e.Commit(1, 0, n, 0, terms, BORDERS, digest, "") for n in (1, 2, 3)]
    begun = (run(), e.Member(info(A)), e.Cut(info(B, 1), (A,), (Version(0, 0, START),)))
    return members_of(log_of(*begun, e.Member(info(B, 1)), view(1, A, B), *rounds))


def state(round_: int) -> tuple[Version, ...]:
    return (Version(0, round_, state_digest(round_)),)


def test_a_checkpoint_that_the_run_does_not_stand_on_is_no_help() -> None:
    run_state = agreed()
    wrong = m.Kept(run_state.lineage ^ 1, state(2), 20, 900), m.Kept(run_state.lineage, (), 20, 900)
    assert usable(run_state, Reports(A, run_state), wrong, state(3)) == []


def test_a_checkpoint_that_the_log_contradicts_is_no_help() -> None:
    """Its holder had diverged before it wrote it."""
    run_state = agreed()
    kept, reports = m.Kept(run_state.lineage, state(2), 20, 200), Reports(A, run_state)
    third = run_state.commits[0][-1]
    run_state.commits[0][-1] = replace(third, previous_state_digest=state_digest(9))
    assert usable(run_state, reports, [kept], state(3)) == []
    run_state.commits[0][-1] = replace(third, previous_state_digest=state_digest(2))
    (cut,) = usable(run_state, reports, [kept], state(3))
    assert (cut.versions, cut.tokens, cut.live) == (state(2), 200, False)


def test_what_members_have_in_memory_is_better_than_a_checkpoint_of_the_same_tokens() -> None:
    run_state = agreed()
    reports, tokens = Reports(A, run_state), progress_at(run_state, 2)[1]
    for peer in (A, B):
        reports.has(peer, m.Have(run_state.lineage, 0, 2, state_digest(2)))
    kept = m.Kept(run_state.lineage, state(2), 20, tokens)
    cuts = usable(run_state, reports, [kept, replace(kept, tokens=tokens - 1)], state(3))
    assert sorted(cut.live for cut in cuts) == [False, False, True]
    assert best(cuts).live
    newer = m.Kept(run_state.lineage, state(3), 30, tokens + 1)
    assert not best(usable(run_state, reports, [newer], state(3))).live


def test_what_only_one_of_two_says_that_it_has_is_nobodys() -> None:
    run_state = agreed()
    reports = Reports(A, run_state)
    reports.has(A, m.Have(run_state.lineage, 0, 2, state_digest(2)))
    assert usable(run_state, reports, [], state(3)) == []


def bereft(*, fragment: int = 0, fragments: int = 1, kept: int = 0) -> Room:
    """Of a, b, c, d, e the first two train: both hold a round that is committed, and die. The
    others have all before it."""
    room = Room("ab", fragments=fragments, samples_ahead=8)
    for name in "cde":
        room.add(name)
        room.feed(name, v.TrainersLost("no GPU"))
    room.wait(5.0)
    assert len(room.peers["a"].raft.log.voters) == 5
    for number in range(fragments):
        for name, start in (("a", 0), ("b", 8)):
            seen = (SampleRange(start, start + 4),) if number == 0 else ()
            room.contribute(name, fragment=number, samples=seen)
    room.hold = lambda to, x: to in "cde" and isinstance(x, v.ResultReceived)
    for name in "ab":
        room.contribute(name, fragment=fragment)
    room.hold = lambda to, x: False
    room.held.clear()
    rounds = room.peers["a"].rounds[fragment]
    assert rounds.version == 2
    assert room.peers["c"].rounds[fragment].version == 1
    room.kill("a")
    room.kill("b")
    for commands in room.given.values():
        commands.clear()
    return room


@pytest.mark.parametrize(("fragment", "fragments"), [(0, 1), (0, 2), (1, 2)])
def test_the_others_go_on_from_what_they_have(fragment: int, fragments: int) -> None:
    room = bereft(fragment=fragment, fragments=fragments)
    room.wait(LOST_S)
    (restore,) = room.log(e.Restore, of="c")
    assert isinstance(restore, e.Restore)
    assert restore.live
    assert [version.round for version in restore.versions] == [1] * fragments
    for name in "cde":
        core = room.peers[name]
        assert core.run_state.restored == restore
        assert core.run_state.tokens == 200
        assert not core.member_status.catchup.needed
        assert not any(isinstance(x, c.AdoptState | c.AdoptKept) for x in room.given[name])
    assert room.peers["c"].run_state.ledger.consumed == 8


def test_the_run_goes_on_and_the_number_of_the_round_comes_again() -> None:
    room = bereft()
    room.wait(LOST_S)
    for name in "cde":
        room.feed(name, v.TrainersReady())
    for name in "cde":
        room.contribute(name)
    room.wait(1.0)
    assert [room.peers[name].rounds[0].version for name in "cde"] == [2, 2, 2]
    assert len(room.digests("c", "d", "e")) == 1


def test_work_that_the_lost_round_counted_stays_with_who_made_it() -> None:
    """e contributed to it and lacks its result: it is not counted, and not thrown away."""
    room = Room("abe", samples_ahead=8)
    for name in "cd":
        room.add(name)
        room.feed(name, v.TrainersLost("no GPU"))
    room.wait(5.0)
    hers = room.peers["e"].run_state.ledger.held_by(room.ids["e"], 1)
    room.hold = lambda to, x: to in "cde" and isinstance(x, v.ResultReceived)
    for name in "abe":
        room.contribute(name, samples=hers if name == "e" else ())
    room.wait(RULES.reduction_timeout_s + 1.0)  # A majority of the roster holds it.
    assert room.peers["a"].rounds[0].version == 1
    room.hold = lambda to, x: False
    room.held.clear()
    room.kill("a")
    room.kill("b")
    room.wait(LOST_S)
    assert room.last("e", c.Resume) == c.Resume(0, 0, "rebase", first=False, finish=False)
    assert room.peers["e"].run_state.ledger.held_by(room.ids["e"], 1)[:1] == hers
    for name in "cd":
        room.feed(name, v.TrainersReady())
        room.feed(name, v.TrainersAble())
    for name in "cde":
        room.contribute(name)
    room.wait(1.0)
    commit = room.log(e.Commit, of="e")[-1]
    assert isinstance(commit, e.Commit)
    assert [term.peer for term in commit.contributors] == [room.ids[name] for name in "cde"]
    assert commit.samples == ((), (), hers)


def test_who_had_applied_it_after_all_takes_the_state_of_the_others() -> None:
    room = bereft()
    room.wait(LOST_S)
    room.restart("a", incarnation=2)
    room.meet("c", "a")
    room.wait(5.0)
    assert room.peers["a"].rounds[0].version == 1
    assert len(room.digests("a", "c", "d", "e")) == 1


def test_donors_that_are_accused_have_time_to_report_a_new_round() -> None:
    """Seed 3100902: all had been accused once when a round was committed. They were just making the
    step, the run went back behind it, and everybody's work since was thrown away."""
    run_state = agreed()
    reports = Reports(A, run_state)
    joins = Joins(A, run_state, reports)
    for donor in (A, B):
        reports.has(donor, m.Have(run_state.lineage, 0, 2, state_digest(2)))
        joins.join(C, join(C, "a wrong state", against=donor), 0.0)
    joins.rollback.kept[B] = m.Kept(run_state.lineage, state(1), 10, 100)
    assert joins.rollback.restore(0.0, patience_s=0.0) is None
    for peer in (A, B):
        joins.join(peer, join(peer, "results of missed rounds are gone"), 0.0)
    assert joins.rollback.restore(0.0, patience_s=0.0) is not None, (
        "they say themselves that they lack"
    )


# What a peer does when the run goes back ------------------------------------------------------


def restarted(*, round_: int = 1, digest: str = "") -> Follower:
    """B is in its second life, with a checkpoint on its disk; round 2 is committed."""
    life = follower(B)
    for n in (1, 2):
        life.reads(commit(life, n, A, B))
    versions = (Version(0, round_, digest or state_digest(round_)),)
    kept = m.Kept(life.core.run_state.lineage, versions, 10, 200)
    scene = Follower(B, incarnation=2, kept=kept)
    scene.meets(A)
    scene.reads(*(entry.body for entry in life.log.entries))
    scene.on(v.RunAccepted(RULES))
    return scene


def goes_back(scene: Follower, round_: int = 1) -> int:
    versions = (Version(0, round_, state_digest(round_)),)
    scene.reads(e.Restore(scene.core.run_state.lineage, versions, 10, 200, (), 0, False, salt=1))
    return scene.log.last_index


def test_who_asks_for_a_state_says_what_it_kept() -> None:
    scene = restarted()
    assert told(scene) == [join(B, "restarted", incarnation=2), scene.core.member_status.kept]


def test_who_keeps_what_the_run_goes_back_to_needs_no_transfer() -> None:
    scene = restarted()
    index = goes_back(scene)
    assert scene.one(c.AdoptKept) == c.AdoptKept(0, 1)
    assert [x for x in told(scene) if isinstance(x, m.CaughtUp | m.Join)] == [], "not before"
    scene.on(v.KeptAdopted(0, 1, state_digest(1)))
    assert scene.caught_up(index, state_digest(1)) in told(scene)
    assert (scene.core.rounds[0].version, scene.core.rounds[0].state_digest) == (1, state_digest(1))
    scene.reads(e.Member(info(B, 1, incarnation=2)))
    assert scene.core.member_status.is_member


def test_a_member_that_asked_takes_that_back_when_its_checkpoint_is_the_state() -> None:
    scene = follower(B)
    versions = (Version(0, 1, state_digest(1)),)
    scene.on(v.Checkpointed(m.Kept(scene.core.run_state.lineage, versions, 10, 200)))
    scene.reads(commit(scene, 1, A, B, state=digest_text("another")))
    assert [x for x in told(scene) if isinstance(x, m.Join)] != []
    index = goes_back(scene)
    assert [x for x in told(scene) if isinstance(x, m.CaughtUp)] == [], "it reads it still"
    scene.on(v.KeptAdopted(0, 1, state_digest(1)))
    assert [x for x in told(scene) if isinstance(x, m.CaughtUp)] == [
        scene.caught_up(index, state_digest(1))
    ]


def test_what_the_run_went_back_to_is_no_state_after_a_later_cut_of_an_earlier_life() -> None:
    """Stepwise seed 4006: it waited as a member that it was not."""
    scene = restarted()
    goes_back(scene)
    again = e.Cut(info(B, 1), (A,), (Version(0, 1, state_digest(1)),))
    scene.reads(again)
    assert join(B, "restarted", incarnation=2) in told(scene)
    assert scene.on(v.KeptAdopted(0, 1, state_digest(1))) == []


def test_a_cut_that_comes_before_the_checkpoint_is_read_is_what_counts() -> None:
    """Seed 3650069: it had all of its state, and waited for its checkpoint with being a member."""
    scene = restarted()
    goes_back(scene)
    scene.reads(e.Cut(info(B, 1, incarnation=2), (A,), (Version(0, 1, state_digest(1)),)))
    index = scene.core.run_state.index
    scene.on(v.StateReceived(index, 0, 1, state_digest(1)))
    assert scene.caught_up(index) in told(scene)


def test_who_keeps_something_else_asks_for_a_cut_again() -> None:
    scene = restarted(round_=2)
    goes_back(scene)
    assert scene.all(c.AdoptKept) == []
    assert join(B, "the run went back to a checkpoint", incarnation=2) in told(scene)


@pytest.mark.parametrize("found", ["", digest_text("rot")])
def test_a_damaged_checkpoint_is_said_to_be_one_and_never_offered_again(found: str) -> None:
    # Fails while MemberStatus reports CaughtUp, though it asks for a state (`catchup.needed`).
    scene = restarted()
    goes_back(scene)
    scene.on(v.KeptAdopted(0, 1, found))
    none = m.Kept(scene.core.run_state.lineage, (), 0, 0)
    assert told(scene) == [join(B, "our checkpoint is damaged", incarnation=2), none]
    assert scene.core.rounds[0].version == -1


def test_a_member_goes_back_with_all_others() -> None:
    """Its state is of a lineage that is void."""
    scene = follower(B)
    for n in (1, 2):
        scene.reads(commit(scene, n, A, B))
    goes_back(scene)
    assert join(B, "the run went back to a checkpoint") in told(scene)
    assert scene.core.rounds[0].version == -1
    scene.gets_cut(1)
    scene.gets_state(1)
    assert scene.core.rounds[0].version == 1


# Going back to a checkpoint -------------------------------------------------------------------


BEGUN = (
    run(),
    e.Member(info(A)),
    e.Cut(info(B, 1), (A,), (Version(0, 0, START),)),
    e.Member(info(B, 1)),
)


def kept(run_state: RunState, round_: int, *, tokens: int) -> m.Kept:
    versions = (Version(0, round_, state_digest(round_)),)
    return m.Kept(run_state.lineage, versions, 10 * round_, tokens)


def hopeless() -> Joins:
    """A and B were both killed: round 3 is committed, and no peer has its state."""
    terms = (contributor(A), contributor(B))
    digest = digest_text("a result")
    rounds = [e.Commit(1, 0, n, 0, terms, BORDERS, digest, "") for n in (1, 2, 3)]
    run_state = members_of(log_of(*BEGUN, view(1, A, B), *rounds))
    joins = Joins(A, run_state, Reports(A, run_state))
    for peer, against in ((A, ""), (B, B)):  # B has looked at its own.
        joins.join(peer, join(peer, incarnation=2, against=against), 0.0)
    return joins


def test_a_state_that_nobody_has_is_taken_from_the_best_checkpoint() -> None:
    joins = hopeless()
    joins.rollback.kept[A] = kept(joins.run_state, 1, tokens=100)
    joins.rollback.kept[B] = kept(joins.run_state, 2, tokens=200)
    assert joins.rollback.restore(5.0, patience_s=10.0) is None, "a peer may be coming back"
    assert joins.rollback.restore(14.9, patience_s=10.0) is None
    restore = joins.rollback.restore(15.0, patience_s=10.0)
    assert restore is not None
    assert (restore.versions, restore.tokens, restore.inner_step) == (
        (Version(0, 2, state_digest(2)),),
        200,
        20,
    )
    assert (restore.voters, restore.fork) == ((), 0), "only a fork chooses voters"
    assert restore.parent_lineage == joins.run_state.lineage
    assert joins.joins == {}


def test_a_checkpoint_that_turned_out_to_be_damaged_is_none() -> None:
    joins = hopeless()
    joins.rollback.kept[B] = m.Kept(joins.run_state.lineage, (), 0, 0)
    assert joins.rollback.restore(15.0, patience_s=0.0) is None
    assert joins.rollback.run_is_lost(15.0, patience_s=0.0)


def test_who_came_to_the_end_is_tried_again_whoever_accuses_it() -> None:
    """No peer can make that state again, and the rest of the run waits for the joiner."""
    terms, digest = (contributor(A), contributor(B)), digest_text("a result")
    last_round = run().outer_steps
    rounds = [e.Commit(1, 0, n, 0, terms, BORDERS, digest, "") for n in range(1, last_round + 1)]
    for over, bodies in ((False, rounds[:-1]), (True, rounds)):
        run_state = members_of(log_of(*BEGUN, view(1, A, B), *bodies, e.Left(B, "finished")))
        reports = Reports(A, run_state)
        joins = Joins(A, run_state, reports)
        reports.has(A, m.Have(run_state.lineage, 0, len(bodies), START))
        joins.join(C, join(C, "a wrong state", against=A), 0.0)
        cut = joins.next_entry(0.0)
        assert (isinstance(cut, e.Cut) and cut.donors[0] == A) == over


def test_while_somebody_may_have_the_state_nothing_is_restored() -> None:
    joins = hopeless()
    joins.rollback.kept[B] = kept(joins.run_state, 2, tokens=200)
    assert joins.rollback.restore(5.0, patience_s=1.0) is None
    del joins.joins[A]
    assert joins.rollback.restore(9.0, patience_s=1.0) is None, "A has said nothing yet"
    joins.join(A, join(A, incarnation=2), 9.0)
    assert joins.rollback.restore(9.0, patience_s=1.0) is None, "and the clock starts anew"
    have = m.Have(joins.run_state.lineage, 0, 3, state_digest(3))
    for peer in (A, B):
        joins.reports.has(peer, have)
    assert joins.rollback.restore(99.0, patience_s=1.0) is None


def test_two_that_differ_go_back_to_what_was_agreed() -> None:
    """Neither can be healed by the other: each is as likely to be right.

    Seed 900282: at once. With every round that they commit meanwhile they seem to agree again for
    as long as their reports are on the way: a leader that waits for a peer would never end.
    """
    joins = hopeless()
    joins.joins.clear()
    joins.rollback.kept[A] = kept(joins.run_state, 2, tokens=200)
    for peer, digest in ((A, "one"), (B, "another")):
        assert joins.rollback.restore(0.0, patience_s=9.0) is None
        differs(joins, peer, digest)
    assert joins.rollback.restore(1.0, patience_s=9.0) is not None


def differs(joins: Joins, peer: PeerId, digest: str) -> None:
    """It reports such a state after round 3."""
    have = m.Have(joins.run_state.lineage, 0, 3, digest_text(digest))
    joins.reports.has(peer, have)


def test_while_members_differ_nobody_gets_a_copy_of_either_state() -> None:
    """Seed 900122: a joiner had its state from the leader, and these two were the majority then."""
    joins = hopeless()
    joins.joins.clear()
    differs(joins, A, "one")
    differs(joins, B, "another")
    joins.join(C, join(C), 0.0)
    assert joins.next_entry(0.0) is None
    differs(joins, B, "one")
    cut = joins.next_entry(0.0)
    assert isinstance(cut, e.Cut)
    assert cut.versions[0].state_digest == digest_text("one")


def test_without_a_state_and_without_a_checkpoint_it_is_over_after_a_while() -> None:
    joins = hopeless()
    assert not joins.rollback.run_is_lost(99.0, patience_s=10.0), "the leader has not looked yet"
    assert joins.rollback.restore(0.0, patience_s=10.0) is None
    assert not joins.rollback.run_is_lost(9.9, patience_s=10.0)
    assert joins.rollback.run_is_lost(10.0, patience_s=10.0)
    joins.rollback.kept[A] = kept(joins.run_state, 1, tokens=100)
    assert not joins.rollback.run_is_lost(10.0, patience_s=10.0)


def test_after_a_restore_its_holders_are_members_without_a_cut() -> None:
    joins = hopeless()
    joins.rollback.kept[B] = kept(joins.run_state, 2, tokens=200)
    joins.rollback.restore(0.0, patience_s=1.0)
    restore = joins.rollback.restore(1.0, patience_s=1.0)
    assert restore is not None
    run_state = joins.run_state
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, restore))
    joins.caught_up[B] = caught_up(B, run_state.index - 1, incarnation=2)
    assert joins.next_entry(2.0) is None, "of a cut in the old lineage"
    joins.caught_up[B] = caught_up(B, run_state.index, incarnation=2)
    assert joins.next_entry(2.0) == e.Member(info(B, 1, incarnation=2))


def test_who_has_its_state_asks_a_new_leader_only_for_a_place() -> None:
    """Simulated: after a Restore and an election no peer was a member, and none asked."""
    joins = hopeless()
    joins.rollback.kept[B] = kept(joins.run_state, 2, tokens=200)
    joins.rollback.restore(0.0, patience_s=1.0)
    restore = joins.rollback.restore(1.0, patience_s=1.0)
    assert restore is not None
    run_state = joins.run_state
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, restore))
    elected = Joins(A, run_state, Reports(A, run_state))
    elected.caught_up[B] = caught_up(B, run_state.index, incarnation=2)
    assert elected.next_entry(2.0) == e.Member(info(B, 1, incarnation=2))
    assert elected.next_entry(2.0) is None, "and no cut"
    assert elected.joins == {}


def test_who_holds_what_the_run_went_back_to_has_time_to_take_it_up() -> None:
    """Simulated: one Restore followed the other, thousands of them, each to the same checkpoint."""
    joins = hopeless()
    run_state = joins.run_state
    versions = kept(run_state, 2, tokens=200).versions
    restore = e.Restore(run_state.lineage, versions, 20, 200, (), 0, False, salt=1)
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, restore))
    raft = Raft(A)
    raft.rules = SCENE_RULES
    leader = Leader(run_state, joins.reports, joins, raft, StepViews(A, run_state))
    for peer in (A, B):
        joins.join(peer, join(peer, incarnation=2), 20.0)
    joins.rollback.kept[C] = m.Kept(run_state.branches[0].lineage, restore.versions, 20, 200)
    assert leader.next_entry(20.0) is None
    assert isinstance(leader.next_entry(20.0 + SCENE_RULES.silence_timeout_s), e.Restore)
