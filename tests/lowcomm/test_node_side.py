"""What a node tells the ranks that replace others. Whole lives of ranks are in tests/cluster."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowcomm.config import RunConfig
from lowcomm.daemon import Daemon
from lowcomm.methods import DiLoCo
from lowcomm.replica import Replica
from peers.rank_events import RanksLost, RanksSnapshotted
from peers.slots import Slots
from protocols import commands as c
from protocols.ids import TensorSpec
from tests.lowcomm.test_daemon import daemon

LAYOUT = (TensorSpec(0, "embed", (2, 3), 0), TensorSpec(1, "norm", (4,), 0))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Daemon]:
    """Its ranks are attached, as far as it knows."""
    with daemon(tmp_path) as made:
        made.run_config = RunConfig()
        made.replica = Replica(DiLoCo(), LAYOUT)
        slots = Slots.create(made.replica.shape(1))
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
