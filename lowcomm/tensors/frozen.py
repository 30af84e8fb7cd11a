"""The tensors of a model that no node trains: their fingerprints, and their file.

Each node has its own copy of them, of any type. Nodes compare names, shapes, types and digests of
the contents, so that no node trains beside another base. A digest is a sum over the elements, each
mixed with its place in the whole tensor, so the parts of any sharding add up to the same digest. It
finds accidents, not forgeries. Must NOT send a value, nor change one.

Shapes: R rows (the first dimension of a part), C columns (all others).
"""

import json
import logging
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lowcomm.tensors.names import Model, named_parameters
from lowcomm.tensors.node_tensors import HeldPart, held_part, node_tensors
from lowcomm.tensors.placement import Placement, local_of
from protocols.types import ConfigError, FrozenTensor
from protocols.wire import FROZEN_TYPES

log = logging.getLogger(__name__)

ELEMENTS_AT_ONCE = 1 << 15
"""Elements that a CPU mixes at once: their 64-bit products stay in its cache. A GPU mixes
`GPU_ELEMENTS_AT_ONCE`, which take 128 MiB."""
GPU_ELEMENTS_AT_ONCE = 1 << 24
LOW_BITS = 12
"""Bits of an index for which numbers are kept, not computed each time."""
_TYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.bool: "BOOL",
}
assert set(_TYPES.values()) == set(FROZEN_TYPES)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element, the type as which its bits are read."""
_NOTHING = torch.empty(0)
_NOWHERE = Placement((0,), (0,), writes=False)
"""Of a tensor that other ranks have."""


@dataclass(frozen=True, slots=True)
class FrozenPart:
    """The part of one frozen tensor that this rank holds; maybe nothing of it."""

    spec: FrozenTensor
    """The whole tensor, with the summand of its digest that this rank gives."""
    local: Tensor
    placement: Placement


def frozen_parts(model: Model, *, rank: int, world_size: int | None = None) -> list[FrozenPart]:
    """This rank's parts of all parameters of the node that need no gradient, in the node's order.
    Reads all of them once. All ranks call it together (node_tensors.py).

    A parameter that consists of several tensors, as quantized ones do, is listed as these. Raises
    ConfigError for a type that safetensors files do not have, and as `node_tensors` does.
    """
    mine: dict[str, tuple[HeldPart, Tensor]] = {}
    for name, parameter in named_parameters(model):
        if not parameter.requires_grad and parameter.numel():
            found = held_part(name, parameter)
            mine |= {held.name: (held, each) for held, each in _tensors(found, parameter)}
    node = node_tensors([held for held, _ in mine.values()], rank=rank, world_size=world_size)
    parts: list[FrozenPart] = []
    for name, tensor in node.tensors.items():
        held, local = mine.get(name, (tensor.first, _NOTHING))
        place = node.placement(held) if name in mine else _NOWHERE
        digest = _summand(local, held.offsets) if place.writes else 0
        spec = FrozenTensor(name, held.kind, held.shape, digest)
        parts.append(FrozenPart(spec, local, place))
    return parts


def write_frozen(path: str, parts: Sequence[FrozenPart]) -> None:
    """Write this rank's parts to their places in the safetensors file at `path`, and sync it. Every
    rank of the node calls this with the same path, and the file is complete once all have returned.

    Without room on the disk there is no file, only a warning.
    """
    head, starts = _header([part.spec for part in parts])
    size = len(head) + sum(_bytes(part.spec) for part in parts)
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            Path(path).unlink(missing_ok=True)
            log.warning("the frozen tensors are not exported: %s", error)
            return
        os.ftruncate(file.fileno(), size)
        with mmap.mmap(file.fileno(), size) as memory:
            memory[: len(head)] = head  # The same bytes from every rank.
            for part, start in zip(parts, starts, strict=True):
                if part.placement.writes and part.local.numel():
                    _write(memory, len(head) + start, part)
            memory.flush()


def _tensors(held: HeldPart, parameter: Tensor) -> list[tuple[HeldPart, Tensor]]:
    """The tensors of which the parameter consists, as this rank holds them."""
    local, name = local_of(parameter), held.name
    inner = getattr(local, "__tensor_flatten__", None)
    if inner is not None:
        if tuple(local.shape) != held.shape:
            raise ConfigError(
                f"frozen parameter {name} is a sharded {type(local).__name__}, of which the parts "
                "have no places: leave it out of fully_shard (ignored_params)"
            )
        found: list[tuple[HeldPart, Tensor]] = []
        for attribute in inner()[0]:
            each: Tensor = getattr(local, attribute)
            whole = tuple(each.shape)
            part = HeldPart(f"{name}.{attribute}", whole, (0,) * len(whole), whole, "", held.plain)
            if each.numel():
                found += _tensors(part, each.detach())
        return found
    if local.dtype not in _TYPES:
        raise ConfigError(
            f"frozen parameter {name} is {local.dtype}, which has no place in a safetensors file"
        )
    return [(held._replace(kind=_TYPES[local.dtype]), local.as_subclass(Tensor))]


@torch.no_grad()
def _summand(local: Tensor, offsets: Sequence[int]) -> int:
    """The sum over the elements of the upper half of (bits times a number of the place), 32 bits.
    The number of a place is a product of odd 64-bit numbers, one for each dimension."""
    if not local.numel():
        return 0
    device = local.device
    bits = local.view(_INTEGERS[local.element_size()])
    if not local.dim():
        bits, offsets = bits.reshape(1), (0,)
    columns_C = torch.ones(1, dtype=torch.int64, device=device)
    for axis, (first, size) in enumerate(zip(offsets[1:], bits.shape[1:], strict=True), start=1):
        factor = torch.from_numpy(_odd(axis, first, size)).to(device)
        columns_C = (columns_C[:, None] * factor).reshape(-1)
    most = ELEMENTS_AT_ONCE if device.type == "cpu" else GPU_ELEMENTS_AT_ONCE
    at_once = max(1, most // columns_C.numel())
    total = 0
    for start in range(0, bits.shape[0], at_once):
        values_R = bits[start : start + at_once]
        rows_R = torch.from_numpy(_odd(0, offsets[0] + start, values_R.shape[0])).to(device)
        mixed_RC = values_R.reshape(-1, columns_C.numel()).to(torch.int64, copy=True)
        mixed_RC.mul_(columns_C).mul_(rows_R[:, None])  # Wraps, on CPUs and GPUs alike.
        total += int(mixed_RC.bitwise_right_shift_(32).sum().item())
    return total % (1 << 32)


def _odd(axis: int, first: int, size: int) -> NDArray[np.int64]:
    """Odd numbers of the indices [first, first + size) of a dimension, int64 [size]: of each the
    product of two, that of its low bits and that of its high bits."""
    places = np.arange(first, first + size)
    high = places >> LOW_BITS
    low_numbers = _mixed(2 * axis, 0, 1 << LOW_BITS)
    high_numbers = _mixed(2 * axis + 1, int(high[0]), int(high[-1]) + 1)
    with np.errstate(over="ignore"):
        return low_numbers[places & ((1 << LOW_BITS) - 1)] * high_numbers[high - high[0]]


@lru_cache(maxsize=64)
def _mixed(stream: int, first: int, stop: int) -> NDArray[np.int64]:
    """Odd numbers of the indices [first, stop), others in each stream, by splitmix64. The array is
    cached: do not write to it."""
    with np.errstate(over="ignore"):
        state = np.arange(first + 1, stop + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state += np.uint64(stream + 1) << np.uint64(56)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = (state ^ (state >> np.uint64(31))) | np.uint64(1)
    return state.view(np.int64)


def _bytes(spec: FrozenTensor) -> int:
    kind = next(kind for kind, name in _TYPES.items() if name == spec.type)
    return prod(spec.shape) * kind.itemsize


def _header(specs: Sequence[FrozenTensor]) -> tuple[bytes, list[int]]:
    """The header of the file, and where each tensor begins behind it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts: list[int] = []
    end = 0
    for spec in specs:
        starts.append(end)
        end += _bytes(spec)
        shape = list(spec.shape)
        entries[spec.name] = {"dtype": spec.type, "shape": shape, "data_offsets": [starts[-1], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, starts


@torch.no_grad()
def _write(memory: mmap.mmap, start: int, part: FrozenPart) -> None:
    """Copy the part to its places in the tensor that begins at this byte of the file."""
    shape, placement = part.spec.shape, part.placement
    width = part.local.element_size()
    kind = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[width]
    whole = np.frombuffer(memory, np.uint8, prod(shape) * width, start).view(kind).reshape(shape)
    place = zip(placement.offsets, placement.sizes, strict=True)
    window = whole[(..., *(slice(first, first + size) for first, size in place))]
    window[...] = part.local.view(_INTEGERS[width]).cpu().numpy()
