"""Values at their limits occur in simulated worlds, and every disk can be read."""

from dataclasses import replace

import pytest

from protocols.messages import log_entries as e
from protocols.types.limits import NAME_MAX, TEXT_MAX
from sims.checkers import World
from sims.simulator.limit_values import EXTREME_EVERY, EXTREME_IN
from sims.sweep import run_seed, summary


@pytest.mark.parametrize("seed", [EXTREME_IN[0], EXTREME_EVERY + EXTREME_IN[1]])
def test_a_world_of_values_at_their_limits_comes_to_its_end(seed: int) -> None:
    result = run_seed(seed)
    assert result.violations == []
    assert result.happened["limit"] >= 10
    assert result.happened["beyond a limit"] >= 6
    assert summary([result])["limits"] == result.happened["limit"]


def test_in_two_thousand_seeds_there_are_more_than_a_hundred_such_worlds() -> None:
    assert sum(seed % EXTREME_EVERY in EXTREME_IN for seed in range(2000)) > 100


def test_a_disk_with_an_entry_that_nobody_can_read_is_found() -> None:
    """As the founder's was, with a parameter's name of 129 characters."""
    world = World(1, peers=1, outer_steps=4)
    world.run(until_s=5.0)
    ((peer, node),) = world.nodes.items()
    disk = node.disk
    assert disk.saved is not None
    world.limit_values.check(world)
    assert world.checkers.violations == []
    bad = e.LogEntry(len(disk.saved.entries) + 1, 1, e.Left(peer, "x" * (TEXT_MAX + 1)))
    disk.saved = replace(disk.saved, entries=(*disk.saved.entries, bad))
    world.limit_values.check(world)
    (found,) = world.checkers.violations
    assert "cannot read its disk" in found
    assert len(peer) < NAME_MAX
