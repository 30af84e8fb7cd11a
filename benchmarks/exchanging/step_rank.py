"""A rank of a stepwise run that computes nothing: the time from a payload to the mean.

    lowcomm peer run.toml --new -- python -m benchmarks.exchanging.step_rank ELEMENTS FILE

Must NOT import torch.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from lowcomm import attach
from lowcomm.numerics import F32
from lowcomm.training import StepRank
from sims.paced import tensors


class TimedSteps:
    """Implements lowcomm.training.step_rank.StepState."""

    def __init__(self, elements: int) -> None:
        self.seconds: list[float] = []
        """Seconds of each step, from the payload handed over to the mean in this rank's own
        buffer."""
        # Each payload differs from the others: equal bytes would not be received again.
        self._values_P: F32 = np.arange(elements, dtype=np.float32)
        self._values_P += np.float32(os.getpid())
        self._mean_P: F32 = np.zeros(elements, np.float32)
        self._handed = 0.0

    def write_payload(self, payload: memoryview) -> None:
        self._handed = time.perf_counter()
        np.frombuffer(payload, np.float32)[:] = self._values_P
        self._values_P += np.float32(1 / 64)

    def apply_mean(self, mean: memoryview, step: int, *, counted: bool) -> None:
        del step, counted
        self._mean_P[:] = np.frombuffer(mean, np.float32)
        self.seconds.append(time.perf_counter() - self._handed)

    def save_state(self, directory: str, step: int) -> None:
        return  # No state is kept after the measurement.

    def write_state(self, state: memoryview) -> None:
        np.frombuffer(state, np.float32)[: self._mean_P.size] = self._mean_P

    def read_state(self, state: memoryview) -> None:
        self._mean_P[:] = np.frombuffer(state, np.float32)[: self._mean_P.size]


def main(elements: int, file: Path) -> None:
    """Follow the run until it is finished; then write the seconds of each step to the file."""
    peer, state = attach(), TimedSteps(elements)
    peer.join(tensors(elements), elements=elements)
    rank = StepRank(peer, state)
    rank.follow()
    while not peer.finished:
        rank.hand_over()
    if peer.evaluation_due:
        peer.evaluated(loss=0.0, windows=peer.run.data.eval_windows, sample="")
    file.write_text(json.dumps(state.seconds), encoding="ascii")
    peer.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
