"""What has to get on, as its checker sees it."""

import pytest

from protocols.messages import log_entries as e
from sims.checkers import World
from sims.checkers.progress import CORRUPT_ROUNDS_MAX


@pytest.mark.parametrize(("members", "found"), [(3, True), (4, False)])
def test_who_is_corrupt_finds_out_while_most_hold_one_state(*, members: int, found: bool) -> None:
    """Seed 1836945194: of four members one was corrupt, and another waited for a state."""
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    progress, (node, *others) = world.checkers.progress, world.live
    first = node.core.rounds[0].version
    node.states.outers[0] += 1
    node.states.corrupt[0] = first
    for version in range(first, first + CORRUPT_ROUNDS_MAX + 1):
        for each in (node, *others):
            each.core.rounds[0].version = version
        commit = e.Commit(1, 0, version + 1, 0, (), (), "", "")
        progress.named(world, commit, members=members)
    node.core.rounds[0].version += 1
    node.process.outcome = "finished"
    progress.run_ended(world)
    late = [text for text in world.checkers.violations if "corrupted 4 rounds ago" in text]
    assert bool(late) == found
