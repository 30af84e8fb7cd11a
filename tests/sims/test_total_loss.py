"""After the loss of all nodes each one is resumed by its own command, and they find each other."""

import asyncio
from pathlib import Path

import pytest

from sims.leader_loss import ENDLESS, write_config
from sims.total_loss import play

CHECKPOINT_ROUNDS = 10

pytestmark = pytest.mark.long


@pytest.mark.deadline(180)
def test_resumed_nodes_without_a_configured_port_find_each_other(tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=3, rounds=ENDLESS)
    played = asyncio.run(play(tmp_path / "run", config, peers=3, times=2, seed=1))
    assert played.digests_equal
    assert played.samples == played.samples_trained
    for loss in played.losses:
        assert 0 <= loss.reached - loss.back_to <= CHECKPOINT_ROUNDS
