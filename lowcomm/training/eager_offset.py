"""What ranks of eager DiLoCo hold beside the run's parameters: their offset from these.

See `lowcomm/methods/eager_diloco.py`. A contribution that no round counted stays in the next one,
and so does what the offset has of it already. Must NOT import torch, nor know when anything
happens (lowcomm/training/round_rank.py does).

Shapes: P elements of the fragment, fp32; of those that this rank does not hold nothing is said.
"""

from collections.abc import Sequence

import numpy as np

from lowcomm.methods import EagerDiLoCo
from lowcomm.numerics.operations import F32, pseudo_gradient
from lowcomm.training.interfaces import RoundState
from peers.ipc.messages import Result

FRAGMENT = 0  # The whole model.


class Offset:
    """Of one rank. It ends with the rank: new ones, and joiners, begin without an offset."""

    def __init__(
        self,
        method: EagerDiLoCo,
        state: RoundState,
        fragment_bytes: Sequence[int],
        *,
        replicas: int,
    ) -> None:
        """`replicas`: M, until a round has counted us."""
        (size_bytes,) = fragment_bytes
        size = size_bytes // 4
        self._method = method
        self._state = state
        self._replicas = self._expected = replicas
        self._shared_P, self._start_P, self._given_P, self._scratch_P, self._offset_P = (
            np.zeros(size, np.float32) for _ in range(5)
        )
        """S; where the present steps began; what was contributed last; and O."""
        self._momentum_P = np.zeros(size if method.outer_momentum else 0, np.float32)
        self._share = np.float32(0)
        """The part of what was contributed last that is in the offset."""
        self._carries = False
        """It was not counted."""

    def take(self, result: Result, values: memoryview) -> None:
        """The run's parameters are others now; ours become so with the next contribution, which
        follows at once, or now if we begin anew."""
        new_P = np.frombuffer(values, np.float32)
        self._carries = result.kind == "delta"
        if self._carries:
            self._shared_P += new_P
            return
        self._shared_P[:] = new_P
        if result.counted:
            self._replicas = result.contributors
            return
        for array_P in (self._offset_P, self._momentum_P, self._given_P):
            array_P[:] = 0
        self._share, self._replicas = np.float32(0), self._expected
        self._begin()

    def write(self, fragment: int, place: memoryview) -> None:
        """Contribute what the steps since the last time made, and apply our part of it."""
        assert fragment == FRAGMENT, "eager DiLoCo has one fragment"
        fresh_P = self._scratch_P
        self._state.copy(fragment, _bytes(fresh_P))
        pseudo_gradient(self._start_P, fresh_P, fresh_P)
        if self._carries:
            fresh_P += self._given_P
        # The daemon takes what is written from S.
        np.subtract(self._shared_P, fresh_P, out=self._start_P)
        self._state.take(fragment, _bytes(self._start_P), "full", mixing=0.0)
        self._state.write(fragment, place)
        share = np.float32(1 / self._replicas)
        drive_P = self._given_P
        drive_P *= -self._share
        drive_P += fresh_P * share
        offset_P, momentum_P = self._offset_P, self._momentum_P
        self._method.outer_step(offset_P, momentum_P, drive_P, offset_P, momentum_P)
        self._given_P, self._scratch_P, self._share = fresh_P, drive_P, share
        self._begin()

    def _begin(self) -> None:
        """The next steps begin at S + O."""
        np.add(self._shared_P, self._offset_P, out=self._start_P)
        self._state.take(FRAGMENT, _bytes(self._start_P), "full", mixing=0.0)


def _bytes(values_P: F32) -> memoryview:
    return values_P.view(np.uint8).data
