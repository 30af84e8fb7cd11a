"""A rank that is stopped costs the other nodes no round, and its own node some seconds."""

import asyncio
from pathlib import Path

import pytest

from sims.hung_rank import play
from sims.leader_loss import write_config

pytestmark = pytest.mark.long


@pytest.mark.deadline(150)
def test_the_others_go_on_without_a_node_with_a_stopped_rank(tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=3, rounds=1_000_000)
    played = asyncio.run(play(tmp_path / "run", config, stops=1))
    (stop,) = played.stops
    assert played.digests_equal
    assert stop.stalled_s < stop.lost_s < stop.counted_s
    assert stop.gap_s < stop.lost_s, "rounds were committed before the ranks were replaced"
