"""Which peers have votes while disks are full, as its checker sees it."""

from protocols.interface.commands import Persist
from protocols.raft.writes import HANG_MAX_S
from sims.checkers import World
from sims.checkers.disks import LOOK_S, NOTICE_S
from sims.node.node import Node
from sims.node.storage import SLOW_SYNC_S

LATE_S = NOTICE_S + 10 * LOOK_S


def quiet() -> tuple[World, Node, Node]:
    """Three members, of which the first leads; and the second."""
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    (leader,) = world.leaders
    return world, leader, next(node for node in world.live if node is not leader)


def look(world: World, node: Node, *, for_s: float) -> list[str]:
    """The checker looks at this node for a while; nothing else happens."""
    until = world.clock.now + for_s
    while world.clock.now < until:
        world.clock.now += LOOK_S
        world.checkers.disks.check_event(node)
    return world.checkers.violations


def test_a_peer_that_cannot_write_loses_its_vote_in_time() -> None:
    world, leader, other = quiet()
    other.raft.disk.why = "no space left"
    assert look(world, leader, for_s=NOTICE_S / 2) == []
    assert look(world, leader, for_s=LATE_S)
    assert "votes, and cannot write" in world.checkers.violations[0]


def test_what_the_leader_cannot_know_is_not_late() -> None:
    world, leader, other = quiet()
    other.raft.disk.why = "no space left"
    world.network.stall(other.peer, leader.peer, world.clock.now + LATE_S)
    assert look(world, leader, for_s=LATE_S) == []
    world.network.disconnect(other.peer, leader.peer)
    assert look(world, leader, for_s=2 * LATE_S) == []


def test_a_peer_that_can_write_gets_the_free_vote() -> None:
    world, leader, other = quiet()
    log = leader.raft.log
    log._voters[-1] = tuple(peer for peer in log.voters if peer != other.peer)
    assert look(world, leader, for_s=NOTICE_S / 2) == []
    assert look(world, leader, for_s=LATE_S)
    assert "could vote, and has a place" in world.checkers.violations[0]


def test_a_peer_whose_disk_is_slow_cannot_say_yet_that_it_has_the_log() -> None:
    world, leader, other = quiet()
    log = leader.raft.log
    log._voters[-1] = tuple(peer for peer in log.voters if peer != other.peer)
    other.disk.slow_until = world.clock.now + LATE_S
    assert look(world, leader, for_s=LATE_S + SLOW_SYNC_S) == []
    assert look(world, leader, for_s=LATE_S)


def test_a_disk_that_works_again_is_tried() -> None:
    world, _, other = quiet()
    other.raft.disk.why, other.disk.full_until = "no space left", world.clock.now + LATE_S
    assert look(world, other, for_s=2 * LATE_S) == []
    assert look(world, other, for_s=LATE_S)
    assert "does not try it" in world.checkers.violations[0]


def test_a_disk_that_hangs_is_noticed() -> None:
    world, leader, _ = quiet()
    leader.wal_writer.writes.append(Persist(99, 1, "", 1, (), None))
    leader.wal_writer.began_at = world.clock.now
    assert look(world, leader, for_s=HANG_MAX_S) == []
    assert look(world, leader, for_s=LATE_S)
    assert "does not notice that its disk hangs" in world.checkers.violations[0]


def test_a_disk_that_takes_long_is_being_tried() -> None:
    """Seed 6000611: it was slow, and full before that."""
    world, _, other = quiet()
    other.raft.disk.why = "no space left"
    other.wal_writer.writes.append(Persist(99, 1, "", 1, (), None))
    assert look(world, other, for_s=3 * LATE_S) == []
