"""The process group of a node's ranks, and the device of each.

Must NOT shard a model (lowcomm/tensors/fsdp.py), nor speak with other nodes.
"""

import ctypes
import os
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from protocols.types import ConfigError

COLLECTIVE_TIMEOUT_S = 600.0
"""Seconds. Ranks of one node may load and compile for very different times. The daemon detects
hangs much earlier."""
M_MMAP_THRESHOLD = -3
"""Of mallopt(3)."""
LARGE_BYTES = 1 << 20


def rank_device(device: Literal["cpu", "cuda"], *, local_rank: int) -> torch.device:
    """This rank's own device, made the current one. Raises ConfigError if there is no such GPU."""
    if device == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f'node.device is "cuda", but rank {local_rank} has no GPU of its own: torch sees '
            f"{torch.cuda.device_count()}"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def join_node(
    device: torch.device, *, world_size: int, also_alone: bool = False
) -> DeviceMesh | None:
    """Join the node's own process group; None if there is only one rank, and so no group, unless
    one rank shall be a group `also_alone`.

    All other settings come from torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
    Blocks until all ranks have joined; call `leave_node` at the end.
    """
    if world_size == 1 and not also_alone:
        return None
    # By default gloo uses the interface of the host's name: slower to look up, and open to the
    # network.
    if os.environ.get("LOCAL_WORLD_SIZE", str(world_size)) == str(world_size):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device.type == "cpu":
        _return_large_blocks()
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
        device_id=device if device.type == "cuda" else None,
    )
    return init_device_mesh(device.type, (world_size,))


def leave_node() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _return_large_blocks() -> None:
    """Have the C library give large blocks back to the system as soon as they are freed. FSDP2
    gathers and frees the parameters of each block; by default they would leave holes in the heap,
    of a model of 101 MB in all 350 MB, more than the sharding saves."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Of glibc.
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
