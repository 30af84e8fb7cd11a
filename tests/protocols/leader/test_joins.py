"""Who is let into the run, from whom it gets its state, and who confirms that state."""

import pytest

from protocols.interface import events as v
from protocols.leader.decisions import Leader
from protocols.leader.joins import Joins
from protocols.leader.reports import Reports
from protocols.leader.step_views import StepViews
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.node import Raft
from protocols.state import participants
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId, Version, digest_text
from tests.protocols.led import Led, a_rests, last, leading, of, say, three, written
from tests.protocols.scenes import (
    BORDERS,
    RULES,
    START,
    A,
    B,
    C,
    D,
    caught_up,
    contributor,
    info,
    join,
    log_of,
    members_of,
    run,
    state_digest,
    view,
)

# Joining --------------------------------------------------------------------------------------


def wants_cut(scene: Led, peer: PeerId, *, why: str = "new", incarnation: int = 1) -> e.Cut | None:
    """The cut that a Join leads to."""
    before = scene.core.raft.log.last_index
    if peer not in scene.core.links.up:
        scene.comes(peer, incarnation=incarnation)
    scene.hears(peer, join(peer, why, incarnation=incarnation))
    found = written(scene, e.Cut, since=before)
    return found[0] if found else None


def test_who_said_hello_while_there_was_room_waits_for_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several may come at once, and a log with more than a message can name holds nobody's word."""
    monkeypatch.setattr(participants, "PEERS_MAX", 3)
    scene = leading(B)
    scene.comes(D)
    assert wants_cut(scene, C) is not None
    assert wants_cut(scene, D) is None
    before = scene.core.raft.log.last_index
    scene.hears(C, m.Leave("x"))
    assert [cut.info.peer for cut in written(scene, e.Cut, since=before)] == [D]


def test_a_revoked_peer_that_waits_for_a_place_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participants, "PEERS_MAX", 3)
    scene = leading(B)
    scene.on(v.Secured(has_key=True))
    scene.comes(D)
    assert wants_cut(scene, C) is not None
    assert wants_cut(scene, D) is None
    scene.on(v.RevokeAsked(e.Revoked(D, A, "stolen")))
    assert len(written(scene, e.Revoked)) == 1
    before = scene.core.raft.log.last_index
    scene.hears(C, m.Leave("x"))
    assert len(written(scene, e.Left, since=before)) == 1
    assert written(scene, e.Cut, since=before) == []


def test_a_donor_is_no_leader_if_there_is_another() -> None:
    cut = wants_cut(leading(B), C)
    assert cut is not None
    assert (cut.donors, cut.versions[0].round, cut.versions[0].state_digest) == ((B, A), 0, START)
    alone = wants_cut(leading(), C)
    assert alone is not None
    assert alone.donors == (A,)


def test_donors_take_turns_when_a_joiner_asks_again() -> None:
    """Seed 300000: two members whose state had rotted were asked in turn for ever."""
    scene = leading(B, D)
    cuts = [wants_cut(scene, C, why=f"try {n}") for n in range(4)]
    assert [cut.donors[0] for cut in cuts if cut] == [B, D, A, B]


def test_a_state_is_given_away_when_more_than_half_reported_it() -> None:
    """Seed 6300605: half of the members held one wrong state, and two of them spoke first."""
    scene = three()
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C, D)
    assert wants_cut(scene, PeerId("e.5")) is None
    for peer in (B, C):
        scene.hears(peer, m.Have(scene.lineage, 0, 1, state_digest(1)))
        assert last(scene, e.Cut).info.peer != PeerId("e.5")
    scene.hears(D, m.Have(scene.lineage, 0, 1, state_digest(1)))
    cut = last(scene, e.Cut)
    assert (cut.info.peer, cut.donors[0]) == (PeerId("e.5"), B)


def test_those_who_ask_for_another_state_do_not_confirm_their_own() -> None:
    """Seed 1483: three that differed were the first to say what they made of a round."""
    run_state = members_of(log_of(*BEGUN, e.Cut(info(D, 3), (A,), (Version(0, 0, START),))))
    run_state.members[C] = run_state.members[D] = info(C, 2)
    reports = Reports(A, run_state)
    joins = Joins(A, run_state, reports)
    for peer in (B, C):
        joins.join(peer, join(peer, "diverged"), 0.0)
        reports.has(peer, m.Have(run_state.lineage, 0, 0, digest_text("rot")))
    assert joins.next_entry(0.0) is None, "A and D have not spoken"
    for peer in (A, D):
        reports.has(peer, m.Have(run_state.lineage, 0, 0, START))
    assert joins.reports.majority_digest(0, 0) == START
    cut = joins.next_entry(0.0)
    assert isinstance(cut, e.Cut)
    assert (cut.info.peer, cut.donors[0]) == (B, D)


def test_a_donor_holds_what_the_majority_holds() -> None:
    scene = leading(B, C)
    for peer in (B, C):
        digest = digest_text("rot") if peer == B else START
        scene.hears(peer, m.Have(scene.lineage, 0, 0, digest))
    cut = wants_cut(scene, D)
    assert cut is not None
    assert (cut.donors[0], cut.versions[0].state_digest) == (C, START)


def where_two_accuse_a() -> Joins:
    """A and B said that they have the first state; C and D got a wrong one from A."""
    run_state = members_of(log_of(*BEGUN))
    reports = Reports(A, run_state)
    joins = Joins(A, run_state, reports)
    for peer in (A, B):
        reports.has(peer, m.Have(run_state.lineage, 0, 0, START))
    for peer in (C, D):
        joins.join(peer, join(peer, "a wrong state", against=A), 0.0)
    return joins


def test_the_word_of_a_donor_that_two_accuse_is_not_waited_for() -> None:
    """Seed 139: its state counted as none, and the only other holder was to be confirmed by it."""
    joins = where_two_accuse_a()
    cuts = [joins.next_entry(0.0), joins.next_entry(0.0)]
    assert [(cut.info.peer, cut.donors[0]) for cut in cuts if isinstance(cut, e.Cut)] == [
        (C, B),
        (D, B),
    ]


def test_two_that_accused_a_donor_are_believed_when_they_are_gone() -> None:
    """Seed 7009717: they were revoked; what the donor had said was not waited for any more, and
    then was waited for again, for ever."""
    joins = where_two_accuse_a()
    for peer in (C, D):
        joins.gone(peer)
    joins.keep({A, B, PeerId("e.1")})
    joins.join(PeerId("e.1"), join(PeerId("e.1")), 0.0)
    cut = joins.next_entry(0.0)
    assert isinstance(cut, e.Cut)
    assert cut.donors == (B,)


def test_one_accuser_alone_is_forgotten_when_it_is_gone() -> None:
    run_state = members_of(log_of(*BEGUN))
    joins = Joins(A, run_state, Reports(A, run_state))
    joins.join(C, join(C, "a wrong state", against=A), 0.0)
    joins.keep({A, B, D})
    joins.join(D, join(D, "a wrong state", against=A), 0.0)
    assert joins.accused[A] == {D}


def test_a_joiner_becomes_a_member_when_it_holds_the_newest_cut() -> None:
    scene = leading()
    wants_cut(scene, B)
    wants_cut(scene, B, why="again")
    first, second = (
        i for i, x in enumerate(scene.core.raft.log.entries, 1) if isinstance(x.body, e.Cut)
    )
    scene.hears(B, caught_up(B, first))
    assert B not in scene.core.run_state.members
    scene.hears(B, caught_up(B, second))
    assert B in scene.core.run_state.members


def test_a_member_that_asks_for_a_state_is_not_waited_for() -> None:
    scene = leading(B, C)
    wants_cut(scene, C, why="diverged")
    view = last(scene, e.View)
    assert view.roster == (A, B)
    assert C in scene.core.run_state.members


def test_a_restarted_peer_gets_a_state_and_its_old_contribution_is_forgotten() -> None:
    """Else the commit would list the bytes of its earlier life, and sum those of this one."""
    scene = leading(B)
    a_rests(scene)
    say(scene, "ready", B)
    scene.comes(B, incarnation=2)
    scene.hears(B, m.ReadLog(0))
    assert wants_cut(scene, B, incarnation=2) is not None
    assert written(scene, e.Lost) == [], "it is back already"
    assert (list(scene.core.run_state.members), list(scene.core.run_state.joiners)) == ([A], [B])
    index = scene.core.raft.log.last_index
    scene.hears(B, caught_up(B, index))
    old = scene.stamp(1, number=of(scene))
    scene.hears(B, m.ReportsComplete(scene.core.raft.term))
    scene.hears(B, m.ReadyToTrain())
    assert of(scene) == old.view + 1, "the old view meant its earlier life"
    for stamp, life in ((old, 98), (scene.stamp(1, number=of(scene)), 99)):
        scene.hears(B, m.Ready(stamp, contributor(B, life)))
    reports = scene.leader.reports.open(0)[1]
    assert reports is not None
    assert reports.ready == {B: contributor(B, 99)}


def flapping(losses: int) -> tuple[Joins, Reports]:
    """A's view of a run that B has been lost from so often; A has reported its state."""
    again = (e.Cut(info(B, 1), (A,), (Version(0, 0, START),)), e.Member(info(B, 1)))
    bodies = [*BEGUN, *(x for _ in range(losses) for x in (e.Lost(B, "x"), *again))]
    run_state = members_of(log_of(*(bodies if not losses else bodies[:-2])))
    reports = Reports(A, run_state)
    reports.has(A, m.Have(run_state.lineage, 0, 0, START))
    return Joins(A, run_state, reports), reports


@pytest.mark.parametrize(("losses", "hold_down_s"), [(2, 2.0), (3, 4.0), (4, 8.0), (12, 120.0)])
def test_who_comes_and_goes_waits_longer_each_time(losses: int, hold_down_s: float) -> None:
    """It costs the others an attempt each time."""
    joins, _ = flapping(losses)
    joins.join(B, join(B), 50.0)
    joins.join(B, join(B, "I ask again"), 51.0)
    assert joins.deadline() == 50.0 + hold_down_s, "asking again does not make it longer"
    assert joins.next_entry(49.9 + hold_down_s) is None
    cut = joins.next_entry(50.0 + hold_down_s)
    assert isinstance(cut, e.Cut)
    assert joins.deadline() == float("inf")


def test_who_was_lost_once_waits_for_nothing() -> None:
    joins, _ = flapping(1)
    joins.join(B, join(B), 50.0)
    assert isinstance(joins.next_entry(50.0), e.Cut)


def test_who_asked_and_went_asks_for_nothing_any_more() -> None:
    joins, _ = flapping(1)
    joins.join(B, join(B), 50.0)
    joins.gone(B)
    assert joins.next_entry(50.0) is None


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
    """A and B were both killed: round 3 is committed, and nobody has its state."""
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
    joins.kept[A] = kept(joins.run_state, 1, tokens=100)
    joins.kept[B] = kept(joins.run_state, 2, tokens=200)
    assert joins.restore(5.0, patience_s=10.0) is None, "somebody may be coming back"
    assert joins.restore(14.9, patience_s=10.0) is None
    restore = joins.restore(15.0, patience_s=10.0)
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
    joins.kept[B] = m.Kept(joins.run_state.lineage, (), 0, 0)
    assert joins.restore(15.0, patience_s=0.0) is None
    assert joins.over(15.0, patience_s=0.0)


def test_who_came_to_the_end_is_tried_again_whoever_accuses_it() -> None:
    """Nobody can make that state again, and the rest of the run waits for the joiner."""
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
    joins.kept[B] = kept(joins.run_state, 2, tokens=200)
    assert joins.restore(5.0, patience_s=1.0) is None
    del joins.joins[A]
    assert joins.restore(9.0, patience_s=1.0) is None, "A has said nothing yet"
    joins.join(A, join(A, incarnation=2), 9.0)
    assert joins.restore(9.0, patience_s=1.0) is None, "and the clock starts anew"
    have = m.Have(joins.run_state.lineage, 0, 3, state_digest(3))
    for peer in (A, B):
        joins.reports.has(peer, have)
    assert joins.restore(99.0, patience_s=1.0) is None


def test_two_that_differ_go_back_to_what_was_agreed() -> None:
    """Neither can be healed by the other: each is as likely to be right.

    Seed 900282: at once. With every round that they commit meanwhile they seem to agree again for
    as long as their reports are on the way, and who waits for somebody to come back never ends.
    """
    joins = hopeless()
    joins.joins.clear()
    joins.kept[A] = kept(joins.run_state, 2, tokens=200)
    for peer, digest in ((A, "one"), (B, "another")):
        assert joins.restore(0.0, patience_s=9.0) is None
        differs(joins, peer, digest)
    assert joins.restore(1.0, patience_s=9.0) is not None


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
    assert not joins.over(99.0, patience_s=10.0), "nobody has looked yet"
    assert joins.restore(0.0, patience_s=10.0) is None
    assert not joins.over(9.9, patience_s=10.0)
    assert joins.over(10.0, patience_s=10.0)
    joins.kept[A] = kept(joins.run_state, 1, tokens=100)
    assert not joins.over(10.0, patience_s=10.0)


def test_after_a_restore_its_holders_are_members_without_a_cut() -> None:
    joins = hopeless()
    joins.kept[B] = kept(joins.run_state, 2, tokens=200)
    joins.restore(0.0, patience_s=1.0)
    restore = joins.restore(1.0, patience_s=1.0)
    assert restore is not None
    run_state = joins.run_state
    run_state.apply(e.LogEntry(run_state.index + 1, 1, restore))
    joins.caught_up[B] = caught_up(B, run_state.index - 1, incarnation=2)
    assert joins.next_entry(2.0) is None, "of a cut in the old lineage"
    joins.caught_up[B] = caught_up(B, run_state.index, incarnation=2)
    assert joins.next_entry(2.0) == e.Member(info(B, 1, incarnation=2))


def test_who_has_its_state_asks_a_new_leader_only_for_a_place() -> None:
    """Simulated: after a Restore and an election nobody was a member any more, and nobody asked."""
    joins = hopeless()
    joins.kept[B] = kept(joins.run_state, 2, tokens=200)
    joins.restore(0.0, patience_s=1.0)
    restore = joins.restore(1.0, patience_s=1.0)
    assert restore is not None
    run_state = joins.run_state
    run_state.apply(e.LogEntry(run_state.index + 1, 1, restore))
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
    run_state.apply(e.LogEntry(run_state.index + 1, 1, restore))
    rest = (joins, Raft(A), StepViews(A, run_state))
    leader = Leader(A, run_state, RULES, joins.reports, *rest)
    for peer in (A, B):
        joins.join(peer, join(peer, incarnation=2), 20.0)
    joins.kept[C] = m.Kept(run_state.branches[0].lineage, restore.versions, 20, 200)
    assert leader.next_entry(20.0) is None
    assert isinstance(leader.next_entry(20.0 + RULES.silence_timeout_s), e.Restore)


def test_a_joiner_that_leaves_with_a_part_of_the_state_is_not_kept_for_it() -> None:
    """Seed 50359: everybody else waited for a state, and it for leave to go."""
    begun = (run(fragments=2), e.Member(info(A)))
    cut = e.Cut(info(B, 1), (A,), (Version(0, 0, START), Version(1, 0, START)))
    run_state = members_of(log_of(*begun, cut))
    reports = Reports(A, run_state)
    joins = Joins(A, run_state, reports)
    reports.has(B, m.Have(run_state.lineage, 0, 0, START))
    assert not joins.needs(B, patient=False)
    reports.has(B, m.Have(run_state.lineage, 1, 0, START))
    assert joins.needs(B, patient=False), "now it could give all of it"
