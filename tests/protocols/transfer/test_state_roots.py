"""Whose word is believed about the trees of a cut's state."""

import pytest

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.transfer.state_roots import RootAgreement
from protocols.types.ids import PeerId, Version
from tests.protocols.led import leading, written
from tests.protocols.scenes import START, A, B, C, D, info, join, log_of, members_of, run

INDEX = 5
"""Of D's cut."""
ROOT = "1" * 64
NOBODY = frozenset[PeerId]()


def root_agreement(*donors: PeerId) -> RootAgreement:
    """A leads; D has a cut from these."""
    state = (Version(0, 0, START),)
    begun = (run(), e.Member(info(A)), e.Cut(info(B, 1), (A,), state), e.Member(info(B, 1)))
    run_state = members_of(log_of(*begun, e.Cut(info(D, 3), (A,), state)))
    for peer in (B, C):
        run_state.members[peer] = info(peer, 2)
    run_state.cuts[D] = (INDEX, e.Cut(info(D, 3), donors, state))
    return RootAgreement(A, run_state)


def test_two_equal_reports_of_a_tree_are_written_down() -> None:
    made = root_agreement(B, C, A)
    made.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    assert made.next_entry(NOBODY) is None
    made.add_roots(C, m.CutRoots(D, INDEX, ("2" * 64,)))
    assert made.next_entry(NOBODY) is None, "one of them lies"
    made.add_roots(A, m.CutRoots(D, INDEX, (ROOT,)))
    assert made.next_entry(NOBODY) == e.Roots(D, INDEX, (ROOT,))
    assert made.next_entry(NOBODY) is None, "once"


def test_an_only_donor_is_believed_and_of_two_that_differ_the_leader() -> None:
    alone = root_agreement(B)
    alone.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    assert alone.next_entry(NOBODY) == e.Roots(D, INDEX, (ROOT,))
    differ = root_agreement(B, A)
    differ.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    differ.add_roots(A, m.CutRoots(D, INDEX, ("2" * 64,)))
    assert differ.next_entry(NOBODY) == e.Roots(D, INDEX, ("2" * 64,))
    nobody = root_agreement(B, C)
    nobody.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    nobody.add_roots(C, m.CutRoots(D, INDEX, ("2" * 64,)))
    assert nobody.next_entry(NOBODY) is None


def test_a_donor_that_cannot_give_the_state_is_not_waited_for() -> None:
    made = root_agreement(B, C)
    made.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    assert made.next_entry(NOBODY) is None
    made.add_roots(C, m.CutRoots(D, INDEX, ()))
    assert made.next_entry(NOBODY) == e.Roots(D, INDEX, (ROOT,))
    three = root_agreement(A, B, C)
    three.add_roots(C, m.CutRoots(D, INDEX, ()))
    three.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    assert three.next_entry(NOBODY) is None, "there is another one"
    three.add_roots(A, m.CutRoots(D, INDEX, (ROOT,)))
    assert three.next_entry(NOBODY) == e.Roots(D, INDEX, (ROOT,))
    none = root_agreement(B, C)
    none.add_roots(B, m.CutRoots(D, INDEX, ()))
    none.add_roots(C, m.CutRoots(D, INDEX, ()))
    assert none.next_entry(NOBODY) is None


def test_a_leader_waits_for_no_donor_that_says_that_it_has_no_state() -> None:
    """It told the joiner only, and the leader waited for a second word until the joiner gave up."""
    scene = leading(B, D)
    scene.comes(C)
    scene.hears(C, join(C))
    (cut,), index = written(scene, e.Cut)[-1:], scene.core.raft.log.last_index
    assert cut.donors == (B, D, A)
    scene.on(v.StateCopied(index, 0, 0))
    scene.hears(B, m.CutRoots(C, index, (ROOT,)))
    assert written(scene, e.Roots, since=index) == []
    scene.hears(D, m.CutRoots(C, index, ()))
    assert written(scene, e.Roots, since=index) == [e.Roots(C, index, (ROOT,))]


def test_a_donor_that_is_gone_is_not_waited_for() -> None:
    made = root_agreement(B, C)
    made.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    assert made.next_entry(NOBODY) is None
    del made.run_state.members[C]
    assert made.next_entry(NOBODY) == e.Roots(D, INDEX, (ROOT,))


@pytest.mark.parametrize(
    "report",
    [
        m.CutRoots(D, INDEX - 1, (ROOT,)),
        m.CutRoots(C, INDEX, (ROOT,)),
        m.CutRoots(D, INDEX, ()),
    ],
)
def test_roots_of_another_cut_or_of_no_state_say_nothing(report: m.CutRoots) -> None:
    made = root_agreement(B)
    made.add_roots(B, report)
    assert made.next_entry(NOBODY) is None
    made.add_roots(C, m.CutRoots(D, INDEX, (ROOT,)))
    assert made.next_entry(NOBODY) is None, "C is no donor of it"


def test_who_asks_for_a_state_is_not_waited_for_and_yet_heard() -> None:
    """Seed 990046: the only donor wanted to go, and what it had asked for long ago stood open."""
    made = root_agreement(B, C)
    made.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    assert made.next_entry({B}) is None
    assert made.next_entry({C}) == e.Roots(D, INDEX, (ROOT,))
    only = root_agreement(B)
    only.add_roots(B, m.CutRoots(D, INDEX, (ROOT,)))
    assert only.next_entry({B}) == e.Roots(D, INDEX, (ROOT,))


def test_a_donor_copies_and_hashes_its_state_for_two_at_a_time() -> None:
    """Seed 2110348: with eight at once none was in time, and each asked for another copy."""
    scene = leading()
    for peer in (B, C, D):
        scene.comes(peer)
        scene.hears(peer, join(peer))
    assert [cut.info.peer for cut in written(scene, e.Cut)] == [B, C]
    index, _ = scene.core.run_state.cuts[B]
    scene.on(v.StateCopied(index, 0, 1))
    scene.hears(B, m.FetchLeaves(index, 0, 0))
    scene.on(v.StateHashed(index, 0, START, bytes(32)))
    assert [cut.info.peer for cut in written(scene, e.Cut)] == [B, C, D]
