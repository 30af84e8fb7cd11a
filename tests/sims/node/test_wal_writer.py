"""Tickets come to a simulated disk one after the other, however slow it is."""

from protocols.interface import commands as c
from protocols.interface import events as v
from sims.checkers import World
from sims.node.storage import SLOW_SYNC_S
from sims.scenarios.fault_plan import (
    ANY,
    HUNG_EVERY,
    HUNG_IN,
    KINDS,
    SLOW_DISKS_EVERY,
    SLOW_DISKS_IN,
    draw_plan,
    inject,
)
from sims.scenarios.two_peers import draw_faults
from sims.sweep import run_seed


def begun() -> World:
    world = World(1, peers=3, outer_steps=200)
    world.run(until_s=8.0)
    return world


def test_a_slow_disk_takes_one_write_at_a_time_and_each_longer_than_an_election() -> None:
    world = begun()
    node = world.live[1]
    node.disk.slow_until = world.clock.now + 60.0
    world.run(until_s=world.clock.now + 1.0)
    safe, saved = node.raft.disk.safe, node.disk.saved
    assert node.wal_writer.writes
    world.run(until_s=world.clock.now + SLOW_SYNC_S / 2)
    assert (node.raft.disk.safe, node.disk.saved) == (safe, saved)
    world.run(until_s=world.clock.now + SLOW_SYNC_S)
    assert safe < node.raft.disk.safe <= safe + 2
    assert world.settings.rules.election_timeout_s < SLOW_SYNC_S


def test_a_write_behind_one_that_failed_does_not_come_to_the_disk() -> None:
    """It builds on what is not there: the log would have a gap."""
    world = begun()
    node = world.live[1]
    node.wal_writer.writes.clear()
    term, vote, saved = node.raft.term, node.raft.election.state.vote, node.disk.saved
    failed: list[int] = []
    node.disk.full_until = world.clock.now + 0.5
    node.disk.slow_until = 0.0
    give = node.give

    def spy(event: v.Event, value: int | float = 0) -> None:
        if isinstance(event, v.PersistFailed):
            failed.append(event.write_number)
        else:
            give(event, value)

    node.give = spy
    for write_number in (901, 902):
        node.wal_writer.write(c.Persist(write_number, term, vote, 10_000, (), None, 0))
    node.disk.full_until = world.clock.now + 0.2
    world.run(until_s=world.clock.now + 0.1)
    node.disk.full_until = 0.0
    world.run(until_s=world.clock.now + 0.5)
    assert failed[:2] == [901, 902]
    assert node.disk.saved == saved


def test_a_disk_that_hangs_ends_its_write_afterwards_and_the_others_go_on_meanwhile() -> None:
    world = begun()
    (leader,) = world.leaders
    leader.disk.hung_until = world.clock.now + 20.0
    safe, commits = leader.raft.disk.safe, len(world.checkers.commits)
    world.run(until_s=world.clock.now + 19.0)
    disk = leader.raft.disk
    assert (disk.works, leader.core.leads) == (False, False)
    assert disk.safe <= safe + 1, "the write that was under way"
    assert len(leader.wal_writer.writes) == 1
    assert len(world.checkers.commits) > commits + 5
    world.run(until_s=world.clock.now + 3.0)
    assert disk.works
    assert world.checkers.violations == []


def test_hung_disks_have_seeds_of_their_own() -> None:
    for draw in (draw_plan, draw_faults):
        drawn = [draw(seed, until_s=30.0) for seed in range(HUNG_EVERY)]
        hung = {seed for seed, plan in enumerate(drawn) if "hung_disk" in {x.kind for x in plan}}
        assert hung == set(HUNG_IN)


def test_slow_disks_have_seeds_of_their_own() -> None:
    drawn = [draw_plan(seed, until_s=30.0) for seed in range(SLOW_DISKS_EVERY)]
    slow = {seed for seed, plan in enumerate(drawn) if "slow_disk" in {x.kind for x in plan}}
    assert slow == set(SLOW_DISKS_IN)
    rare = {"slow_disk", "hung_disk", "ranks_stall", "liar", "claim", "revoke", "steer"}
    assert set(KINDS) - set(ANY) == rare


def test_of_many_peers_some_read_the_log_through_relays() -> None:
    result = run_seed(49)
    assert result.violations == []
    assert result.happened["relay plan"] >= 1


def test_a_run_with_slow_disks_ends_well() -> None:
    world = World(1, peers=5, outer_steps=30)
    inject(world, [x for x in draw_plan(29, until_s=30.0) if x.kind == "slow_disk"])
    world.clock.at(30.0, world.heal)
    world.run(until_s=300.0)
    assert world.happened["slow_disk"] >= 1
    assert world.checkers.violations == []
