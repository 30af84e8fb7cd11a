"""The parameters of a paced node: its ranks hold, move, contribute and replace them.

Must NOT import torch, nor know of a daemon: nodes in lockstep use this class too.
"""

import math
from collections.abc import Sequence

import numpy as np

from lowcomm.training import Kind
from peers.ipc import TensorPlace
from sims.paced.moves import initial_parameters, movement


class PacedParameters:
    """The parameters' part of lowcomm.training.interfaces.RoundState."""

    def __init__(self, layout: Sequence[TensorPlace], *, seed: int, ours: slice) -> None:
        """`ours`: the elements that this rank writes."""
        sizes = [math.prod(tensor.shape) for tensor in layout]
        self.theta_P = initial_parameters(sum(sizes), seed=seed)
        """fp32 [elements], tensor after tensor. Results of the daemon replace or correct the
        values."""
        self.data_step = 0
        """Number of the next movement. Never behind the run's step; never decreases."""
        self._ours = ours
        self._tensors: dict[int, list[tuple[int, int, int]]] = {}
        """By fragment, for each tensor: (its start in theta_P, its offset in the fragment, its
        size)."""
        start = 0
        for tensor, size in zip(layout, sizes, strict=True):
            self._tensors.setdefault(tensor.fragment, []).append((start, tensor.offset, size))
            start += size

    def move(self, slot: int) -> None:
        """Make one inner step of the node in this slot."""
        self.theta_P += movement(self.theta_P.size, slot=slot, step=self.data_step)
        self.data_step += 1

    def reach(self, step: int) -> None:
        """The run has come to this step: movements before it are not repeated."""
        self.data_step = max(self.data_step, step)

    def write(self, fragment: int, place: memoryview) -> None:
        self._write(fragment, place, self._ours)

    def copy(self, fragment: int, place: memoryview) -> None:
        self._write(fragment, place, slice(0, self.theta_P.size))

    def take_result(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        published_P = np.frombuffer(values, np.float32)
        for here, there, size in self._tensors[fragment]:
            local_P, new_P = self.theta_P[here : here + size], published_P[there : there + size]
            if kind == "delta":
                local_P += new_P
            elif mixing:  # Each operation is rounded separately, as in torch.
                local_P *= np.float32(mixing)
                local_P += new_P * np.float32(1 - mixing)
            else:
                local_P[:] = new_P

    def _write(self, fragment: int, place: memoryview, ours: slice) -> None:
        written_P = np.frombuffer(place, np.float32)
        for here, there, size in self._tensors[fragment]:
            first, last = max(here, ours.start), min(here + size, ours.stop)
            if first < last:
                written_P[there + first - here : there + last - here] = self.theta_P[first:last]
