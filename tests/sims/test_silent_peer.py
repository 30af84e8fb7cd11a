"""A peer that is stopped or cut off costs the others a pause shorter than the longest timeout."""

import asyncio
from pathlib import Path

import pytest

from protocols.types import ProtocolConfig
from sims.leader_loss import write_config
from sims.silent_peer import ROUNDS, Plan, play

pytestmark = pytest.mark.long


@pytest.mark.deadline(150)
@pytest.mark.parametrize(
    "plan",
    [
        Plan(fault="stop", leader=True, times=1, lasting_s=20.0),
        Plan(fault="cut", times=1, lasting_s=20.0, means="proxy"),
    ],
    ids=["the leader is stopped", "a peer is cut off"],
)
def test_the_others_go_on_before_the_longest_timeout(tmp_path: Path, plan: Plan) -> None:
    config = write_config(tmp_path, peers=plan.peers, rounds=ROUNDS)
    played = asyncio.run(play(tmp_path / "run", config, plan))
    (silence,) = played.silences
    assert played.digests_equal
    assert silence.gap_s < ProtocolConfig().silence_timeout_s
    assert silence.lost == ()
