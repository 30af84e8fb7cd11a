"""What a node tells the ranks that replace others. Whole lives of ranks are in tests/cluster."""

import pytest

from lowcomm.daemon.daemon import Daemon
from peers.ranks.events import RankMetrics, RanksSnapshotted
from tests.lowcomm.rank_control.test_rank_rounds import given, lose


def test_ranks_go_on_with_what_those_before_them_wrote_last(made: Daemon) -> None:
    schedule = made.context.checkpoint_schedule
    lose(made)
    assert given(made) == ""
    for round_ in (10, 20):
        made.ranks._on_event(RanksSnapshotted(str(schedule.rank_state(round_))))
    lose(made)
    assert given(made) == str(schedule.rank_state(20))


def test_ranks_go_on_with_what_an_earlier_life_of_the_node_wrote(made: Daemon) -> None:
    schedule = made.context.checkpoint_schedule
    schedule.kept_rank_state = place = schedule.rank_state(20)
    lose(made)
    assert given(made) == str(place)


@pytest.mark.parametrize("rank", [0, 1])
def test_figures_are_those_of_all_attempts_whichever_rank_reports(made: Daemon, rank: int) -> None:
    made.ranks._on_event(RankMetrics(rank, 10, 100, 2.0, 50.0))
    lose(made)
    made.ranks._on_event(RankMetrics(rank, 5, 60, 1.0, 40.0))
    assert made.context.figures.steps == 15
