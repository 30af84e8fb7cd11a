"""A whole outer synchronisation by torchft: quorum, all-reduce by gloo, vote.

Runs where torchft is installed. Must NOT import anything of lowcomm.
"""

import os
from datetime import timedelta
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import TCPStore

from benchmarks.exchanging.worker import F32, Marks, WorkerTask, hear, main, now, say, signed_source

LIGHTHOUSE = "lighthouse"
TIMEOUT = timedelta(minutes=30)  # The timeout of the harness is shorter.


class Torchft:
    """One replica group of one rank; the first worker also runs the lighthouse."""

    def __init__(self, task: WorkerTask) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = task.device
        coordination = import_module("torchft.coordination")
        self._lighthouse: Any = None
        if task.node == 0:
            self._lighthouse = coordination.LighthouseServer(
                bind=f"{task.host}:0", min_replicas=task.peers
            )
            port = self._lighthouse.address().rpartition(":")[2]
            say(task.directory, LIGHTHOUSE, f"http://{task.host}:{port}")
        self._store = TCPStore(task.host, 0, is_master=True, wait_for_workers=False)
        self._group: Any = import_module("torchft.process_group").ProcessGroupGloo(timeout=TIMEOUT)
        self._manager: Any = import_module("torchft.manager").Manager(
            pg=self._group,
            load_state_dict=_load,
            state_dict=dict[str, object],
            min_replica_size=task.peers,
            use_async_quorum=False,
            timeout=TIMEOUT,
            quorum_timeout=TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=task.host,
            store_port=self._store.port,
            lighthouse_addr=hear(task.directory, LIGHTHOUSE),
            replica_id=f"node{task.node}",
            hostname=task.host,
            init_sync=False,
        )
        self._task = task
        self._values_P = np.zeros(task.elements, np.float32)
        self._tensor = torch.from_numpy(self._values_P)

    def prepare(self, sign: int) -> None:
        signed_source(self._task.source, self._values_P, sign)

    def exchange(self) -> Marks:
        handed = now()
        self._manager.start_quorum()
        agreed = now()
        self._manager.allreduce(self._tensor).wait()
        reduced = now()
        committed = self._manager.should_commit()
        received = now()
        return Marks(
            handed=handed,
            received=received,
            contributors=self._manager.num_participants() if committed else 1,
            data_path_s=reduced - agreed,
        )

    def mean_block(self, block: slice) -> F32:
        return self._values_P[block]


def _load(state: object) -> None:
    del state  # All replicas begin with the same state, and none is lost.


if __name__ == "__main__":
    main(Torchft)
