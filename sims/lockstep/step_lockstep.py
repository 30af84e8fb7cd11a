"""The exchange between the nodes of a stepwise run, in one process and in order; the counterpart of
sims/lockstep/exchange.py.

No link, no log, no clock: a step is the mean of the payloads of all nodes, with the bits that real
daemons compute from them. Must NOT know how a node trains, nor import torch.
"""

from collections.abc import Sequence

import numpy as np

from lowcomm.methods import StepMethod
from lowcomm.numerics import F32
from lowcomm.outer_state import StepReplica
from peers.exchange import Bytes
from protocols.types import TensorSpec


class StepLockstep:
    """Makes one step after the other with `make_step`."""

    def __init__(self, method: StepMethod, layout: Sequence[TensorSpec], *, seed: int) -> None:
        """`seed`: the run's seed. Raises LayoutError."""
        self._replica = StepReplica(method, layout, seed=seed)
        """One for all nodes: all daemons would compute the same bits, and no state is per node."""
        self.step = 0
        """The last step that was exchanged."""
        self.payload_bytes = 0
        """Bytes of all payloads so far, encoded, each counted once."""
        self.counted: tuple[int, ...] = ()
        """Nodes with payloads in the last mean; a payload that is not finite is left out."""

    def make_step(self, written: Sequence[Bytes]) -> F32:
        """Make the next step. `written`: the bytes that the ranks of each node in the roster wrote,
        in roster order. Returns the mean, fp32 [elements]."""
        self.step += 1
        payloads = [self._replica.make_payload(memoryview(each)) for each in written]
        self.payload_bytes += self._replica.payload_bytes * len(payloads)
        mean = memoryview(bytearray(self._replica.mean_bytes))
        self.counted = tuple(self._replica.write_mean(self.step, payloads, mean))
        return np.frombuffer(mean, np.float32)
