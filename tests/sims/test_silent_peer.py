"""A stopped or cut peer, or a disk that is full or hangs, costs the others less than the longest
timeout."""

import asyncio
from pathlib import Path

import pytest

from protocols.types import LowcommError, ProtocolConfig
from sims.cluster.stopped_thread import CANNOT_TRACE
from sims.leader_loss import ENDLESS, write_config
from sims.silent_peer import SilencePlan, play
from tests.marks import LONG, NIGHTLY

PLANS = {
    "the leader is stopped": SilencePlan(fault="stop", leader=True, times=1, lasting_s=12.0),
    "a peer is cut off": SilencePlan(fault="cut", times=1, lasting_s=12.0, means="proxy"),
    "the disk of one of two is full": SilencePlan(fault="disk", times=1, lasting_s=12.0, peers=2),
}
MORE_PLANS = {
    "the leader's disk is full": SilencePlan(fault="disk", times=1, lasting_s=12.0, leader=True),
    "the disk of one of two hangs": SilencePlan(fault="hang", times=1, lasting_s=12.0, peers=2),
    "the leader's disk hangs": SilencePlan(fault="hang", times=1, lasting_s=12.0, leader=True),
}


@pytest.mark.deadline(150)
@pytest.mark.parametrize(
    "plan",
    [
        *(pytest.param(plan, marks=LONG, id=name) for name, plan in PLANS.items()),
        *(pytest.param(plan, marks=NIGHTLY, id=name) for name, plan in MORE_PLANS.items()),
    ],
)
def test_the_others_go_on_before_the_longest_timeout(tmp_path: Path, plan: SilencePlan) -> None:
    config = write_config(tmp_path, peers=plan.peers, rounds=ENDLESS)
    try:
        played = asyncio.run(play(tmp_path / "run", config, plan))
    except LowcommError as error:
        if not str(error).startswith(CANNOT_TRACE):
            raise
        pytest.skip(str(error))
    (silence,) = played.silences
    assert played.digests_equal
    assert silence.gap_s < ProtocolConfig().silence_timeout_s
    assert silence.lost == ()
