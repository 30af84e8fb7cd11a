"""Paced ranks of which the first ones of a node go wrong; those that replace them do not.

    once_wrong.py infinite MARKER       a parameter becomes NaN
    once_wrong.py weightless MARKER     no step has a token

MARKER is a file that the first ones make. Must NOT tell the daemon that anything is wrong.
"""

import sys
from pathlib import Path

import numpy as np

from lowcomm.training.attach import Peer, attach
from sims.paced.rank import PacedTrainer, RankSpeed

PACE = RankSpeed(step_s=0.005, elements=6001)
WRONG_FROM = 12
"""The inner step, of methods that have contributed before."""


class OnceWrong(PacedTrainer):
    """One rank."""

    def __init__(self, peer: Peer, what: str, marker: Path) -> None:
        self._what = what if not marker.exists() else ""
        marker.touch()
        super().__init__(peer, PACE)

    def _step(self) -> None:
        if self._what == "infinite" and self._rank.steps == WRONG_FROM:
            self._parameters.theta_P[PACE.elements // 3] = np.nan
        super()._step()

    @property
    def _step_tokens(self) -> int:
        return 0 if self._what == "weightless" else super()._step_tokens


if __name__ == "__main__":
    peer = attach()
    OnceWrong(peer, sys.argv[1], Path(sys.argv[2])).train()
    peer.close()
