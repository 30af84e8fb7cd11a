"""Lying peers in simulated runs without other faults: found, named, and of no effect."""

import pytest

from protocols.messages import log_entries as e
from sims.checkers import World
from sims.node.ranks import Training

PEERS, ROUNDS = 4, 30
LIE_FROM_S = 3.0
CHECKED = Training(checks=True, certified=True)


def played(seed: int, how: str, *, seconds: float = 60.0, training: Training = CHECKED) -> World:
    """A run in which the peer that owns the first part, and does not lead, lies."""
    world = World(seed, peers=PEERS, outer_steps=ROUNDS, training=training)

    def lies() -> None:
        owners = [
            node
            for node in world.live
            if node.run_state.views
            and node.peer in node.run_state.views[-1].parts[0].owners
            and not node.core.leads
        ]
        if owners:
            owners[0].data_plane.owner_checks.lie(how, seconds)
        else:
            world.clock.at(1.0, lies)

    world.clock.at(LIE_FROM_S, lies)
    world.operator.busy_until = LIE_FROM_S + 1.0
    world.run(until_s=300.0)
    world.checkers.run_ended(world)
    return world


def whys(world: World, kind: type[e.Attempt | e.Lost]) -> list[str]:
    return [entry.why for entry in world.checkers.log.values() if isinstance(entry, kind)]


@pytest.mark.parametrize("seed", [4, 5])
def test_an_owner_that_falsifies_its_part_is_found_each_time(seed: int) -> None:
    world = played(seed, "whole")
    assert world.checkers.violations == []
    assert world.happened["falsified part"] > 0
    assert any("found a wrong result" in why for why in whys(world, e.Attempt))
    assert any("falsified" in why for why in whys(world, e.Lost))
    assert all(node.process.outcome == "finished" for node in world.nodes.values())


def test_falsified_blocks_are_found_by_a_sample() -> None:
    world = played(7, "blocks")
    assert world.checkers.violations == []
    assert world.happened["falsified blocks"] > 0
    assert world.happened["false blocks found"] > 0


def test_a_contributor_with_two_faces_ends_no_run() -> None:
    world = played(5, "contribution")
    assert world.checkers.violations == []
    assert world.happened["false blocks"] > 0
    assert all(node.process.outcome == "finished" for node in world.nodes.values())


def test_without_checks_no_peer_lies() -> None:
    """A false result would be committed, and nothing would be wrong with the protocol."""
    world = played(3, "whole", training=Training())
    assert world.checkers.violations == []
    assert world.happened["falsified part"] == 0
