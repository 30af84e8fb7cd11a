"""Simulated ranks: several fragments in flight, results that come while they train."""

from collections import Counter
from dataclasses import replace

import pytest

from protocols.interface import events as v
from protocols.types.errors import LowcommError
from protocols.types.sample_ranges import SampleRange, Samples
from sims.checkers import World
from sims.node.node import Node
from sims.node.ranks import PendingResult, Ranks, SimulatedLeases
from sims.node.toy_model import Training

STREAMING = Training(fragments=2, overlap_steps=1, overlap_max_steps=6)


def calm(training: Training, *, seed: int = 5) -> World:
    """Nothing fails; a round takes some steps, because lines are slow."""
    world = World(seed, peers=3, outer_steps=6, training=training)
    world.network.delay_s, world.network.jitter = 0.02, 0.1
    world.settings = replace(world.settings, compute_s=0.001)
    return world


def finish(world: World) -> None:
    world.run(until_s=200.0)
    assert world.finished
    assert world.checkers.violations == []
    assert len({tuple(node.states.outers) for node in world.nodes.values()}) == 1


def rounds_at_once(training: Training, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Of a whole run: how often so many rounds were under way at a peer."""
    world, most = calm(training), Counter[int]()
    given = Node.give

    def give(self: Node, event: v.Event, value: float = 0) -> None:
        given(self, event, value)
        most[sum(rounds.work.own is not None for rounds in self.core.rounds)] += 1

    monkeypatch.setattr(Node, "give", give)
    finish(world)
    assert {key[1:] for key in world.checkers.commits} == {
        (fragment, round_) for fragment in range(training.fragments) for round_ in range(1, 7)
    }
    return most


def test_two_rounds_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds_at_once(STREAMING, monkeypatch)[2] > 0


@pytest.mark.parametrize("discards", [False, True])
def test_results_may_come_after_boundaries_of_others(
    monkeypatch: pytest.MonkeyPatch, discards: bool
) -> None:
    training = Training(
        fragments=4, overlap_steps=6, overlap_max_steps=6, discards_overlap=discards
    )
    assert rounds_at_once(training, monkeypatch)[3] > 0


def test_ranks_whose_fragments_are_all_in_flight_wait_for_the_earliest() -> None:
    """A period of six steps, and results that are due after seven."""
    finish(calm(Training(fragments=3, overlap_steps=7, overlap_max_steps=7)))


@pytest.mark.parametrize("least", [0, 2])
def test_a_result_is_taken_in_its_time(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    training = Training(overlap_steps=least, overlap_max_steps=least + 4)
    world, waits = calm(training), Counter[int]()
    take = Ranks._take

    def taken(self: Ranks, result: PendingResult) -> None:
        handed = self.works[result.resume.fragment].handed
        if handed is not None:
            waits[self.last - handed.last] += 1
        take(self, result)

    monkeypatch.setattr(Ranks, "_take", taken)
    finish(world)
    assert least <= min(waits) <= max(waits) <= least + 4
    assert len(waits) > 1, "some come earlier than others"


@pytest.mark.parametrize("discards", [False, True])
def test_work_done_while_a_result_is_under_way_counts_later_or_never(discards: bool) -> None:
    training = Training(overlap_steps=3, overlap_max_steps=5, discards_overlap=discards)
    world = calm(training)
    finish(world)
    counted = sum(
        term.steps for commit in world.checkers.commits.values() for term in commit.contributors
    )
    made = sum(world.story.steps[peer] for peer in world.nodes)
    assert (counted <= made - 3 * 5 * 3) == discards


def test_a_crash_does_not_confuse_what_is_in_flight() -> None:
    world = calm(STREAMING, seed=6)
    for at_s in (1.0, 2.0, 3.1):
        world.clock.at(at_s, lambda: list(world.nodes.values())[1].lose_trainers(0.3))
    finish(world)


# Samples --------------------------------------------------------------------------------------


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def step(sample_leases: SimulatedLeases, wanted: int) -> list[int]:
    drawn = sample_leases.draw(wanted)
    sample_leases.count_step()
    return drawn


def more_follow() -> bool:
    """The result is not the last one."""
    return False


def give(sample_leases: SimulatedLeases, *, anew: bool = False) -> None:
    """The next result of the anchor, once there is enough."""
    sample_leases.post(
        lambda: sample_leases.take(sample_leases.lease, anew=anew, last=False), more_follow
    )


def test_ranks_draw_the_lowest_and_say_it_once() -> None:
    sample_leases = SimulatedLeases(interval=4)
    sample_leases.leased(ranges((2, 4), (7, 20)))
    give(sample_leases)
    assert step(sample_leases, 3) == [2, 3, 7]
    assert sample_leases.contribute() == ranges((2, 4), (7, 8))
    assert sample_leases.contribute() == ()


def test_a_result_waits_until_there_is_enough() -> None:
    sample_leases, begun = SimulatedLeases(interval=4), list[str]()
    sample_leases.post(lambda: begun.append("now"), more_follow)
    sample_leases.leased(ranges((0, 3)))
    assert begun == []
    sample_leases.leased(ranges((0, 4)))
    sample_leases.leased(ranges((0, 9)))
    assert begun == ["now"]


def test_the_last_result_waits_for_nothing() -> None:
    sample_leases, begun = SimulatedLeases(interval=4), list[str]()
    sample_leases.post(lambda: begun.append("now"), lambda: True)
    assert begun == ["now"]


def test_what_the_anchor_had_last_feeds_other_fragments_to_their_end() -> None:
    sample_leases, needs_steps, begun = SimulatedLeases(interval=4), [True], list[str]()
    sample_leases.post(lambda: begun.append("now"), lambda: not needs_steps)
    assert begun == []
    needs_steps.clear()
    sample_leases.post_waiting()
    assert begun == ["now"]
    sample_leases.leased(ranges((0, 4)))
    sample_leases.take(sample_leases.lease, anew=True, last=True)
    assert [step(sample_leases, 3) for _ in range(2)] == [[0, 1, 2], [0, 1, 2]]


def test_ranks_that_are_gone_get_no_result_that_waits() -> None:
    sample_leases, begun = SimulatedLeases(interval=4), list[str]()
    sample_leases.post(lambda: begun.append("now"), more_follow)
    sample_leases.drop_all()
    sample_leases.leased(ranges((0, 9)))
    assert begun == []


def test_what_is_leased_meanwhile_is_drawn_after_the_next_result() -> None:
    sample_leases = SimulatedLeases(interval=4)
    sample_leases.leased(ranges((0, 4)))
    give(sample_leases)
    sample_leases.leased(ranges((50, 60)))
    assert step(sample_leases, 4) == [0, 1, 2, 3]
    with pytest.raises(LowcommError, match="no 1 samples left"):
        step(sample_leases, 1)
    give(sample_leases)
    assert step(sample_leases, 2) == [50, 51]


def test_what_steps_used_since_they_contributed_is_drawn_again_only_if_it_is_thrown_away() -> None:
    sample_leases = SimulatedLeases(interval=2)
    sample_leases.leased(ranges((0, 9)))
    give(sample_leases)
    assert step(sample_leases, 2) == [0, 1]
    sample_leases.contribute()
    assert step(sample_leases, 2) == [2, 3]
    sample_leases.leased(ranges((2, 9)))
    give(sample_leases)
    assert step(sample_leases, 1) == [4]
    give(sample_leases, anew=True)
    assert step(sample_leases, 1) == [2]
