"""Replicators in torch: the bytes and the bits of those in numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.flexdemo.torch_replicators import TorchReplicator, inverse, transform
from lowcomm.numerics import dct
from lowcomm.numerics.kernels import F32
from lowcomm.replicators.replicators import (
    Demo,
    Full,
    Grid,
    Random,
    Replicator,
    Striding,
    Turn,
    Wire,
)

REPLICATORS = [
    Demo(Wire("bf16"), topk=7),
    Demo(Wire("fp32"), topk=1),
    Demo(Wire("sign"), topk=9),
    Random(Wire("bf16"), one_in=16),
    Striding(Wire("sign"), one_in=5),
    Full(Wire("fp32")),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = [(130, 70), (97,), (3, 5, 7), (64, 200), (1,), ()]


def same(
    replicator: Replicator, values_RC: F32, grid: Grid, turn: Turn, *, device: str = "cpu"
) -> None:
    for span in grid.spans(0, grid.groups):
        start = span.first * grid.chunk
        here = values_RC[start : start + span.count * span.rows]
        values_GRC = here.reshape(span.count, span.rows, -1)
        records, said = replicator.encode_groups(values_GRC, grid, turn)
        made_GRC = torch.from_numpy(values_GRC.copy()).to(device)
        made = TorchReplicator(replicator).encode_groups(made_GRC, grid, turn)
        ours = [each.cpu() for each in made]
        assert ours[0].numpy().tobytes() == records.tobytes()
        assert ours[1].contiguous().numpy().tobytes() == np.ascontiguousarray(said).tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("replicator", REPLICATORS, ids=lambda each: type(each).__name__)
def test_records_and_what_they_say_are_the_same(
    replicator: Replicator, shape: tuple[int, ...], device: str
) -> None:
    grid = Grid.of(shape, 16)
    values = np.random.default_rng(2).standard_normal((grid.rows, grid.columns))
    same(replicator, (1e-4 * values).astype(np.float32), grid, Turn(1, 2, 3), device=device)


@pytest.mark.gpu
def test_a_gpu_takes_the_first_of_equal_magnitudes_too() -> None:
    random = np.random.default_rng(5)
    grid = Grid.of((640, 512), 64)
    for _ in range(4):
        some = np.array([0.0, -0.0, 1.0, -1.0, 1e-42, -1e-42, 1e30, 3e-39], np.float32)
        values_RC = random.choice(some, (640, 512)).astype(np.float32)
        for replicator in REPLICATORS:
            same(replicator, values_RC, grid, Turn(0, 1, 0), device="cuda")


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-42, 1e30]), min_size=64, max_size=64))
def test_of_equal_magnitudes_both_take_the_first(values: list[float]) -> None:
    grid, values_RC = Grid.of((8, 8), 8), np.array(values, np.float32).reshape(8, 8)
    for replicator in REPLICATORS:
        same(replicator, values_RC, grid, Turn(0, 1, 0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 40])
def test_the_transform_has_the_same_bits(count: int, device: str) -> None:
    values = np.random.default_rng(3).standard_normal((count, 64 * 64)).astype(np.float32)
    for ours, theirs in ((transform, dct.transform), (inverse, dct.inverse)):
        made = ours(torch.from_numpy(values).to(device), 64)
        assert made.cpu().numpy().tobytes() == theirs(values, 64).tobytes()
