"""One averaging step by hivemind: matchmaking, then an all-reduce in parts.

Runs where hivemind is installed. Must NOT import anything of lowcomm.
"""

from importlib import import_module
from typing import Any

import torch

from benchmarks.exchanging.worker import F32, Marks, WorkerTask, hear, main, now, say, signed_source

CONTACT = "contact"
COMPRESSIONS = {
    "fp32": "NoCompression",
    "fp16": "Float16Compression",
    "int8": "Uniform8BitQuantization",
}


class Hivemind:
    """The averager's own shared tensor is the buffer, so no values are copied."""

    def __init__(self, task: WorkerTask) -> None:
        hivemind: Any = import_module("hivemind")
        # hivemind leaves some sockets behind; here they are removed with the directory.
        import_module("hivemind.p2p").P2P._UNIX_SOCKET_PREFIX = f"/unix{task.directory}/"
        contact = hear(task.directory, CONTACT).split() if task.node else []
        self._dht: Any = hivemind.DHT(
            initial_peers=contact, host_maddrs=[f"/ip4/{task.host}/tcp/0"], start=True
        )
        if task.node == 0:
            say(task.directory, CONTACT, " ".join(map(str, self._dht.get_visible_maddrs())))
        compression = getattr(import_module("hivemind.compression"), COMPRESSIONS[task.codec])
        tensor = torch.zeros(task.elements)
        self._averager: Any = hivemind.DecentralizedAverager(
            [tensor],
            self._dht,
            prefix="exchange",
            target_group_size=task.peers,  # A full group does not wait for more peers.
            min_group_size=task.peers,
            compression=compression(),
            start=True,
        )
        self._task = task
        self._values_P: F32 = tensor.numpy()

    def prepare(self, sign: int) -> None:
        with self._averager.get_tensors():
            signed_source(self._task.source, self._values_P, sign)

    def exchange(self) -> Marks:
        handed = now()
        group = self._averager.step(gather=self._task.node)
        return Marks(handed=handed, received=now(), contributors=len(group) if group else 1)

    def mean_block(self, block: slice) -> F32:
        return self._values_P[block]


if __name__ == "__main__":
    main(Hivemind)
