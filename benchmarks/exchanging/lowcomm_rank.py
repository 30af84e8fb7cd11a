"""A rank under a real daemon that does no inner work: it contributes when the gate opens.

Must NOT import torch.
"""

import numpy as np

from benchmarks.exchanging.worker import (
    BLOCK_ELEMENTS,
    F32,
    Marks,
    WorkerTask,
    blocks,
    main,
    now,
    read_source,
)
from lowcomm import attach
from lowcomm.numerics import operations
from peers.ipc import Result
from sims.paced import FRAGMENT, tensors


class ExchangingRank:
    """A rank that exchanges on order. The outer optimizer has a learning rate of 1 and no momentum,
    so the outer parameters move by minus the mean of the contributions."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._peer = attach()
        self._client = self._peer.client
        self._before_P = np.zeros(task.elements, np.float32)
        self._theta_P = np.zeros(task.elements, np.float32)
        self._scratch = np.empty(BLOCK_ELEMENTS, np.float32)
        self._exchanges = 0
        attached = self._peer.join(tensors(task.elements), elements=task.elements)
        if attached.initial:
            self._write()
            self._contribute(steps=0)
        self._take(self._client.wait_result(FRAGMENT))

    def prepare(self, sign: int) -> None:
        """Train: move the parameters by minus the contribution."""
        self._before_P[:] = self._theta_P
        move = np.subtract if sign > 0 else np.add
        for block in blocks(self._task.elements):
            scratch = self._scratch[: block.stop - block.start]
            read_source(self._task.source, scratch, start=block.start)
            move(self._theta_P[block], scratch, out=self._theta_P[block])
        self._exchanges += 1
        self._client.count_step(self._exchanges)

    def exchange(self) -> Marks:
        began = now()
        self._write()
        self._contribute(steps=1)
        handed = now()
        result = self._client.wait_result(FRAGMENT)
        published = now()
        self._take(result)
        received = now()
        return Marks(
            handed=handed,
            received=received,
            copy_in_s=handed - began,
            copy_out_s=received - published,
        )

    def mean_block(self, block: slice) -> F32:
        return self._before_P[block] - self._theta_P[block]

    def _write(self) -> None:
        written_P = np.frombuffer(self._client.contribution(FRAGMENT), np.float32)
        operations.copy(self._theta_P, written_P, of_bytes=self._theta_P.nbytes)

    def _contribute(self, *, steps: int) -> None:
        run = self._peer.run
        tokens = steps * run.data.batch * run.data.window
        self._client.contribute(FRAGMENT, steps=steps, tokens=tokens)

    def _take(self, result: Result) -> None:
        published_P = np.frombuffer(self._client.result(result), np.float32)
        if result.kind == "full":
            operations.copy(published_P, self._theta_P, of_bytes=self._theta_P.nbytes)
        else:
            self._theta_P += published_P
        self._client.check_untorn(result)
        if result.finish:
            self._peer.finish(evaluate=result.evaluate)


if __name__ == "__main__":
    main(ExchangingRank)
