"""A paced rank that draws the samples of each step, so that its run has a ledger of samples.

drawing_ranks.py ELEMENTS. Must NOT read a sample.
"""

import sys

from lowcomm import attach
from sims.paced.rank import PacedTrainer, RankSpeed


class DrawingTrainer(PacedTrainer):
    """Draws what a batch would have."""

    def _step(self) -> None:
        self._peer.draw()
        super()._step()


def main() -> None:
    """One rank of a node, until the run is finished."""
    peer = attach()
    DrawingTrainer(peer, RankSpeed(step_s=0.02, elements=int(sys.argv[1]))).train()
    peer.close()


if __name__ == "__main__":
    main()
