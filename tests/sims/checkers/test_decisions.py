"""What peers owe each other for a round, as its checker sees it."""

from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from sims.checkers import World


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_result_is_owed_while_its_attempt_can_be_committed(attempts: int) -> None:
    """Seed 3651837: a sum was ready when the view that it was made for was over."""
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    (leader,) = world.leaders
    other = next(node for node in world.live if node is not leader)
    plan = other.run_state.open_plan(0)
    assert plan is not None
    stamp = replace(plan.stamp, view=plan.stamp.view - attempts)
    other.data_plane.store.results[stamp, 0] = 1
    world.checkers.leaders.decisions.asked(other, leader.peer, m.Fetch(stamp, 0), [])
    assert any("does not send it to" in text for text in world.checkers.violations) == (
        attempts == 0
    )


@pytest.mark.parametrize("held_by_all", [False, True])
def test_results_stay_until_they_may_go(*, held_by_all: bool) -> None:
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    (leader,) = world.leaders
    commits = leader.run_state.commits[0]
    newest = commits[-1]
    assert newest.held_by_all, "nothing fails here"
    commits[-1] = replace(newest, held_by_all=held_by_all)
    world.checkers.leaders.decisions.released(leader, c.ReleaseRound(0, newest.round - 1))
    assert world.checkers.violations == []
    world.checkers.leaders.decisions.released(leader, c.ReleaseRound(0, newest.round))
    assert any("drops the result" in x for x in world.checkers.violations) != held_by_all
    leader.core.rounds[0].version = newest.round - 1
    world.checkers.leaders.decisions.released(leader, c.ReleaseRound(0, newest.round))
    assert "drops the result" in world.checkers.violations[-1], "it needs it itself"


@pytest.mark.parametrize("says", [False, True])
def test_who_is_let_in_says_what_it_holds(*, says: bool) -> None:
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    other = next(node for node in world.live if not node.core.leads)
    core = other.core
    member = e.Member(core.run_state.members[other.peer])
    have = m.Have(core.run_state.lineage, 0, core.rounds[0].version, "")
    said = [c.Send(world.leaders[0].peer, have)] if says else []
    world.checkers.leaders.decisions.let_in(other, member, said)
    assert any("does not report its state" in x for x in world.checkers.violations) != says
