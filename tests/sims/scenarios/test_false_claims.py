"""A peer with a valid certificate claims to lead, or that newer terms began: the run goes on."""

import pytest

from protocols.messages import log_entries as e
from sims.checkers import World
from sims.node.toy_model import Training
from sims.scenarios.false_claims import CLAIMS
from sims.scenarios.fault_plan import PlannedFault, inject

FROM_S, FOR_S = 6.0, 20.0
NAMED = ("append", "votes", "old votes")
"""Claims that prove a liar."""


def play(how: str, *, peer: int) -> World:
    """Five peers, of which one makes such claims to all others every 0.3 s for 20 s."""
    world = World(16, peers=5, outer_steps=400, training=Training(certified=True))
    other = CLAIMS.index(how)
    inject(world, [PlannedFault(FROM_S, "claim", peer, other, FOR_S)])
    world.run(until_s=FROM_S + FOR_S)
    return world


@pytest.mark.parametrize("peer", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", CLAIMS)
def test_false_claims_change_nothing(how: str, peer: int) -> None:
    world = play(how, peer=peer)
    assert world.checkers.violations == []
    logs = [node.raft.log for node in world.live]
    terms = {log.last_term for log in logs}
    assert terms == {1} if how != "terms" else max(terms) < 20
    bodies = [entry.body for log in logs for entry in log.entries]
    assert not any(isinstance(x, e.Lost) and x.why == "said a liar" for x in bodies)
    said = [line for line in world.story if "claims to lead term" in line]
    assert bool(said) == (how in NAMED)
    assert max(node.run_state.committed(0) for node in world.live) >= 30, "36 without a liar"
