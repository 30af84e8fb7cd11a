"""The paced rank of a stepwise run: it makes payloads that a test can compute.

Must NOT import torch, nor know of other nodes.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lowcomm.methods import StepMethod
from lowcomm.training import Peer, StepRank
from peers.ipc import TensorPlace
from sims.paced.moves import share, stand_in_loss
from sims.paced.step_nodes import FlexNode, PacedNode, paced_node

REPORT_INTERVAL_S = 1.0


class PacedSteps:
    """The training loop and the per-step method's torch half, in one object without torch.

    Each rank of a node holds the whole state: it reads all of it and writes its own share.
    Implements lowcomm.training.step_rank.StepState.
    """

    def __init__(self, peer: Peer, tensors: Sequence[TensorPlace], *, step_s: float) -> None:
        """Join the run and wait for its state. Raises ConfigError."""
        assert isinstance(peer.run.method, StepMethod)
        self._peer, self._data = peer, peer.run.data
        self._step_s = step_s
        self._reported = (0, time.monotonic())
        self._made = 0
        elements = sum(int(np.prod(tensor.shape)) for tensor in tensors)
        ours = self._share(elements)
        attached = peer.join(tensors, elements=ours.stop - ours.start)
        shapes = [tensor.shape for tensor in tensors]
        self._node: PacedNode = paced_node(
            peer.run.method, shapes, slot=attached.slot, seed=peer.run.seed
        )
        if attached.rank_state:
            self._recall(attached.rank_state)
        self._rank = StepRank(peer, self)
        self._rank.follow()

    def train(self) -> None:
        """Train until the run is finished."""
        while not self._peer.finished:
            until = time.monotonic() + self._step_s
            time.sleep(max(until - time.monotonic(), 0.0))
            self._made += 1
            self._rank.hand_over()
            if time.monotonic() - self._reported[1] >= REPORT_INTERVAL_S:
                self._report()
        self._report()
        if self._peer.evaluation_due:
            windows = self._data.eval_windows
            loss = stand_in_loss(self._node.state_AP[0])
            self._peer.evaluated(loss=loss, windows=windows, sample="")

    # StepState ------------------------------------------------------------------------------

    def write_payload(self, payload: memoryview) -> None:
        written = self._node.payload(self._rank.step)
        here = self._share(len(written))
        payload[here] = written[here]

    def apply_mean(self, mean: memoryview, step: int, *, counted: bool) -> None:
        elements = len(self._node.state_AP[0])
        mean_P = np.frombuffer(mean, np.float32)[:elements]
        self._node.apply(mean_P, step, counted=counted)

    def save_state(self, directory: str, step: int) -> None:
        if isinstance(self._node, FlexNode):
            Path(directory).mkdir(parents=True, exist_ok=True)
            np.savez(self._file(directory), step=step, momentum_P=self._node.momentum_P)

    def write_state(self, state: memoryview) -> None:
        ours_AP = self._node.state_AP
        written_AP = np.frombuffer(state, np.float32).reshape(ours_AP.shape)
        here = self._share(ours_AP.shape[1])
        written_AP[:, here] = ours_AP[:, here]

    def read_state(self, state: memoryview) -> None:
        ours_AP = self._node.state_AP
        ours_AP[:] = np.frombuffer(state, np.float32).reshape(ours_AP.shape)

    def _recall(self, directory: str) -> None:
        path = self._file(directory)
        if isinstance(self._node, FlexNode) and path.exists():
            with np.load(path) as kept:
                self._node.recall(int(kept["step"]), kept["momentum_P"])

    def _file(self, directory: str) -> Path:
        return Path(directory) / f"rank-{self._peer.rank}-of-{self._peer.world_size}.npz"

    def _share(self, size: int) -> slice:
        return share(size, rank=self._peer.rank, world_size=self._peer.world_size)

    def _report(self) -> None:
        made, then = self._reported
        now, tokens = time.monotonic(), self._data.batch * self._data.window
        self._peer.metrics(
            step=self._made,
            tokens=self._made * tokens,
            loss=stand_in_loss(self._node.state_AP[0]),
            tokens_per_s=(self._made - made) * tokens / max(now - then, 1e-9),
        )
        self._reported = (self._made, now)
