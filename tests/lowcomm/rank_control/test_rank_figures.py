"""Figures of ranks add up over their attempts."""

from lowcomm.rank_control.rank_figures import RankFigures
from peers.ranks.events import RankMetrics


def test_steps_and_tokens_add_up_over_attempts() -> None:
    figures = RankFigures()
    figures.measured(RankMetrics(0, 10, 100, 2.0, 50.0))
    figures.ranks_lost()
    assert (figures.steps, figures.tokens) == (10, 100), "as before, until new ranks report"
    figures.measured(RankMetrics(0, 3, 40, 1.5, 60.0))
    assert (figures.steps, figures.tokens) == (13, 140)
    assert (figures.loss, figures.tokens_per_s) == (1.5, 60.0)
