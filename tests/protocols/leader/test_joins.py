"""Who is let into the run, from whom it gets its state, and who confirms that state."""

import pytest

from protocols.interface import events as v
from protocols.leader.joins import Joins
from protocols.leader.reports import Reports
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state import run_state as replicated
from protocols.types.ids import PeerId, Version, digest_text
from tests.protocols.led import Led, a_rests, last, leading, of, say, three, written
from tests.protocols.scenes import (
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
)

BEGUN = (
    run(),
    e.Member(info(A)),
    e.Cut(info(B, 1), (A,), (Version(0, 0, START),)),
    e.Member(info(B, 1)),
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
    monkeypatch.setattr(replicated, "PEERS_MAX", 3)
    scene = leading(B)
    scene.comes(D)
    assert wants_cut(scene, C) is not None
    assert wants_cut(scene, D) is None
    before = scene.core.raft.log.last_index
    scene.hears(C, m.Leave("x"))
    assert [cut.info.peer for cut in written(scene, e.Cut, since=before)] == [D]


def test_a_revoked_peer_that_waits_for_a_place_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "PEERS_MAX", 3)
    scene = leading(B)
    scene.on(v.Secured())
    scene.comes(D)
    assert wants_cut(scene, C) is not None
    assert wants_cut(scene, D) is None
    scene.on(v.ActAsked(e.Revoked(D, A, "stolen")))
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
    assert joins.donors.accused[A] == {D}


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
        scene.hears(B, m.ContributionOffered(stamp, contributor(B, life)))
    reports = scene.leader.reports.open_round(0)[1]
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
