"""The simulated world itself: it repeats itself exactly, and treats peers as the real one does."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocols import entries as e
from sims.faults import draw_plan, inject
from sims.nodes import Node
from sims.world import RULES, World

ROOT = Path(__file__).parent.parent.parent


def played(seed: int, *, until_s: float = 60.0) -> World:
    world = World(seed, peers=3, outer_steps=10)
    inject(world, draw_plan(seed, until_s=30.0))
    world.run(until_s=until_s)
    return world


def told(world: World) -> str:
    """Everything that happened: the story, every log, every state, the time."""
    logs = [
        f"{peer} {node.core.me.incarnation} {node.outer} {node.core.log.entries}"
        for peer, node in world.nodes.items()
    ]
    return "\n".join([f"{world.now!r}", *world.story, *logs])


def calm(peers: int = 3, *, outer_steps: int = 10) -> World:
    return World(7, peers=peers, outer_steps=outer_steps)


def followers(world: World) -> list[Node]:
    return [node for node in world.nodes.values() if not node.core.leads]


def commits(world: World) -> int:
    return len(world.checkers.commits)


def test_the_same_seed_tells_the_same_story_byte_for_byte() -> None:
    assert told(played(11)) == told(played(11))
    assert told(played(11)) != told(played(12))


def test_it_does_so_in_any_process() -> None:
    """No set of names is ever walked through in the order of its hashes."""
    program = (
        "from tests.sims.test_world import played, told; import hashlib;"
        "print(hashlib.sha256(''.join(told(played(s)) for s in (11, 15, 20)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    here = "".join(told(played(seed)) for seed in (11, 15, 20))
    assert digests == {hashlib.sha256(here.encode()).hexdigest() + "\n"}


def test_without_faults_all_finish_with_everybody_in_every_round() -> None:
    world = calm()
    world.run(until_s=60.0)
    assert [node.outcome for node in world.nodes.values()] == ["finished"] * 3
    assert [len(commit.contributors) for commit in world.checkers.commits.values()] == [3] * 10
    assert len({node.outer for node in world.nodes.values()}) == 1
    assert world.checkers.violations == []


def test_a_killed_peer_is_lost_and_the_others_finish() -> None:
    world = calm()
    victim = followers(world)[0]
    world.at(5.0, lambda: world.kill(victim))
    world.run(until_s=60.0)
    assert victim.outcome == ""
    assert not victim.alive
    log = world.leader.core.log.entries
    assert [x.body.peer for x in log if isinstance(x.body, e.Lost)] == [victim.peer]
    assert commits(world) == 10


def test_a_restarted_peer_is_the_same_peer_in_another_life() -> None:
    world = calm(outer_steps=30)
    old = followers(world)[0]
    world.at(2.5, lambda: world.restart(old))
    world.run(until_s=60.0)
    new = world.nodes[old.peer]
    assert new is not old
    assert new.core.me.incarnation == 2
    assert new.outcome == "finished"
    assert world.checkers.violations == []


def test_what_is_scheduled_for_a_dead_life_does_not_happen_in_the_next() -> None:
    world = calm()
    old = followers(world)[0]
    happened: list[str] = []
    old.after(5.0, lambda: happened.append("old"))
    world.at(1.0, lambda: world.restart(old))
    world.run(until_s=10.0)
    assert happened == []


def test_a_stopped_peer_does_everything_later() -> None:
    world = calm()
    victim = followers(world)[0]
    seen: list[float] = []
    world.at(2.0, lambda: world.pause(victim, 3.0))
    world.at(2.1, lambda: victim.after(0.1, lambda: seen.append(world.now)))
    world.run(until_s=10.0)
    assert seen == [pytest.approx(5.0)]


def test_a_cut_connection_is_dialled_again_by_who_dialled_it() -> None:
    world = calm()
    victim = followers(world)[0]
    world.run(until_s=2.5)
    line = world.network.line(victim.peer, world.leader.peer)
    before = line.connection
    world.cut(victim, world.leader)
    assert not line.up
    world.run(until_s=4.0)
    assert line.up
    assert line.connection == before + 1
    assert victim.peer in world.leader.core.members.members, "it came back in time"


def test_a_peer_that_finds_nobody_gives_up() -> None:
    world = calm(1)
    world.kill(world.leader)
    late = world.add_peer()
    world.run(until_s=60.0)
    assert late.outcome == "alone"


def test_healing_brings_as_many_as_the_run_needs() -> None:
    world = calm()
    for node in followers(world):
        world.at(0.2, lambda node=node: world.kill(node))
    world.at(5.0, world.heal)
    world.run(until_s=60.0)
    assert len(world.nodes) == 5
    assert commits(world) == 10


def test_a_busy_loop_is_noticed() -> None:
    world = calm()
    world.run(until_s=2.5)
    stuck = followers(world)[0].core.rounds[0]
    stuck.fetching.at, stuck.version = 1.0, -1  # Without a state, nothing resets it.
    world.run(until_s=3.0)
    assert any("stays in the past" in text for text in world.checkers.violations)


def test_the_rules_leave_room_for_what_is_simulated() -> None:
    assert RULES.silence_timeout_s > 2 * RULES.reconnect_grace_s - 0.1
    assert RULES.round_grace_s > RULES.reduction_timeout_s
