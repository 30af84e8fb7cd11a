"""What a node tells the ranks that replace others. Whole lives of ranks are in tests/cluster."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowcomm.config import RunConfig
from lowcomm.daemon import Daemon
from lowcomm.methods import DiLoCo
from lowcomm.replica import Replica
from peers.rank_events import RankContribution, RanksLost, RanksSnapshotted
from peers.rank_messages import Result
from peers.slots import Slots
from protocols import commands as c
from protocols import events as v
from protocols.ids import TensorSpec
from protocols.samples import SampleRange
from tests.lowcomm.replicas import stamp
from tests.lowcomm.test_daemon import daemon

LAYOUT = (TensorSpec(0, "embed", (2, 3), 0), TensorSpec(1, "norm", (4,), 0))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Daemon]:
    """Its ranks are attached, as far as it knows."""
    with daemon(tmp_path) as made:
        made.run_config = RunConfig()
        made.replica = Replica(DiLoCo(), LAYOUT)
        slots = Slots.create(made.replica.shape(1))
        made.replica.share(slots)
        made.node._provide(slots)
        yield made
        slots.close()


def given(made: Daemon) -> str:
    """What the next attempt of its ranks begins with."""
    attached = made.node.group._attached
    assert attached is not None
    return attached.rank_state


def lose(made: Daemon) -> None:
    made.node._on_event(RanksLost(0, "signal 9"))


def test_ranks_go_on_with_what_those_before_them_wrote_last(made: Daemon) -> None:
    lose(made)
    assert given(made) == ""
    for round_ in (10, 20):
        made.node._on_event(RanksSnapshotted(str(made.checkpointer.rank_state(round_))))
    lose(made)
    assert given(made) == str(made.checkpointer.rank_state(20))


def test_ranks_go_on_with_what_an_earlier_life_of_the_node_wrote(made: Daemon) -> None:
    made.checkpointer.kept_rank_state = place = made.checkpointer.rank_state(20)
    lose(made)
    assert given(made) == str(place)


def test_ranks_whose_parameters_are_not_finite_leave_nothing_to_others(made: Daemon) -> None:
    made.node._on_event(RanksSnapshotted(str(made.checkpointer.rank_state(10))))
    assert isinstance(made.replica, Replica)
    made.replica.take_local(1, np.full(4, np.nan, np.float32).data.cast("B"))
    made.node.resume(c.Resume(1, 11, "rebase", first=False, finish=False))
    lose(made)
    assert given(made) == ""


def contribute(made: Daemon, fragment: int, *, steps: int, tokens: int) -> v.ContributionReady:
    """The ranks do; what the core hears of it."""
    heard: list[v.Event] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(made.driver, "feed", heard.append)
        made.node._on_event(RankContribution(fragment, 0, steps, tokens))
    (event,) = heard
    assert isinstance(event, v.ContributionReady)
    return event


def resume(made: Daemon, fragment: int, kind: c.Verdict) -> None:
    made.node.resume(c.Resume(fragment, 11, kind, first=False, finish=False))


@pytest.mark.asyncio
async def test_work_that_no_round_counted_is_in_the_next_contribution(made: Daemon) -> None:
    contribute(made, 1, steps=3, tokens=30)
    resume(made, 1, "rebase")
    event = contribute(made, 1, steps=4, tokens=40)
    assert (event.steps, event.tokens) == (7, 70)
    assert contribute(made, 0, steps=1, tokens=10).tokens == 10, "another fragment's work"


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["counted", "anew"])
async def test_a_full_result_takes_uncounted_work_with_it(made: Daemon, kind: c.Verdict) -> None:
    """The ranks begin from the run's parameters: nothing of that work is in their next ones."""
    contribute(made, 1, steps=3, tokens=30)
    resume(made, 1, "rebase")
    resume(made, 1, kind)
    event = contribute(made, 1, steps=4, tokens=40)
    assert (event.steps, event.tokens) == (4, 40)


@pytest.mark.asyncio
async def test_lost_ranks_take_their_uncounted_work_with_them(made: Daemon) -> None:
    contribute(made, 1, steps=3, tokens=30)
    resume(made, 1, "rebase")
    lose(made)
    event = contribute(made, 1, steps=4, tokens=40)
    assert (event.steps, event.tokens) == (4, 40)


@pytest.mark.asyncio
async def test_what_is_said_of_a_result_that_waited_is_of_what_is_in_it(made: Daemon) -> None:
    """Else the snapshot of the ranks' state for round 10 would be of round 11's parameters."""
    posted: list[Result] = []
    replica, every = made.replica, made.config.node.checkpoint_every_rounds
    assert isinstance(replica, Replica)
    for round_ in (every, every + 1):
        mean = np.ones(6, np.float32).tobytes()
        replica.apply(stamp(0, round_), (0, 6), [mean], ())
        if round_ == every:
            made.node.resume(c.Resume(0, round_, "counted", first=False, finish=False))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(made.node.group, "post_result", posted.append)
        made.node.leased(c.Leased((SampleRange(0, 1 << 30),)))
    assert [(each.version, each.snapshot) for each in posted] == [(every + 1, "")]
