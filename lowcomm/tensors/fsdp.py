"""FSDP2 inside one node, and the position of each rank's shards in the node's shared memory.

The layout of a fragment is its exchanged parameters in the order of `model.named_parameters()`,
unsharded, C-contiguous, fp32, densely packed. So nodes with any number of ranks, and any sharding,
share one layout. Must NOT know rounds or results, nor keep a copy of a parameter.
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
from torch.distributed.tensor import DTensor

from lowcomm.methods.base import Parameter
from lowcomm.numerics import operations
from lowcomm.tensors.gpu_copies import wait_for_copies
from lowcomm.tensors.names import named_parameters
from lowcomm.tensors.placement import local_of, placement_of
from peers.ipc import TensorPlace
from protocols.types import ConfigError

TRAINED_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of exchanged parameters. Nodes exchange fp32 in any case, so they may have different
ones."""
EXIT_PAUSE_S = 0.1
"""Seconds: some turns of a busy machine's scheduler."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardView:
    """The part of one parameter that one rank holds."""

    place: TensorPlace
    """Name, full shape, and offset of the parameter in its fragment."""
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

    @property
    def local(self) -> Tensor:
        """This rank's part itself, of the parameter's type, [*sizes], not a copy."""
        return local_of(self.parameter)

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


def reshard(model: nn.Module) -> None:
    """Replace gathered parameters by FSDP2's shards.

    A forward pass without a backward pass leaves the root's parameters gathered. They would hide
    the shards from `named_parameters()`, and the next forward pass would use them although the
    shards have changed.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def places(model: nn.Module, fragments_of: FragmentsOf = _one_fragment) -> list[TensorPlace]:
    """Fragment, name, full shape and offset (elements) of every exchanged parameter.

    They are in the order of `model.named_parameters()`, without those that need no gradient
    (lowcomm/tensors/frozen.py) or have no element. A tied parameter is listed once, by its first
    name, and `fragments_of` gets only that name. Raises ConfigError if there is none, if one has a
    type that is not in TRAINED_TYPES, or if two have the same name.
    """
    named = _exchanged(model)
    fragments = fragments_of([Parameter(name, tuple(each.shape)) for name, each in named])
    found: list[TensorPlace] = []
    ends: dict[int, int] = {}
    for (name, parameter), fragment in zip(named, fragments, strict=True):
        if parameter.dtype not in TRAINED_TYPES:
            raise ConfigError(
                f"parameter {name} is {parameter.dtype}: only fp32, bf16 and fp16 parameters can "
                "be trained (requires_grad_(False) freezes others)"
            )
        offset = ends.get(fragment, 0)
        found.append(TensorPlace(fragment, name, tuple(parameter.shape), offset))
        ends[fragment] = offset + parameter.numel()
    if not found:
        raise ConfigError("the model has no parameters that need a gradient")
    return found


def shard_views(
    model: nn.Module, *, rank: int, fragments_of: FragmentsOf = _one_fragment
) -> list[ShardView]:
    """This rank's part of each exchanged parameter, in the order of `places`.

    Plain tensors are whole on every rank: rank 0 writes them. Each part of a DTensor is written by
    the first rank along the mesh dimensions that replicate it. Raises ConfigError for the same
    reasons as `places`, and for a placement that is neither Shard nor Replicate.
    """
    reshard(model)
    parameters = dict(_exchanged(model))
    found = places(model, fragments_of)
    return [_shard_view(place, parameters[place.name], rank) for place in found]


def check_sharded(shards: Sequence[ShardView], *, world_size: int) -> None:
    """Raise ConfigError for a plain parameter on several ranks: each would train a copy of its own,
    and rank 0 alone writes."""
    plain = [shard.place.name for shard in shards if not isinstance(shard.parameter, DTensor)]
    if world_size > 1 and plain:
        raise ConfigError(
            f"parameter {plain[0]} is not sharded, so of the {world_size} ranks only the work of "
            "rank 0 would count: shard the model with fully_shard before you make the optimizer, "
            "or start one rank (node.ranks = 1)"
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


def _exchanged(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that nodes exchange, with their names: those that need a gradient."""
    named = named_parameters(model)
    return [(name, each) for name, each in named if each.requires_grad and each.numel()]


def _shard_view(place: TensorPlace, parameter: nn.Parameter, rank: int) -> ShardView:
    found = placement_of(place.name, parameter, rank)
    local = local_of(parameter)
    exact = local.dtype == torch.float32
    remainder = None if exact else torch.zeros_like(local, dtype=torch.float32)
    sizes, writes = found.sizes, found.writes
    return ShardView(place, parameter, found.offsets, sizes, writes=writes, remainder=remainder)


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
