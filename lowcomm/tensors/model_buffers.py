"""The buffers of a model that nodes exchange: this rank's part of each, out and in.

They are the persistent ones, as in a state_dict, and lie in a fragment of their own, fp32, densely
packed (lowcomm/methods/buffers.py). FSDP2 leaves buffers plain on every rank, where each rank's own
samples change them. Rank 0's are contributed, as DistributedDataParallel takes them too: ranks need
not wait for each other, and a mean over ranks would be no better estimate of statistics that nodes
average anyway. All ranks get the result. Must NOT know rounds, nor keep a tensor: modules may
replace theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcomm.tensors.fsdp import whole, window
from lowcomm.tensors.gpu_copies import wait_for_copies
from lowcomm.tensors.names import named_buffers
from lowcomm.tensors.placement import local_of, placement_of
from peers.ipc import TensorPlace
from protocols.types import ConfigError, TensorKind

EXACT_MAX = 1 << 24
"""Integers up to this magnitude are exact as fp32."""
_INSTEAD = 'register it with persistent=False, or set run.buffers = "local"'


@dataclass(frozen=True, slots=True, eq=False)
class BufferView:
    """The part of one buffer that one rank holds."""

    place: TensorPlace
    """Name, full shape, and offset of the buffer in its fragment."""
    owner: nn.Module
    own_name: str
    """The buffer's name in the module `owner`."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    writes: bool
    """As in `lowcomm.tensors.fsdp.ShardView`."""

    @property
    def local(self) -> Tensor:
        """This rank's part itself, not a copy."""
        return local_of(getattr(self.owner, self.own_name))

    @property
    def elements(self) -> int:
        """Number of elements that this rank writes."""
        return self.place.elements if self.writes else 0


def buffer_views(model: nn.Module, *, rank: int, fragment: int) -> list[BufferView]:
    """This rank's parts of all persistent buffers that have elements, in the order of
    `model.named_buffers()`, which lie in this fragment.

    Raises ConfigError for a buffer that is sharded, complex, or now not finite (a mask), and for
    integers beyond 2**24.
    """
    views: list[BufferView] = []
    end = 0
    for name, owner, own_name in named_buffers(model):
        tensor: Tensor = getattr(owner, own_name)
        if not tensor.numel():
            continue
        found = placement_of(name, tensor, rank)
        if found.sizes != tuple(tensor.shape):
            raise ConfigError(f"buffer {name} is sharded, so nodes cannot average it: {_INSTEAD}")
        place = TensorPlace(fragment, name, tuple(tensor.shape), end, _kind(name, tensor))
        end += tensor.numel()
        views.append(BufferView(place, owner, own_name, found.offsets, found.sizes, found.writes))
    return views


def floating_buffer(model: nn.Module) -> str:
    """The name of the first persistent floating buffer that has elements; "" if there is none."""
    named = ((name, getattr(owner, own)) for name, owner, own in named_buffers(model))
    return next((n for n, each in named if each.is_floating_point() and each.numel()), "")


@torch.no_grad()
def write_buffers(views: Sequence[BufferView], buffer: memoryview) -> None:
    """Copy the buffers that this rank writes to their places in the fragment, uint8
    [fragment_bytes]. Integers stop at 2**24."""
    elements_P = whole(buffer)
    for view in views:
        if view.writes:
            values = view.local
            if view.place.kind == "counter":
                values = values.double().clamp_(-EXACT_MAX, EXACT_MAX)
            window(elements_P, view).copy_(values)


@torch.no_grad()
def read_buffers(views: Sequence[BufferView], buffer: memoryview) -> None:
    """Replace all buffers by those in the fragment, uint8 [fragment_bytes], read-only; each is
    rounded to its own type."""
    elements_P = whole(buffer)
    for view in views:
        view.local.copy_(window(elements_P, view), non_blocking=True)
    if views:
        wait_for_copies(views[0].local.device)


def _kind(name: str, tensor: Tensor) -> TensorKind:
    local = local_of(tensor)
    if local.is_floating_point():
        if not local.isfinite().all():
            raise ConfigError(
                f"buffer {name} is not finite, so nodes cannot average it: {_INSTEAD}"
            )
        return "buffer"
    if local.is_complex() or local.is_quantized:
        raise ConfigError(
            f"buffer {name} is {local.dtype}, which nodes cannot exchange: {_INSTEAD}"
        )
    if local.double().abs().max() > EXACT_MAX:
        raise ConfigError(
            f"buffer {name} has integers beyond 2**24, which nodes exchange as fp32: {_INSTEAD}"
        )
    return "counter"
