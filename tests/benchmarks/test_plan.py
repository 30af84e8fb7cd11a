"""Shares of runs: the plan's are of the run's method, and the measured ones of its commits."""

from pathlib import Path

import pytest

from benchmarks.plan import RUNS, Compared, EmulatedRun, main, measured_share, planned_share
from lowcomm.reports.events import Commit
from protocols.types.errors import ConfigError, LowcommError
from sims.leader_loss import write_config


def commit(name: str, inner_step: int, t: float, fragment: int = 0) -> Commit:
    return Commit(
        t=t,
        peer=f"{name}.1",
        name=name,
        fragment=fragment,
        round=inner_step // 10,
        attempt=0,
        roster=("a.1", "b.1"),
        tokens=1,
        counted=True,
        state_digest="",
        inner_step=inner_step,
    )


def test_the_measured_share_is_of_the_time_between_commits() -> None:
    events = [
        *(commit("a", 10, 5.0), commit("b", 10, 5.5)),
        *(commit("a", 20, 8.0), commit("a", 15, 9.0, fragment=1)),
        *(commit("b", 30, 9.0), commit("a", 30, 9.5)),
    ]
    assert measured_share(events, step_s=0.1) == pytest.approx(2.0 / 4.0)
    with pytest.raises(LowcommError, match="1 commits"):
        measured_share(events[:2], step_s=0.1)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_in_each_run_the_line_matters_and_is_no_ruin(run: EmulatedRun, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=run.peers, rounds=1, method=run.method)
    share, steps = planned_share(run, config)
    assert 0.4 < share < 0.96
    assert steps == 1 if "allreduce" in run.method else steps > 1


def test_a_difference_is_a_share_of_the_measured_one() -> None:
    assert Compared(name="x", rounds=8, planned=0.6, measured=0.5).off == pytest.approx(0.2)


def test_a_run_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="--only adam: there are diloco; "):
        main(only="adam")
