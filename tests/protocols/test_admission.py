"""Who is let into the run, from whom it gets its state, and who confirms that state."""

from protocols import entries as e
from protocols import messages as m
from protocols.ids import PeerId, digest_text
from tests.protocols.led import Led, a_rests, last, leading, of, say, three, written
from tests.protocols.scenes import START, A, B, C, D, contributor, state_digest

# Joining --------------------------------------------------------------------------------------


def wants_cut(scene: Led, peer: PeerId, *, why: str = "new", incarnation: int = 1) -> e.Cut | None:
    """The cut that a Join leads to."""
    before = scene.core.log.last_index
    if peer not in scene.core.links.up:
        scene.meets(peer, leader="", incarnation=incarnation)
    scene.hears(peer, m.Join(peer[0], incarnation, f"{peer[0]}:1", why))
    found = written(scene, e.Cut, since=before)
    return found[0] if found else None


def test_a_donor_is_no_leader_if_there_is_another() -> None:
    cut = wants_cut(leading(B), C)
    assert cut is not None
    assert (cut.donor, cut.versions[0].round, cut.versions[0].state_digest) == (B, 0, START)
    alone = wants_cut(leading(), C)
    assert alone is not None
    assert alone.donor == A


def test_donors_take_turns_when_a_joiner_asks_again() -> None:
    """Seed 300000: two members whose state had rotted were asked in turn for ever."""
    scene = leading(B, D)
    cuts = [wants_cut(scene, C, why=f"try {n}") for n in range(4)]
    assert [cut.donor for cut in cuts if cut] == [B, D, A, B]


def test_a_state_that_only_one_of_several_reported_is_not_given_away() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C, D)
    assert wants_cut(scene, PeerId("e.5")) is None
    scene.hears(B, m.Have(0, 1, state_digest(1)))
    assert last(scene, e.Cut).info.peer != PeerId("e.5")
    scene.hears(C, m.Have(0, 1, state_digest(1)))
    cut = last(scene, e.Cut)
    assert (cut.info.peer, cut.donor) == (PeerId("e.5"), B)


def test_a_donor_holds_what_the_majority_holds() -> None:
    scene = leading(B, C)
    for peer in (B, C):
        scene.hears(peer, m.Have(0, 0, digest_text("rot") if peer == B else START))
    cut = wants_cut(scene, D)
    assert cut is not None
    assert (cut.donor, cut.versions[0].state_digest) == (C, START)


def test_a_joiner_becomes_a_member_when_it_holds_the_newest_cut() -> None:
    scene = leading()
    wants_cut(scene, B)
    wants_cut(scene, B, why="again")
    first, second = (
        i for i, x in enumerate(scene.core.log.entries, 1) if isinstance(x.body, e.Cut)
    )
    scene.hears(B, m.CaughtUp(first))
    assert B not in scene.core.members.members
    scene.hears(B, m.CaughtUp(second))
    assert B in scene.core.members.members


def test_a_member_that_asks_for_a_state_is_not_waited_for() -> None:
    scene = leading(B, C)
    wants_cut(scene, C, why="diverged")
    view = last(scene, e.View)
    assert view.roster == (A, B)
    assert C in scene.core.members.members


def test_a_restarted_peer_is_lost_and_its_old_contribution_is_forgotten() -> None:
    """Else the commit would list the bytes of its earlier life, and sum those of this one."""
    scene = leading(B)
    a_rests(scene)
    say(scene, "ready", B)
    scene.meets(B, leader="", incarnation=2)
    assert len(written(scene, e.Lost)) == 1
    scene.hears(B, m.ReadLog(0))
    assert wants_cut(scene, B, incarnation=2) is not None
    index = scene.core.log.last_index
    scene.hears(B, m.CaughtUp(index))
    scene.hears(B, m.Able())
    stamp = scene.stamp(1, number=of(scene))
    scene.hears(B, m.Ready(stamp, contributor(B, 99)))
    assert scene.core.leader is not None
    reports = scene.core.leader.reports.open(0)[1]
    assert reports is not None
    assert reports.ready == {B: contributor(B, 99)}


def test_a_state_that_nobody_has_ends_the_run_with_a_sentence() -> None:
    scene = leading(B)
    leader = scene.core.leader
    assert leader is not None
    wants_cut(scene, B, why="results of missed rounds are gone")
    assert not leader.admission.lost_state
    leader.reports.have.clear()
    leader.admission.joins.update({p: m.Join(p[0], 1, f"{p[0]}:1", "gone") for p in (A, B)})
    assert leader.admission.lost_state
