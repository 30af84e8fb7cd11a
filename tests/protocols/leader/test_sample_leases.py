"""Who gets which samples, when: ahead of need, in bulk, lost ones first."""

import pytest

from protocols.interface import events as v
from protocols.leader.sample_leases import WANTS_MAX
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.sample_ranges import SampleRange, Samples
from tests.protocols.led import Led, last, leading, ready, written
from tests.protocols.scenes import STRANGER, B, C, contributor


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def leases(scene: Led) -> list[dict[str, Samples]]:
    return [{x.peer: x.samples for x in entry.grants} for entry in written(scene, e.Lease)]


def commits(scene: Led, **samples: Samples) -> None:
    """A round in which B and C covered these."""
    round_ = scene.core.run_state.committed(0) + 1
    plan = scene.core.run_state.open_plan(0)
    assert plan is not None
    for peer in plan.roster:
        name = peer.partition(".")[0]
        stamp = scene.stamp(round_, number=plan.stamp.view)
        who = contributor(peer, round_)
        scene.hears(peer, m.ContributionOffered(stamp, who, samples.get(name, ())))
    for peer in plan.roster:
        scene.hears(peer, m.Hold(scene.stamp(round_, number=plan.stamp.view), "ab" * 16))


def test_whoever_asks_gets_what_it_wants_ahead() -> None:
    scene = leading(B, C)
    scene.hears(B, m.WantSamples(40, 0))
    assert leases(scene) == [{B: ranges((0, 40))}]
    scene.hears(C, m.WantSamples(20, 0))
    assert leases(scene)[1:] == [{C: ranges((40, 60))}]
    scene.hears(B, m.WantSamples(40, 0))
    assert len(leases(scene)) == 2, "it has them"


@pytest.mark.parametrize("carried", [0, 7, (1 << 32) - 1])
def test_nobody_gets_more_than_anybody_may_want(carried: int) -> None:
    scene = leading(B, C)
    scene.hears(B, m.WantSamples((1 << 32) - 1, carried))
    assert leases(scene) == [{B: ranges((0, WANTS_MAX + min(carried, WANTS_MAX)))}]


def two() -> Led:
    """B and C contribute, A does not; each holds 40 samples."""
    scene = leading(B, C)
    scene.on(v.TrainersLost("rests"))
    for peer in (B, C):
        scene.hears(peer, m.WantSamples(40, 0))
    assert leases(scene) == [{B: ranges((0, 40))}, {C: ranges((40, 80))}]
    return scene


def test_one_entry_for_all_once_somebody_has_half() -> None:
    scene = two()
    commits(scene, b=ranges((0, 10)), c=ranges((40, 50)))
    assert len(leases(scene)) == 2
    commits(scene, b=ranges((10, 20)), c=ranges((50, 60)))
    assert leases(scene)[2:] == [{B: ranges((80, 100)), C: ranges((100, 120))}]


def test_who_has_three_quarters_waits_for_the_next_entry() -> None:
    scene = two()
    commits(scene, b=ranges((0, 20)), c=ranges((40, 45)))
    assert leases(scene)[2:] == [{B: ranges((80, 100))}]


def test_work_that_is_carried_is_no_reserve() -> None:
    scene = two()
    scene.hears(B, m.WantSamples(40, 25))
    assert leases(scene)[2:] == [{B: ranges((80, 105))}]


def test_what_a_leaver_held_is_leased_before_anything_new() -> None:
    scene = two()
    scene.hears(C, m.Leave("asked to"))
    scene.hears(B, m.WantSamples(100, 0))
    assert leases(scene)[2:] == [{B: ranges((40, 100))}]
    assert scene.core.run_state.ledger.again == 40


def test_free_samples_go_to_one_peer_of_an_entry_alone() -> None:
    scene = two()
    commits(scene, b=ranges((0, 10)), c=ranges((40, 50)))
    ledger = scene.leader.run_state.ledger
    ledger.free, ledger.frontier = ranges((80, 90)), 90
    commits(scene, b=ranges((10, 20)), c=ranges((50, 60)))
    assert leases(scene)[2:] == [{B: ranges((80, 100)), C: ranges((100, 120))}]


def test_what_is_free_in_many_pieces_does_not_keep_anybody_waiting() -> None:
    scene = two()
    pieces = ranges(*((first, first + 1) for first in range(0, 400, 4)))
    ledger = scene.leader.run_state.ledger
    ledger.free, ledger.frontier = pieces, 400
    scene.hears(B, m.WantSamples(200, 0))
    (samples,) = leases(scene)[-1].values()
    assert len(samples) <= 34
    assert samples[-1].stop > 400
    assert sum(x.stop - x.start for x in samples) == 160


def test_only_members_are_heard() -> None:
    scene = leading(B)
    scene.comes(C)
    for peer in (C, STRANGER):
        scene.hears(peer, m.WantSamples(40, 0))
    assert leases(scene) == []


def test_who_is_gone_wants_nothing() -> None:
    scene = two()
    scene.hears(C, m.Leave("asked to"))
    assert C not in scene.leader.sample_leases.wants
    assert B in scene.leader.sample_leases.wants


def test_the_ready_of_somebody_elses_samples_is_not_heard() -> None:
    scene = two()
    ready(scene, B, number=scene.core.run_state.views[-1].view)
    stamp = scene.stamp(1, number=scene.core.run_state.views[-1].view)
    scene.hears(C, m.ContributionOffered(stamp, contributor(C, 1), ranges((30, 50))))
    reports = scene.leader.reports.open_round(0)[1]
    assert reports is not None
    assert set(reports.ready) == {B}


def test_a_commit_says_what_each_contribution_covers() -> None:
    scene = two()
    commits(scene, b=ranges((0, 10)))
    assert last(scene, e.Commit).samples == (ranges((0, 10)), ())
    commits(scene)
    assert last(scene, e.Commit).samples == ()
