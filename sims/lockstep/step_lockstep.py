"""What the nodes of a stepwise run exchange, in one process and in order:
sims/lockstep/exchange.py's like.

No link, no log, no clock: a step is the mean of what every node wrote, with the bits that real
daemons make of it. Must NOT know how a node trains, nor import torch.
"""

from collections.abc import Sequence

import numpy as np

from lowcomm.methods import StepMethod
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.step_replica import StepReplica
from peers.exchange.interfaces import Bytes
from protocols.types.ids import TensorSpec


class StepLockstep:
    """One step after the other, by `exchange`."""

    def __init__(self, method: StepMethod, layout: Sequence[TensorSpec], *, seed: int) -> None:
        """`seed`: the run's. Raises LayoutError."""
        self._replica = StepReplica(method, layout, seed=seed)
        """All daemons would make the same bits: it has nothing of any node's own."""
        self.step = 0
        """The last one that was exchanged."""
        self.payload_bytes = 0
        """Of all payloads so far, encoded, each counted once."""
        self.counted: tuple[int, ...] = ()
        """Which nodes' payloads are in the last mean: one that is not finite is not."""

    def exchange(self, written: Sequence[Bytes]) -> F32:
        """The next step, of what the ranks of each node in its roster wrote, in its order: the
        mean, fp32 [elements]."""
        self.step += 1
        payloads = [self._replica.payload(memoryview(each)) for each in written]
        self.payload_bytes += self._replica.payload_bytes * len(payloads)
        mean = memoryview(bytearray(self._replica.mean_bytes))
        self.counted = tuple(self._replica.mean(self.step, payloads, mean))
        return np.frombuffer(mean, np.float32)
