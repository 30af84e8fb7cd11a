"""FSDP2 inside one node, and the position of each rank's shards in the node's shared memory.

The layout of a fragment is its exchanged parameters in the order of `model.named_parameters()` of
the whole model, or in that of a table of names, unsharded, C-contiguous, fp32, densely packed. So
nodes with any number of ranks, any sharding and any stages of a pipeline share one layout. Must NOT
know rounds or results, nor keep a copy of a parameter.
"""

import atexit
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from lowcomm.methods.base import Parameter
from lowcomm.numerics import operations
from lowcomm.tensors.gpu_copies import wait_for_copies
from lowcomm.tensors.names import Model, named_parameters, parts_of
from lowcomm.tensors.node_tensors import NodeTensors, held_part, node_tensors
from lowcomm.tensors.placement import Placement, local_of
from lowcomm.tensors.run_names import Piece, RunNames, RunTensor, run_tensors
from peers.ipc import TensorPlace
from protocols.types import ConfigError

TRAINED_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of exchanged parameters. Nodes exchange fp32 in any case, so they may have different
ones."""
EXIT_PAUSE_S = 0.1
"""Seconds: some turns of a busy machine's scheduler."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardView:
    """The part of one tensor of the run that one rank holds in one parameter."""

    place: TensorPlace
    """Name, full shape, and offset of the tensor in its fragment."""
    parameter: nn.Parameter
    offsets: tuple[int, ...]
    """The first index of this rank's part in the full tensor, in each dimension."""
    sizes: tuple[int, ...]
    """The size of the part in each dimension; a 0 means that this rank holds nothing of the
    parameter."""
    writes: bool
    """Whether this rank writes the part. Exactly one of the ranks that hold the same part does; all
    of them read it."""

    remainder: Tensor | None = None
    """Of a bf16 or fp16 parameter, fp32 [*sizes]: the values that it was last given, minus those
    that it took of them by rounding. The rounding is no training, so a contribution contains the
    remainder again. None for an fp32 parameter."""

    rows: slice | None = None
    """The rows of the rank's part of the parameter that are meant; None: all of it."""

    @property
    def local(self) -> Tensor:
        """This rank's part itself, of the parameter's type, [*sizes], not a copy."""
        local = local_of(self.parameter)
        return local if self.rows is None else local[self.rows]

    @property
    def values(self) -> Tensor:
        """This rank's part with its remainder, fp32 [*sizes]: of an fp32 parameter the part itself,
        else a new tensor. If you change it, call `store`."""
        if self.remainder is None:
            return self.local
        return self.local.float().add_(self.remainder)

    def store(self, values: Tensor) -> None:
        """Set the part to these values, fp32 [*sizes], on its device, rounded to the parameter's
        type."""
        local = self.local
        if self.remainder is not None:
            local.copy_(values)
            torch.sub(values, local, out=self.remainder)  # Exact.
        elif local.data_ptr() != values.data_ptr():
            local.copy_(values)

    @property
    def elements(self) -> int:
        """Number of elements that this rank writes."""
        return math.prod(self.sizes) if self.writes else 0


FragmentsOf = Callable[[Sequence[Parameter]], Sequence[int]]
"""A function that returns the fragment of each parameter:
`lowcomm.methods.base.RoundMethod.fragments_of`."""


def _one_fragment(parameters: Sequence[Parameter]) -> Sequence[int]:
    """Put all parameters into fragment 0."""
    return (0,) * len(parameters)


def pause_at_exit() -> None:
    """Delay the end of this process, so that gloo's threads can free their tensors before.

    The threads outlive `destroy_process_group`, because FSDP's mesh stays in several caches of
    torch, and the group with it. If a thread frees a tensor while the interpreter ends, the process
    aborts ("terminate called without an active exception", pytorch issue 190489).
    """
    if dist.is_initialized():
        atexit.register(time.sleep, EXIT_PAUSE_S)


def shard_model(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    *,
    mesh: DeviceMesh | None,
    compute: torch.dtype = torch.float32,
) -> None:
    """Shard each block and then the rest of `model` over the mesh, in place; None: do nothing.

    `compute`: the type of gathered parameters and of activations. Parameters, sums of gradients and
    the results of `model` stay fp32. Make the optimizer afterwards, because sharding makes new
    parameter objects.
    """
    if mesh is None:
        assert compute == torch.float32, "another type needs a mesh, also of one rank"
        return
    inner = outer = MixedPrecisionPolicy()
    if compute != torch.float32:
        inner = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
        outer = replace(inner, output_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=inner)
    fully_shard(model, mesh=mesh, mp_policy=outer)


def reshard(model: Model) -> None:
    """Replace gathered parameters by FSDP2's shards.

    A forward pass without a backward pass leaves the root's parameters gathered. They would hide
    the shards from `named_parameters()`, and the next forward pass would use them although the
    shards have changed.
    """
    for part in parts_of(model):
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


@dataclass(frozen=True, slots=True)
class NodeShards:
    """The exchanged parameters of a node, and one rank's parts of them."""

    layout: list[TensorPlace]
    """Fragment, name, full shape and offset (elements) of every exchanged parameter of the node."""
    shards: list[ShardView]
    """The rank's own parts, in the same order; those that it holds nothing of are there too, but
    for tensors that only other ranks have. Under a table of names they may be several of a tensor
    or of a parameter, of which it holds something."""
    node: NodeTensors
    """By the parameters' own names."""

    @property
    def device(self) -> torch.device:
        """That of the rank's parts."""
        return self.shards[0].local.device if self.shards else torch.device("cpu")


def node_shards(
    model: Model,
    *,
    rank: int,
    world_size: int | None = None,
    fragments_of: FragmentsOf = _one_fragment,
    names: RunNames | None = None,
) -> NodeShards:
    """All exchanged parameters of the node, and this rank's parts. All ranks call it together
    (node_tensors.py).

    They are in the order of `model.named_parameters()` of the whole model, without those that need
    no gradient (lowcomm/tensors/frozen.py) or have no element. A tied parameter is listed once, by
    its first name, and `fragments_of` gets only that name. Of the ranks that hold the same part the
    first one writes it; a plain tensor is whole on every rank. Raises ConfigError if there is none,
    if one has a type that is not in TRAINED_TYPES, if two have the same name, or as `box_of` and
    `node_tensors` do.
    """
    reshard(model)
    named = dict(_exchanged(model))
    for name, parameter in named.items():
        if parameter.dtype not in TRAINED_TYPES:
            raise ConfigError(
                f"parameter {name} is {parameter.dtype}: only fp32, bf16 and fp16 parameters can "
                "be trained (requires_grad_(False) freezes others)"
            )
    mine = {name: held_part(name, parameter) for name, parameter in named.items()}
    node = node_tensors(list(mine.values()), rank=rank, world_size=world_size)
    own = {name: each.first.shape for name, each in node.tensors.items()}
    tensors = run_tensors(own, names)
    layout = _layout(tensors, fragments_of)
    shards = [
        _shard_views(place, piece, named[piece.name], node.placement(mine[piece.name]))
        for place, tensor in zip(layout, tensors, strict=True)
        for piece in tensor.pieces
        if piece.name in named
    ]
    return NodeShards(layout, [view for views in shards for view in views], node)


def _layout(tensors: Sequence[RunTensor], fragments_of: FragmentsOf) -> list[TensorPlace]:
    if not tensors:
        raise ConfigError("the model has no parameters that need a gradient")
    fragments = fragments_of([Parameter(each.name, each.shape) for each in tensors])
    found: list[TensorPlace] = []
    ends: dict[int, int] = {}
    for tensor, fragment in zip(tensors, fragments, strict=True):
        place = TensorPlace(fragment, tensor.name, tensor.shape, ends.get(fragment, 0))
        found.append(place)
        ends[fragment] = place.offset + place.elements
    return found


def check_sharded(parts: NodeShards) -> None:
    """Raise ConfigError for a plain parameter on several ranks: each would train a copy of its own,
    and the first one alone writes."""
    for name, tensor in parts.node.tensors.items():
        if tensor.plain_on > 1:
            raise ConfigError(
                f"parameter {name} is not sharded, so of the {tensor.plain_on} ranks only the work "
                f"of rank {min(tensor.writers.values())} would count: shard the model with "
                "fully_shard before you make the optimizer, or start one rank (node.ranks = 1); "
                "what all ranks train alike becomes a DTensor by distribute_tensor with Replicate; "
                "stages of a pipeline keep the names of the whole model"
            )


@torch.no_grad()
def write_shards(
    shards: Sequence[ShardView], buffer: memoryview, *, everything: bool = False
) -> None:
    """Copy this rank's parts into their places in the whole fragment, uint8 [fragment_bytes].

    `everything`: also the parts that another rank of the node writes.
    """
    elements_P = whole(buffer)
    for shard in shards:
        if shard.writes or everything:
            _copy(shard.values, window(elements_P, shard), of_bytes=buffer.nbytes)
    wait_for(shards)


@torch.no_grad()
def read_shards(
    shards: Sequence[ShardView],
    buffer: memoryview,
    kind: Literal["full", "delta"],
    *,
    mixing: float = 0.0,
) -> None:
    """Read this rank's parts from the whole fragment, uint8 [fragment_bytes], read-only.

    "full" replaces the parameters but for the share `mixing` of them, "delta" is added to them;
    each operation rounds to fp32. bf16 and fp16 parameters take the result rounded. If the model is
    under FSDP2, call `reshard` first.
    """
    elements_P = whole(buffer)
    for shard in shards:
        here, local = window(elements_P, shard), shard.local
        if kind == "delta" or mixing or shard.remainder is not None:
            there = here.to(local.device, non_blocking=True)  # On the CPU this is no copy.
            apply(shard, there, kind, mixing=mixing)
        else:
            _copy(here, local, of_bytes=buffer.nbytes)
    wait_for(shards)


@torch.no_grad()
def apply(
    shard: ShardView, there: Tensor, kind: Literal["full", "delta"], *, mixing: float
) -> None:
    """Continue with the values of `there`, on the shard's device, as `read_shards` does."""
    if kind == "delta":
        shard.store(shard.values.add_(there))
    elif mixing:
        # lerp and alpha= fuse, so CPUs would differ in bits (docs/arithmetic.md).
        shard.store(shard.values.mul_(mixing).add_(there.mul(1 - mixing)))
    else:
        shard.store(there)


def on_device(elements_P: Tensor, shard: ShardView) -> Tensor:
    """A copy of the shard's part of the fragment on the shard's own device, fp32 [*sizes]; the copy
    to a GPU is only queued."""
    return window(elements_P, shard).to(shard.local.device, copy=True, non_blocking=True)


def wait_for(shards: Sequence[ShardView]) -> None:
    """Wait for the queued copies of these shards; after that their buffers may change."""
    if shards:
        wait_for_copies(shards[0].local.device)


def _copy(source: Tensor, target: Tensor, *, of_bytes: int) -> None:
    """Copy a part; to or from a GPU the copy is only queued. `of_bytes`: the size of the fragment
    that contains it."""
    on_cpu = source.device.type == target.device.type == "cpu"
    if on_cpu and source.is_contiguous() and target.is_contiguous():
        operations.copy(source.view(-1).numpy(), target.view(-1).numpy(), of_bytes=of_bytes)
    else:
        target.copy_(source, non_blocking=True)


def _exchanged(model: Model) -> list[tuple[str, nn.Parameter]]:
    """The parameters that nodes exchange, with their names: those that need a gradient."""
    named = named_parameters(model)
    return [(name, each) for name, each in named if each.requires_grad and each.numel()]


def _shard_views(
    place: TensorPlace, piece: Piece, parameter: nn.Parameter, held: Placement
) -> list[ShardView]:
    """The piece's view, if this rank holds something of it."""
    part = piece.part(held)
    if part is None:
        return []
    view = ShardView(place, parameter, part.offsets, part.sizes, held.writes, rows=part.rows)
    if parameter.dtype == torch.float32:
        return [view]
    return [replace(view, remainder=torch.zeros_like(view.local, dtype=torch.float32))]


def whole(buffer: memoryview) -> Tensor:
    """The bytes as fp32 [bytes / 4], not a copy. If the buffer is read-only, do not write to the
    result."""
    with warnings.catch_warnings():
        # torch has no read-only tensors, and warns; `read_shards` only reads.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        return torch.frombuffer(buffer, dtype=torch.float32)


class Part(Protocol):
    """The part of one tensor that one rank holds, as in ShardView."""

    @property
    def place(self) -> TensorPlace: ...
    @property
    def offsets(self) -> tuple[int, ...]: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...


def window(elements_P: Tensor, shard: Part) -> Tensor:
    """The shard's part of the fragment, fp32 [*sizes], as a view."""
    place = shard.place
    window = elements_P.narrow(0, place.offset, math.prod(place.shape)).view(place.shape)
    for dimension, (offset, size) in enumerate(zip(shard.offsets, shard.sizes, strict=True)):
        window = window.narrow(dimension, offset, size)
    return window
