"""Links that are missing between peers who all hear the leader: who waits, and for how long."""

import pytest

from protocols.messages import log_entries as e
from sims.checkers import World
from sims.node.node import Node
from tests.marks import few
from tests.sims.simulator.test_world import commits, entries, followers


def cut(world: World, pairs: list[tuple[Node, Node]], *, until_s: float) -> None:
    """Nothing gets through between these, and no connection can be made."""
    for one, other in pairs:
        world.network.stall(one.peer, other.peer, until_s)
        world.network.stall(other.peer, one.peer, until_s)
        world.dialer.cut_connection(one, other)


def roster(world: World) -> set[str]:
    views = entries(world, e.View)
    return set(views[-1].roster) if views else set()


def begun(seed: int, *, peers: int) -> tuple[World, float]:
    """All train, and since when they may be expected to."""
    world, now = World(seed, peers=peers, outer_steps=4000), 12.0
    world.run(until_s=now)
    while roster(world) != set(world.nodes):
        assert now < 40.0, "they do not begin"
        now += 1.0
        world.run(until_s=now)
    return world, now


@pytest.mark.parametrize("seed", few(range(7, 19), count=2))
def test_one_of_two_that_do_not_reach_each_other_waits_and_comes_back(seed: int) -> None:
    world, now = begun(seed, peers=4)
    told: list[str] = []
    note = world.checkers.note
    world.checkers.note = lambda kind, text: (told.append(text), note(kind, text))[1]
    one, other, _ = followers(world)
    cut(world, [(one, other)], until_s=now + 48.0)
    world.run(until_s=now + 13.0)
    everybody = {node.peer for node in world.nodes.values()}
    (out,) = everybody - roster(world)
    assert out in (one.peer, other.peer)
    names = sorted((one.me.name, other.me.name))
    (said,) = [text for text in told if "no link" in text]
    assert said.startswith(f"no link between {names[0]} and {names[1]}: {out.partition('.')[0]} ")
    before = commits(world)
    world.run(until_s=now + 48.0)
    assert commits(world) >= before + 8, "rounds go on, and nobody waits for a deadline"
    assert not [x for x in entries(world, e.Attempt) if "because of" in x.why]
    world.run(until_s=now + 63.0)
    assert roster(world) == everybody, "the link is back"
    assert told[-1] == "all members are connected again"
    before = commits(world)
    world.run(until_s=now + 73.0)
    counted = {x.peer for x in entries(world, e.Commit)[-1].contributors}
    assert counted == everybody
    assert commits(world) > before
    assert not world.checkers.violations


def test_a_star_loses_its_middle_and_nobody_else() -> None:
    world, now = begun(8, peers=6)
    middle, *others = followers(world)
    cut(world, [(middle, other) for other in others], until_s=now + 48.0)
    world.run(until_s=now + 13.0)
    assert roster(world) == {node.peer for node in world.nodes.values()} - {middle.peer}


def test_a_peer_that_is_gone_costs_nobody_else_its_place() -> None:
    world, now = begun(9, peers=5)
    victim = followers(world)[0]
    rosters = len(entries(world, e.View))
    world.kill(victim)
    world.run(until_s=now + 13.0)
    assert [set(x.roster) for x in entries(world, e.View)[rosters:]] == [
        {node.peer for node in world.nodes.values()} - {victim.peer}
    ]
