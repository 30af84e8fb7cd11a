"""When a run went back too far, or for nothing, as its checker sees it."""

from protocols.interface import events as v
from protocols.leader import recovery
from protocols.messages.peer import Kept
from protocols.types.ids import Version
from sims.checkers import World
from sims.node.node import Node


def quiet() -> tuple[World, Node, Node]:
    """Three members that have made some rounds: the leader, and another one."""
    world = World(10, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    (leader,) = world.leaders
    return world, leader, next(node for node in world.live if node is not leader)


def start(world: World, leader: Node, *, tokens: int) -> Kept:
    """A checkpoint of the initial state, which claims so many tokens."""
    assert leader.core.led_term is not None
    head, agreement = leader.core.led_term.head, world.checkers.history.agreement
    origin = agreement.origin(0, 0)
    digest, _ = agreement.states[origin, 0, 0]
    return Kept(head.lineage, (Version(0, 0, digest),), 0, tokens)


def goes_back(world: World, leader: Node, *, tokens: int) -> list[str]:
    led_term = leader.core.led_term
    assert led_term is not None
    assert led_term.append(recovery.back_to(led_term.head, start(world, leader, tokens=tokens)))
    world.checkers.leaders.rollback.check_event(leader, v.DeadlineReached())
    return world.checkers.violations


def test_a_run_does_not_go_back_while_a_member_has_its_state() -> None:
    world, leader, _ = quiet()
    found = goes_back(world, leader, tokens=0)
    assert any("has the newest state" in text for text in found)


def test_a_run_goes_back_to_the_newest_checkpoint_that_its_leader_heard_of() -> None:
    world, leader, other = quiet()
    world.checkers.leaders.rollback.check_event(
        leader, v.MessageReceived(other.peer, start(world, leader, tokens=1 << 40))
    )
    found = goes_back(world, leader, tokens=7)
    assert any(f"{other.peer} keeps a checkpoint of {1 << 40}" in text for text in found)


def test_a_checkpoint_of_another_branch_is_none_to_go_back_to() -> None:
    world, leader, other = quiet()
    kept = Kept(1, (Version(0, 999, "f" * 32),), 0, 1 << 40)
    world.checkers.leaders.rollback.check_event(leader, v.MessageReceived(other.peer, kept))
    found = goes_back(world, leader, tokens=7)
    assert not any("keeps a checkpoint" in text for text in found)


def test_the_state_of_a_donor_that_lied_is_none_to_go_on_from() -> None:
    """Seed 6000986: the joiner, which led, had found it out."""
    world, leader, _ = quiet()
    world.checkers.transfers.liars |= {node.peer for node in world.live}
    assert not any("has the newest state" in text for text in goes_back(world, leader, tokens=0))
