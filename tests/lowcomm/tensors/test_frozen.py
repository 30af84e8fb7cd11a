"""Frozen tensors: one digest for every sharding, another one for every accident; their file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from lowcomm.tensors import frozen
from lowcomm.tensors.frozen import FrozenPart, frozen_parts, write_frozen
from lowcomm.tensors.placement import Placement
from protocols.types.errors import ConfigError
from protocols.types.ids import FrozenTensor
from tests.lowcomm import node_ranks
from tests.lowcomm.forking import run_ranks

TYPES = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    *(torch.int8, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn),
)


def of_bits(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    values = torch.randint(-100, 100, tuple(shape), generator=generator)
    return values % 2 == 1 if dtype is torch.bool else values.to(dtype)


def based(**tensors: Tensor) -> nn.Module:
    """A model with these frozen tensors, and one that is trained."""
    model = nn.Module()
    model.register_parameter("trained", nn.Parameter(torch.ones(2)))
    for name, values in tensors.items():
        model.register_parameter(name, nn.Parameter(values, requires_grad=False))
    return model


def digest(values: Tensor) -> int:
    (part,) = frozen_parts(based(base=values), rank=0)
    return part.spec.digest


def pieces(values: Tensor, *cuts: int) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """A tensor of two dimensions in pieces of so many rows and columns, each with its place."""
    rows, columns = cuts
    for row in range(0, values.shape[0], rows):
        for column in range(0, values.shape[1], columns):
            yield (row, column), values[row : row + rows, column : column + columns]


def test_only_what_needs_no_gradient_and_has_elements_is_frozen() -> None:
    model = based(a=of_bits((3, 2), torch.bfloat16), none=torch.empty(0, 4), b=torch.tensor(2.0))
    found = [part.spec[:3] for part in frozen_parts(model, rank=0)]
    assert found == [("a", "BF16", (3, 2)), ("b", "F32", ())]
    assert [part.spec.digest for part in frozen_parts(model, rank=1)] == [0, 0], "rank 0 counts it"


@pytest.mark.parametrize("dtype", TYPES)
def test_the_parts_of_every_sharding_add_up_to_the_digest_of_the_whole(dtype: torch.dtype) -> None:
    values = of_bits((7, 10), dtype)
    before = values.clone()
    whole = digest(values)
    assert torch.equal(values.view(torch.uint8), before.view(torch.uint8)), "it is only read"
    for cuts in ((7, 3), (2, 10), (3, 4), (1, 1)):
        parts = [frozen._summand(piece, place) for place, piece in pieces(values, *cuts)]
        assert sum(parts) % (1 << 32) == whole
    transposed = values.t().contiguous().t()  # Another place of the bytes, the same tensor.
    assert digest(transposed) == whole


def test_a_large_tensor_is_mixed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    values = of_bits((50, 8), torch.float32)
    whole = digest(values)
    monkeypatch.setattr(frozen, "ELEMENTS_AT_ONCE", 24)
    assert digest(values) == whole


@pytest.mark.parametrize("dtype", TYPES)
def test_every_accident_changes_the_digest(dtype: torch.dtype) -> None:
    values = of_bits((8, 8), dtype)
    found = {digest(values)}
    for change in range(1, 6):
        other = values.clone().view(torch.uint8)
        if change == 1:
            other[3, -1] ^= 1 if dtype is torch.bool else 128  # The sign of one element.
        elif change == 2:
            other[7, 0] ^= 1
        elif change == 3:
            other = other.flip(0)
        elif change == 4:
            other = other.roll(1, 0)
        else:
            other = torch.zeros_like(other)
        found.add(digest(other.contiguous().view(dtype)))
    assert len(found) == 6


class Codes(Tensor):
    """A tensor that consists of two others, as those of torchao."""

    codes: Tensor
    scales: Tensor

    @classmethod
    def made(cls, codes: Tensor, scales: Tensor) -> "Codes":
        made: Codes = cast(Any, Tensor)._make_wrapper_subclass(
            cls, codes.shape, dtype=torch.bfloat16
        )
        made.codes, made.scales = codes, scales
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scales"], None

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        assert func is torch.ops.aten.detach.default
        return args[0]


def test_a_quantized_parameter_is_compared_by_the_tensors_in_it() -> None:
    model = based()
    codes, scales = of_bits((4, 2), torch.uint8), of_bits((4,), torch.float32)
    model.base = nn.Parameter(Codes.made(codes, scales), requires_grad=False)
    found = [part.spec for part in frozen_parts(model, rank=0)]
    assert found == [
        FrozenTensor("base.codes", "U8", (4, 2), digest(codes)),
        FrozenTensor("base.scales", "F32", (4,), digest(scales)),
    ]


def test_a_type_that_no_file_has_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"frozen parameter base is torch\.complex64"):
        frozen_parts(based(base=torch.zeros(2, dtype=torch.complex64)), rank=0)


def test_ranks_write_one_file_together(tmp_path: Path) -> None:
    tensors = {str(dtype): of_bits((7, 10), dtype) for dtype in TYPES}
    alone = based(**{name.replace(".", "_"): each for name, each in tensors.items()})
    alone.scalar = nn.Parameter(torch.tensor(3.5), requires_grad=False)
    whole = frozen_parts(alone, rank=0)
    path = str(tmp_path / "frozen.safetensors")
    for rank, cuts in ((0, slice(0, 3)), (1, slice(3, 7))):
        write_frozen(path, [share(part, cuts, writes_scalar=rank == 0) for part in whole])
    read: dict[str, Tensor] = safetensors.torch.load_file(path)
    expected = {name: each for name, each in alone.named_parameters() if name != "trained"}
    assert read.keys() == expected.keys()
    for name, values in read.items():
        assert values.dtype == expected[name].dtype
        as_bytes = (values.reshape(-1), expected[name].detach().reshape(-1))
        assert torch.equal(*(each.view(torch.uint8) for each in as_bytes)), name


@pytest.mark.deadline(100)
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_sharded_ranks_find_and_write_what_one_rank_does(world: int, tmp_path: Path) -> None:
    model = node_ranks.build("frozen")
    node_ranks.freeze(model)
    run_ranks("node_ranks.py", "frozen", world, tmp_path)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(world)]
    whole = [part.spec for part in frozen_parts(model, rank=0)]
    columns = zip(*(rank["specs"] for rank in ranks), strict=True)
    for spec, parts in zip(whole, columns, strict=True):
        assert {tuple(part[:2]) for part in parts} == {(spec.name, spec.type)}
        assert sum(part[3] for part in parts) % (1 << 32) == spec.digest
    trained = ["scale", "inner.weight", "inner.bias", "head.weight", "head.bias"]
    assert [rank["exchanged"] for rank in ranks] == [trained] * world
    read = cast(Any, safetensors.torch).load_file(tmp_path / "frozen.safetensors")
    assert len(read) == len(whole) == 3
    assert all(torch.equal(each, model.get_parameter(name)) for name, each in read.items())


def share(part: FrozenPart, rows: slice, *, writes_scalar: bool) -> FrozenPart:
    """The part of a rank that holds these rows."""
    if not part.spec.shape:
        place = replace(part.placement, writes=writes_scalar)
        return replace(part, placement=place)
    local = part.local[rows]
    return replace(
        part, local=local, placement=Placement((rows.start, 0), tuple(local.shape), writes=True)
    )


def test_without_room_there_is_no_file_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(frozen.os, "posix_fallocate", full)
    path = tmp_path / "frozen.safetensors"
    write_frozen(str(path), frozen_parts(based(a=torch.ones(3)), rank=0))
    assert not path.exists()
    assert "No space left" in caplog.text
