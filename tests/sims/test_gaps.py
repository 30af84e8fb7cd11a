"""Links that are missing between peers who all hear the leader: who waits, and for how long."""

import pytest

from protocols import entries as e
from sims.nodes import Node
from sims.world import World
from tests.sims.test_world import commits, entries, followers


def cut(world: World, pairs: list[tuple[Node, Node]], *, until_s: float) -> None:
    """Nothing gets through between these, and no connection can be made."""
    for one, other in pairs:
        world.network.stall(one.peer, other.peer, until_s)
        world.network.stall(other.peer, one.peer, until_s)
        world.cut(one, other)


def roster(world: World) -> set[str]:
    return set(entries(world, e.View)[-1].roster)


@pytest.mark.parametrize("seed", range(7, 19))
def test_one_of_two_that_do_not_reach_each_other_waits_and_comes_back(seed: int) -> None:
    world = World(seed, peers=4, outer_steps=4000)
    world.run(until_s=12.0)
    assert len(roster(world)) == 4
    told: list[str] = []
    note = world.checkers.note
    world.checkers.note = lambda kind, text: (told.append(text), note(kind, text))[1]
    one, other, _ = followers(world)
    cut(world, [(one, other)], until_s=60.0)
    world.run(until_s=25.0)
    everybody = {node.peer for node in world.nodes.values()}
    (out,) = everybody - roster(world)
    assert out in (one.peer, other.peer)
    names = sorted((one.core.me.name, other.core.me.name))
    (said,) = [text for text in told if "no link" in text]
    assert said.startswith(f"no link between {names[0]} and {names[1]}: {out.partition('.')[0]} ")
    before = commits(world)
    world.run(until_s=60.0)
    assert commits(world) >= before + 8, "rounds go on, and nobody waits for a deadline"
    assert not [x for x in entries(world, e.Attempt) if "because of" in x.why]
    world.run(until_s=75.0)
    assert roster(world) == everybody, "the link is back"
    assert told[-1] == "all members are connected again"
    before = commits(world)
    world.run(until_s=85.0)
    counted = {x.peer for x in entries(world, e.Commit)[-1].contributors}
    assert counted == everybody
    assert commits(world) > before
    assert not world.checkers.violations


def test_a_star_loses_its_middle_and_nobody_else() -> None:
    world = World(8, peers=6, outer_steps=4000)
    world.run(until_s=12.0)
    middle, *others = followers(world)
    cut(world, [(middle, other) for other in others], until_s=60.0)
    world.run(until_s=25.0)
    assert roster(world) == {node.peer for node in world.nodes.values()} - {middle.peer}


def test_a_peer_that_is_gone_costs_nobody_else_its_place() -> None:
    world = World(9, peers=5, outer_steps=4000)
    world.run(until_s=12.0)
    victim = followers(world)[0]
    rosters = len(entries(world, e.View))
    world.kill(victim)
    world.run(until_s=25.0)
    assert [set(x.roster) for x in entries(world, e.View)[rosters:]] == [
        {node.peer for node in world.nodes.values()} - {victim.peer}
    ]
