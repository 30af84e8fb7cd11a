"""The buffers of a model that nodes exchange: this rank's part of each, out and in.

They are the persistent ones, as in a state_dict, and lie in a fragment of their own, fp32, densely
packed (lowcomm/methods/buffers.py). FSDP2 leaves buffers plain on every rank, where each rank's own
samples change them. Those of the first rank that has them are contributed, as
DistributedDataParallel takes rank 0's: ranks need not wait for each other, and a mean over ranks
would be no better estimate of statistics that nodes average anyway. All ranks get the result. Must
NOT know rounds, nor keep a tensor: modules may replace theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcomm.tensors.fsdp import whole, window
from lowcomm.tensors.gpu_copies import wait_for_copies
from lowcomm.tensors.names import Model, named_buffers
from lowcomm.tensors.node_tensors import HeldPart, held_part, node_tensors
from lowcomm.tensors.placement import local_of
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


def node_buffers(
    model: Model, *, rank: int, fragment: int, world_size: int | None = None
) -> tuple[list[TensorPlace], list[BufferView]]:
    """The places in this fragment of all persistent buffers of the node that have elements, in the
    node's order, and this rank's parts. All ranks call it together (node_tensors.py).

    Raises ConfigError for a buffer that is sharded, complex, or now not finite (a mask), and for
    integers beyond 2**24.
    """
    mine: dict[str, tuple[HeldPart, nn.Module, str]] = {}
    for name, owner, own_name in named_buffers(model):
        tensor: Tensor = getattr(owner, own_name)
        if not tensor.numel():
            continue
        held = held_part(name, tensor, _kind(name, tensor))
        if held.sizes != held.shape:
            raise ConfigError(f"buffer {name} is sharded, so nodes cannot average it: {_INSTEAD}")
        mine[name] = held, owner, own_name
    node = node_tensors([held for held, *_ in mine.values()], rank=rank, world_size=world_size)
    layout: list[TensorPlace] = []
    views: list[BufferView] = []
    end = 0
    for name, each in node.tensors.items():
        kind: TensorKind = "counter" if each.first.kind == "counter" else "buffer"
        place = TensorPlace(fragment, name, each.first.shape, end, kind)
        layout.append(place)
        end += place.elements
        if name in mine:
            held, owner, own_name = mine[name]
            found = node.placement(held)
            view = BufferView(place, owner, own_name, found.offsets, found.sizes, found.writes)
            views.append(view)
    return layout, views


def floating_buffer(model: Model) -> str:
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
