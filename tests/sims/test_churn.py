"""Nodes join while others die: a token with one living address is enough."""

import asyncio
from pathlib import Path

import pytest

from sims.churn import play
from sims.leader_loss import ENDLESS, write_config

pytestmark = pytest.mark.long


@pytest.mark.deadline(150)
def test_joiners_get_in_though_their_tokens_issuers_die(tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=4, rounds=ENDLESS)
    played = asyncio.run(play(tmp_path / "run", config, peers=4, seconds=25.0, seed=1))
    assert played.digests_equal
    assert played.failed == []
    assert any(each.living < each.addresses for each in played.joined)
