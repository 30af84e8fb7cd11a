"""Figures of the node's ranks, for people. Must NOT decide anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.ranks import events as r


@dataclass(slots=True)
class RankFigures:
    """Figures of the node's ranks since this daemon began. RankControl writes them."""

    steps: int = 0
    """Inner steps."""
    tokens: int = 0
    loss: float = float("nan")
    tokens_per_s: float = 0.0
    loading_since: float = 0.0
    """Time at which the first attempt of the ranks was started, in seconds of the loop's clock."""
    earlier: tuple[int, int] = (0, 0)
    """(inner steps, tokens) of earlier attempts of the ranks."""

    def measured(self, metrics: r.RankMetrics) -> None:
        """The rank that reports has sent the figures of its attempt."""
        self.loss, self.tokens_per_s = metrics.loss, metrics.tokens_per_s
        self.steps = self.earlier[0] + metrics.step
        self.tokens = self.earlier[1] + metrics.tokens

    def ranks_lost(self) -> None:
        """The next attempt of the ranks counts from 0 again."""
        self.earlier = (self.steps, self.tokens)
