"""A rank's tensors: names, shards, GPU copies, exact arithmetic.

In: any torch.nn.Module, wrapped, sharded, or with parts that no node trains; memory that a rank
shares with its daemon. Out: names without wrappers, the places of a rank's elements in the flat
parameters of its node, buffers, fingerprints of frozen tensors, and steps with the same bits on
every device. Must NOT know a method, a round or a daemon.

Start reading: names.py, then fsdp.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.tensors import deterministic_ops
    from lowcomm.tensors.fsdp import node_shards, read_shards, write_shards
    from lowcomm.tensors.gpu_copies import pin

__all__ = ["deterministic_ops", "node_shards", "pin", "read_shards", "write_shards"]

__getattr__ = lazy_exports(
    __name__,
    {"fsdp": "read_shards node_shards write_shards", "gpu_copies": "pin"},
)
