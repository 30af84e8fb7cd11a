"""The offset of eager DiLoCo: a rank's parameters are the run's parameters plus this offset.

See `lowcomm/methods/eager_diloco.py`. If no round counted a contribution, the next one includes it,
and the part of it in the offset stays there. Must NOT import torch, nor know when anything happens
(lowcomm/training/round_rank.py does).

Shapes: P elements of the fragment, fp32; elements that this rank does not hold have no meaning.
"""

from collections.abc import Sequence

import numpy as np

from lowcomm.methods import EagerDiLoCoMethod
from lowcomm.numerics.operations import F32, pseudo_gradient
from lowcomm.training.interfaces import RoundState
from peers.ipc import Result

FRAGMENT = 0  # The whole model.


class EagerOffset:
    """The offset of one rank. It ends with the rank: new ranks, and joiners, begin with zeros."""

    def __init__(
        self,
        method: EagerDiLoCoMethod,
        state: RoundState,
        fragment_bytes: Sequence[int],
        *,
        replicas: int,
    ) -> None:
        """`replicas`: M, the number of contributors until a round has counted this node."""
        (size_bytes,) = fragment_bytes
        size = size_bytes // 4
        self._method = method
        self._state = state
        self._replicas = self._expected = replicas
        self._shared_P, self._start_P, self._given_P, self._scratch_P, self._offset_P = (
            np.zeros(size, np.float32) for _ in range(5)
        )
        """S; the start of the present steps; the last contribution; scratch; and the offset O."""
        self._momentum_P = np.zeros(size if method.outer_momentum else 0, np.float32)
        self._share = np.float32(0)
        """The share of the last contribution that is in the offset."""
        self._carries = False
        """The last contribution was not counted, so the next one includes it."""

    def take_result(self, result: Result, values: memoryview) -> None:
        """Take the run's new parameters. The rank's own parameters follow with the next
        contribution, which comes at once; or now, if the result replaces the work of the ranks."""
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
        """Contribute the change since the last contribution, and apply this node's part of it."""
        assert fragment == FRAGMENT, "eager DiLoCo has one fragment"
        fresh_P = self._scratch_P
        self._state.copy(fragment, _bytes(fresh_P))
        pseudo_gradient(self._start_P, fresh_P, fresh_P)
        if self._carries:
            fresh_P += self._given_P
        # The daemon subtracts the written parameters from S.
        np.subtract(self._shared_P, fresh_P, out=self._start_P)
        self._state.take_result(fragment, _bytes(self._start_P), "full", mixing=0.0)
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
        """Begin the next steps at S + O."""
        np.add(self._shared_P, self._offset_P, out=self._start_P)
        self._state.take_result(FRAGMENT, _bytes(self._start_P), "full", mixing=0.0)


def _bytes(values_P: F32) -> memoryview:
    return values_P.view(np.uint8).data
