"""Reports loss and speed of a rank's training loop about each second.

Must NOT make the device wait at every step: the loss is read only when it is reported.
"""

import time

import torch

from lowcomm.training.attach import Peer

INTERVAL_S = 1.0


class ProgressMeter:
    """Reports, about each second, this rank's mean loss since the last report, and the node's
    tokens per second."""

    def __init__(self, peer: Peer, device: torch.device) -> None:
        self._peer = peer
        self._step_tokens = peer.run.data.step_tokens
        self._step = 0
        self._loss = torch.zeros((), device=device)
        self._reported = (0, time.monotonic())

    def count(self, loss: torch.Tensor) -> None:
        """Count one inner step with this loss, a 0-d tensor that need not be computed yet."""
        self._step += 1
        self._loss += loss
        if time.monotonic() - self._reported[1] >= INTERVAL_S:
            self.report()

    def report(self) -> None:
        """Report the steps since the last report; do nothing if there are none."""
        step, then = self._reported
        now = time.monotonic()
        steps = self._step - step
        if steps == 0:
            return
        self._peer.metrics(
            step=self._step,
            tokens=self._step * self._step_tokens,
            loss=self._loss.item() / steps,
            tokens_per_s=steps * self._step_tokens / max(now - then, 1e-9),
        )
        self._loss.zero_()
        self._reported = (self._step, now)
