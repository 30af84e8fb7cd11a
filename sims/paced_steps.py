"""The paced rank of a stepwise run: payloads that a test can work out, a state of three arrays.

Must NOT import torch, nor know of other nodes.
"""

import time

import numpy as np

from lowcomm.attachment import Peer
from lowcomm.outer import F32
from lowcomm.step_rank import StepRank
from sims.paced_moves import initial_parameters, movement, share, stand_in_loss, tensors

REPORT_INTERVAL_S = 1.0


class PacedSteps:
    """What `AllReduce` and its training loop are to a rank with torch, in one object.

    Every rank of a node has the whole state; each reads all and writes its own share.
    Implements lowcomm.step_rank.StepState.
    """

    def __init__(self, peer: Peer, *, elements: int, step_s: float) -> None:
        """Join the run and wait for its state."""
        self.state_3P = np.zeros((3, elements), np.float32)
        """The parameters, the last mean, and how many steps were applied."""
        self.state_3P[0] = initial_parameters(elements, seed=peer.run.seed)
        self._peer = peer
        self._step_s = step_s
        self._share = share(elements, rank=peer.rank, world_size=peer.world_size)
        self._reported = (0, time.monotonic())
        self._made = 0
        attached = peer.join(tensors(elements), elements=self._share.stop - self._share.start)
        self._slot = attached.slot
        self._rank = StepRank(peer, self)
        self._rank.follow()

    def train(self) -> None:
        """Until the run is finished."""
        while not self._peer.finished:
            until = time.monotonic() + self._step_s
            time.sleep(max(until - time.monotonic(), 0.0))
            self._made += 1
            self._rank.hand_over()
            if time.monotonic() - self._reported[1] >= REPORT_INTERVAL_S:
                self._report()
        self._report()
        if self._peer.evaluation_due:
            windows = self._peer.run.data.eval_windows
            self._peer.evaluated(loss=stand_in_loss(self.state_3P[0]), windows=windows, sample="")

    # StepState ------------------------------------------------------------------------------

    def write_payload(self, payload: memoryview) -> None:
        here, elements = self._share, self.state_3P.shape[1]
        moved_P = movement(elements, slot=self._slot, step=self._rank.step)
        np.frombuffer(payload, np.float32)[here] = moved_P[here]

    def apply(self, mean: memoryview, step: int) -> None:
        apply_step(self.state_3P, np.frombuffer(mean, np.float32), step)

    def write_state(self, state: memoryview) -> None:
        written_3P = np.frombuffer(state, np.float32).reshape(self.state_3P.shape)
        written_3P[:, self._share] = self.state_3P[:, self._share]

    def read_state(self, state: memoryview) -> None:
        self.state_3P[:] = np.frombuffer(state, np.float32).reshape(self.state_3P.shape)

    def _report(self) -> None:
        made, then = self._reported
        now, tokens = time.monotonic(), self._peer.run.data.batch * self._peer.run.data.window
        self._peer.metrics(
            step=self._made,
            tokens=self._made * tokens,
            loss=stand_in_loss(self.state_3P[0]),
            tokens_per_s=(self._made - made) * tokens / max(now - then, 1e-9),
        )
        self._reported = (self._made, now)


def apply_step(state_3P: F32, mean_P: F32, step: int) -> None:
    """What completing a step does to the state: theta + mean, the mean, the step."""
    state_3P[0] += mean_P
    state_3P[1] = mean_P
    state_3P[2] = np.float32(step)
