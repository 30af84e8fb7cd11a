"""Nodes on a busy machine, and over bad links, stay members."""

import asyncio
from pathlib import Path

import pytest

from sims.false_loss import LossPlan, play
from sims.leader_loss import ENDLESS, write_config

pytestmark = [pytest.mark.long, pytest.mark.alone]  # A plan says itself how busy the machine is.


@pytest.mark.deadline(150)
@pytest.mark.parametrize(
    "plan",
    [
        LossPlan(seconds=20.0, load=20),
        LossPlan(seconds=20.0, loss=0.1, delay_s=0.1, means="proxy"),
    ],
    ids=["a load of 20", "a tenth of the packets lost, round trips of 200 ms"],
)
def test_no_living_node_is_declared_lost(tmp_path: Path, plan: LossPlan) -> None:
    config = write_config(tmp_path, peers=plan.peers, rounds=ENDLESS)
    played = asyncio.run(play(tmp_path / "run", config, plan))
    assert played.digests_equal
    assert played.rounds
    assert played.lost == ()
