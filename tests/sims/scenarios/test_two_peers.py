"""Worlds of two peers: they fork, meet and decide, and the checker between branches fires when fed
what must never happen."""

from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId, Version, digest_text
from sims.checkers.branches import HEALED_S, BranchChecks
from sims.node.node import Node
from sims.scenarios.fault_plan import PlannedFault, inject
from sims.scenarios.two_peers import PARTED_S, ForkWorld, draw_faults
from tests.protocols.scenes import A, B

OURS, THEIRS = (), (7,)
"""Names of branches."""


def parted() -> ForkWorld:
    """Two peers after they lost each other for just long enough that each goes on alone."""
    world = ForkWorld(8, peers=2, outer_steps=200)
    inject(world, [PlannedFault(4.0, "partition", 0, 0, PARTED_S)])
    world.run(until_s=4.0 + PARTED_S)
    assert world.happened["fork"] >= 1
    assert world.checkers.violations == []
    return world


def fork(tokens: int) -> e.Restore:
    version = Version(0, 1, digest_text("x"))
    return e.Restore(2, (version,), 8, tokens, (B,), 7, True, 0)


def fed(*, tokens: int) -> tuple[BranchChecks, list[str]]:
    """B forked with so many tokens; A has none."""
    found: list[str] = []
    branches = BranchChecks(found.append, {A: OURS, B: THEIRS})
    branches.read(B, THEIRS, fork(tokens))
    return branches, found


def test_after_a_fork_two_meet_and_one_of_them_comes_back_as_another() -> None:
    world = parted()
    one, other = world.leaders
    assert one.run_state.forks != other.run_state.forks
    world.run(until_s=60.0)
    assert world.happened["dropped"] == 1
    assert len(world.nodes) == 3
    assert len({node.run_state.forks for node in world.live}) == 1
    assert world.checkers.violations == []


def test_in_half_of_the_seeds_the_two_lose_each_other_first() -> None:
    firsts = [draw_faults(seed, until_s=30.0)[0] for seed in range(200)]
    long = [fault for fault in firsts if fault.duration_s == PARTED_S]
    assert 70 < len(long) < 130
    assert {fault.kind for fault in long} == {"partition"}


@pytest.mark.parametrize(("stays", "tokens", "found"), [
    (OURS, 3, ["has trained 3 tokens"]),
    (OURS, 0, []),
    (THEIRS, 0, ["has trained 0 tokens"]),
])  # fmt: skip
def test_the_branch_with_more_tokens_stays_and_of_equal_ones_the_older(
    stays: tuple[int, ...], tokens: int, found: list[str]
) -> None:
    branches, texts = fed(tokens=tokens)
    other = THEIRS if stays == OURS else OURS
    branches.read(A, stays, e.BranchDropped(B, other, tokens))
    assert [said in text for said, text in zip(found, texts, strict=True)] == [True] * len(found)


def test_nobody_else_votes_in_a_branch_before_its_rival_is_gone() -> None:
    branches, found = fed(tokens=3)
    voter = e.Voter(PeerId("c.3"), votes=True, why="there is a place")
    branches.read(B, OURS, voter)
    assert found == []
    branches.read(B, THEIRS, voter)
    assert found == [f"{B} is alone in its branch, and lets c.3 vote"]
    branches.read(B, THEIRS, e.BranchDropped(A, OURS, 0))
    branches.read(B, THEIRS, voter)
    assert len(found) == 1


def forked(world: ForkWorld) -> Node:
    return next(node for node in world.live if node.run_state.forks)


def test_who_said_what_it_has_commits_nothing_before_it_is_decided() -> None:
    world = parted()
    node = forked(world)
    (other,) = (x for x in world.live if x is not node)
    found: list[str] = []
    branches = BranchChecks(found.append, {})
    branches.woke(node)
    word = m.OnBranch((), 0, leads=True, final=True, leader="")
    branches.said(node, other.peer, word)
    branches.said(node, other.peer, replace(word, final=False))
    assert found == []
    branches.said(node, other.peer, word)
    node.raft.log.append(e.Elected(node.peer), term=node.raft.term)
    branches.said(node, other.peer, replace(word, final=False))
    assert "after its final position" in found[0]


def test_what_is_decided_with_the_last_word_comes_after_it() -> None:
    """Seed 3705728: the rival's word was there already."""
    world = parted()
    node = forked(world)
    (other,) = (x for x in world.live if x is not node)
    found: list[str] = []
    branches = BranchChecks(found.append, {})
    branches.woke(node)
    log, term = node.raft.log, node.raft.term
    log.append(e.BranchDropped(other.peer, (), 0), term=term)
    word = m.OnBranch((), 0, leads=True, final=True, leader="")
    branches.said(node, other.peer, word)
    log.append(e.Elected(node.peer), term=term)
    branches.said(node, other.peer, replace(word, final=False))
    assert found == []


def test_who_hangs_up_on_a_peer_that_is_stopped_meets_it_no_more() -> None:
    """Seed 3705176."""
    world = parted()
    node = forked(world)
    (other,) = (x for x in world.live if x is not node)
    found: list[str] = []
    branches = BranchChecks(found.append, {node.peer: (7,), other.peer: ()})
    branches.woke(node)
    one, two = sorted([node.peer, other.peer])
    branches._met[one, two] = world.clock.now - 1.0
    branches.looked(node)
    assert branches._met == {}
    assert found == []


def test_nobody_goes_on_alone_before_its_time_nor_finishes_in_a_branch_beside_another() -> None:
    world = parted()
    node = forked(world)
    (other,) = (x for x in world.live if x is not node)
    found: list[str] = []
    branches = BranchChecks(found.append, {node.peer: (7,), other.peer: ()})
    branches._knew[node.peer], branches._with_voter[node.peer] = (), world.clock.now - 1.0
    branches.looked(node)
    assert found == [f"{node.peer} goes on alone after 1.0 s"]
    branches.healed(world)
    finished = c.Stop("finished", "finished")
    for late in (False, True):
        world.clock.now += HEALED_S * late + 1.0
        branches.stopped(node, finished)
        branches.stopped(other, finished)
        branches.run_ended()
        assert len(found) == 1 + late
    assert "finish on different branches" in found[1]
