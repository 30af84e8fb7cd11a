"""What a node tells of ranks that have not made their first step."""

import pytest

from lowcomm.daemon.daemon import Daemon
from lowcomm.rank_control.program_notices import FIRST_STEP_TOLD_S, first_step_wait
from peers.ipc.messages import NONE, Answer, RankHello, Result, TensorPlace
from peers.ranks.attempt import HangLimits, RankAttempt
from peers.ranks.attempt_runner import AttemptRunner
from protocols.peer.wait_reason import Phase, WaitReason

NOW = 1000.0
LAYOUT = (TensorPlace(0, "a", (2, 3), 0),)
RESULT = Result(fragment=0, place=0, kind="full", version=0, inner_step=0, boundary_steps=9)


def train(made: Daemon) -> RankAttempt:
    """The node's ranks begin their first step."""
    limits = HangLimits(40.0, first_step_timeout_s=90.0)
    attempt = RankAttempt(
        0, ranks=1, hang_limits=limits, decide_boundary=lambda _: Answer(fragment=NONE)
    )
    spawner = made.ranks.group._spawner
    runner = AttemptRunner(attempt, spawner=spawner, on_stall=lambda _: None)
    made.ranks.group._running = runner
    attempt.hello(RankHello(rank=0, world_size=1, attempt=0, pid=1))
    attempt.configured(0)
    attempt.layout(0, LAYOUT, 6)
    attempt.attached(0, (0,))
    attempt.ready(0)
    attempt.result_sent(RESULT)
    return attempt


def wait(phase: Phase = "training", reason: str = "") -> WaitReason:
    return WaitReason(phase, reason, NOW, NOW + 1)


def test_a_long_first_step_is_told_with_its_limit_and_key(made: Daemon) -> None:
    group, attempt = made.ranks.group, train(made)
    for _ in range(int(FIRST_STEP_TOLD_S) - 1):
        attempt.tick([0])
    assert first_step_wait(group, wait(), NOW) is None
    for _ in range(25):
        attempt.tick([0])
    told = first_step_wait(group, wait(), NOW)
    assert told is not None
    assert told.reason == (
        "the first step of its ranks, which torch.compile may make slow "
        "(at most 90 s: node.first_step_timeout_s)"
    )
    lasts_s = FIRST_STEP_TOLD_S + 24
    assert (told.phase, told.since, told.until) == ("training", NOW - lasts_s, NOW - lasts_s + 90)
    assert first_step_wait(group, wait("reducing", "step 1: beta"), NOW) == told
    attempt.tick([1])
    assert first_step_wait(group, wait(), NOW) is None


@pytest.mark.parametrize(
    "other", [wait("waiting", "an election"), wait("training", "the run is paused by anna")]
)
def test_another_reason_is_better(made: Daemon, other: WaitReason) -> None:
    attempt = train(made)
    for _ in range(20):
        attempt.tick([0])
    assert first_step_wait(made.ranks.group, other, NOW) is None
