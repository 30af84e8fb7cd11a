"""A rank's tensors: its shards of the model, copies from and to a GPU, and exact arithmetic.

In: modules and tensors, plain or sharded by FSDP2; memory that a rank shares with its daemon. Out:
the places of a rank's elements in the flat parameters of its node, and steps with the same bits on
every device. Must NOT know a method, a round or a daemon.

Start reading: fsdp.py, then gpu_copies.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.tensors import deterministic_ops
    from lowcomm.tensors.fsdp import read_shards, shard_views, write_shards
    from lowcomm.tensors.gpu_copies import pin

__all__ = ["deterministic_ops", "pin", "read_shards", "shard_views", "write_shards"]

__getattr__ = lazy_exports(
    __name__,
    {"fsdp": "read_shards shard_views write_shards", "gpu_copies": "pin"},
)
