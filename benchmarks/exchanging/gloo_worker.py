"""All-reduce by torch's gloo, called in the usual way. Must NOT import anything of lowcomm."""

import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.exchanging.worker import F32, Marks, WorkerTask, main, now, signed_source

TIMEOUT = timedelta(minutes=30)  # The timeout of the harness is shorter.


class Gloo:
    """The sum over all workers, divided by their number: each worker's tensor has the mean."""

    def __init__(self, task: WorkerTask) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = task.device
        dist.init_process_group(
            "gloo",
            init_method=f"file://{task.directory}/store",
            rank=task.node,
            world_size=task.peers,
            timeout=TIMEOUT,
        )
        self._task = task
        self._values_P = np.zeros(task.elements, np.float32)
        self._tensor = torch.from_numpy(self._values_P)

    def prepare(self, sign: int) -> None:
        signed_source(self._task.source, self._values_P, sign)

    def exchange(self) -> Marks:
        handed = now()
        dist.all_reduce(self._tensor)
        reduced = now()
        self._tensor.div_(self._task.peers)
        return Marks(
            handed=handed,
            received=now(),
            contributors=self._task.peers,
            reduced=reduced,
        )

    def mean_block(self, block: slice) -> F32:
        return self._values_P[block]


if __name__ == "__main__":
    main(Gloo)
