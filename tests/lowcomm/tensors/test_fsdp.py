"""Sharded parameters and the node's shared memory: real ranks, odd sizes, exact bytes."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from lowcomm.config.schema import ModelConfig
from lowcomm.methods import DecoupledDiLoCoMethod, DiLoCoMethod, StreamingDiLoCoMethod
from lowcomm.methods.base import Parameter, RoundMethod
from lowcomm.models.llama import build_model
from lowcomm.numerics import operations
from lowcomm.numerics.operations import F32
from lowcomm.program.process_group import join_node, rank_device
from lowcomm.tensors.fsdp import node_shards, read_shards, write_shards
from peers.ipc.messages import TensorPlace
from protocols.types.errors import ConfigError
from tests.lowcomm import node_ranks
from tests.lowcomm.forking import run_ranks
from tests.marks import few

CASES = [
    *(("fsdp", 2), ("fsdp", 3), ("tensors", 4)),
    *(("fsdp", 1), ("grid", 4), ("mixed", 2), ("mixed", 3), ("hsdp", 4), ("hsdp-tensors", 4)),
]


@pytest.mark.deadline(100)
@pytest.mark.parametrize(("case", "world"), few(CASES, count=1))
def test_every_sharding_meets_in_one_layout(case: str, world: int, tmp_path: Path) -> None:
    model = node_ranks.build(case)
    original: F32 = node_ranks.flat(model).numpy()
    size = original.size
    full = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    delta = np.random.default_rng(1).standard_normal(size, dtype=np.float32) / np.float32(3)
    (tmp_path / "full.bin").write_bytes(full.tobytes())
    (tmp_path / "delta.bin").write_bytes(delta.tobytes())

    run_ranks("node_ranks.py", case, world, tmp_path)

    assert (tmp_path / "written.bin").read_bytes() == original.tobytes()
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(world)]
    assert sum(rank["elements"] for rank in ranks) == size
    for rank in ranks:
        refusal = f"parameter plain is not sharded, so of the {world} ranks only"
        assert rank["not_sharded"].partition(" the work")[0] == (refusal if case == "mixed" else "")
        assert rank["gathered"] == original.tobytes().hex()
        assert rank["full"] == full.tobytes().hex()
        assert rank["delta"] == (full + delta).tobytes().hex()
        if case == "grid":
            partial, pieces, other = rank["refused"]
            assert "each rank has a summand of it" in partial
            assert "redistribute it to Shard or Replicate" in partial
            assert "lies in several pieces" in pieces
            assert "which gives this rank [4, 2], but it holds [3, 2]" in other
        if "full_output" not in rank:
            continue
        inputs_B7 = torch.arange(21.0).reshape(3, 7) / 21
        for name, values in (("full_output", full), ("delta_output", full + delta)):
            nn.utils.vector_to_parameters(torch.from_numpy(values.copy()), model.parameters())
            torch.testing.assert_close(torch.tensor(rank[name]), model(inputs_B7).detach())


def test_a_tied_parameter_has_one_place_and_all_are_densely_packed() -> None:
    assert node_shards(node_ranks.Odd(), rank=0).layout == [
        TensorPlace(0, "scale", (2,), 0),
        TensorPlace(0, "blocks.0.weight", (7, 7), 2),
        TensorPlace(0, "blocks.0.bias", (7,), 51),
        TensorPlace(0, "blocks.1.weight", (7, 7), 58),
        TensorPlace(0, "inner.weight", (5, 7), 107),
        TensorPlace(0, "inner.bias", (5,), 142),
        TensorPlace(0, "head.weight", (1, 5), 147),
        TensorPlace(0, "head.bias", (1,), 152),
    ]


def test_fragments_are_each_densely_packed_and_a_tied_parameter_goes_by_its_first_name() -> None:
    def by_number(parameters: Sequence[Parameter]) -> list[int]:
        return [1 if "blocks" in each.name else 0 for each in parameters]

    assert node_shards(node_ranks.Odd(), rank=0, fragments_of=by_number).layout == [
        TensorPlace(0, "scale", (2,), 0),
        TensorPlace(1, "blocks.0.weight", (7, 7), 0),
        TensorPlace(1, "blocks.0.bias", (7,), 49),
        TensorPlace(1, "blocks.1.weight", (7, 7), 56),
        TensorPlace(0, "inner.weight", (5, 7), 2),
        TensorPlace(0, "inner.bias", (5,), 37),
        TensorPlace(0, "head.weight", (1, 5), 42),
        TensorPlace(0, "head.bias", (1,), 47),
    ]

    def apart(parameters: Sequence[Parameter]) -> list[int]:
        return [1 if "tied" in each.name else 0 for each in parameters]

    assert {
        each.fragment for each in node_shards(node_ranks.Odd(), rank=0, fragments_of=apart).layout
    } == {0}


@pytest.mark.parametrize(
    "method",
    [
        DecoupledDiLoCoMethod(),
        DecoupledDiLoCoMethod(fragments=20),
        StreamingDiLoCoMethod(fragments=3),
        StreamingDiLoCoMethod(fragments=4, pattern="sequential"),
    ],
)
def test_tied_embeddings_are_one_parameter_in_every_division(method: RoundMethod) -> None:
    config = ModelConfig(hidden_size=16, layers=3, heads=2, kv_heads=2, intermediate_size=24)
    tied = build_model(replace(config, tied_embeddings=True), seed=0)
    names = [name for name, _ in tied.named_parameters(remove_duplicate=False)]
    found = node_shards(tied, rank=0, fragments_of=method.fragments_of).layout
    assert len(found) == len(names) - 1
    assert sum(math.prod(each.shape) for each in found) == sum(
        each.numel() for each in tied.parameters()
    )
    loads = Counter[int]()
    for each in found:
        assert each.offset == loads[each.fragment]
        loads[each.fragment] += math.prod(each.shape)
    assert sorted(loads) == list(range(len(loads)))
    if isinstance(method, DecoupledDiLoCoMethod):
        assert len(loads) == method.fragments
        # What is as large as several tensors has a fragment for itself, and takes no second one.
        assert max(loads.values()) == config.embeddings * config.hidden_size
        assert list(loads.values()).count(max(loads.values())) == 1


def test_a_tied_parameter_is_no_more_than_one_of_the_fragments_that_there_may_be() -> None:
    with pytest.raises(ConfigError, match=r"this model has 8 tensors, .* at most 8"):
        node_shards(node_ranks.Odd(), rank=0, fragments_of=DecoupledDiLoCoMethod().fragments_of)
    found = node_shards(
        node_ranks.Odd(), rank=0, fragments_of=DecoupledDiLoCoMethod(fragments=8).fragments_of
    ).layout
    assert sorted(each.fragment for each in found) == list(range(8))


def test_a_whole_tensor_is_written_by_rank_0_and_read_by_all() -> None:
    model = nn.Linear(2, 1, bias=False)
    buffer = memoryview(bytearray(8))
    write_shards(node_shards(model, rank=1).shards, buffer)
    assert bytes(buffer) == bytes(8)
    assert sum(shard.elements for shard in node_shards(model, rank=1).shards) == 0
    write_shards(node_shards(model, rank=1).shards, buffer, everything=True)
    assert np.frombuffer(buffer, np.float32).tolist() == model.weight.flatten().tolist()
    buffer.cast("f")[0], buffer.cast("f")[1] = 3.0, 4.0
    read_shards(node_shards(model, rank=1).shards, buffer, "full")
    assert model.weight.tolist() == [[3.0, 4.0]]
    read_shards(node_shards(model, rank=1).shards, buffer, "delta")
    assert model.weight.tolist() == [[6.0, 8.0]]


def test_large_fragments_are_copied_bit_by_bit_wherever_their_tensors_begin() -> None:
    """Past the caches, and one that does not lie in one piece as torch does it."""
    model = nn.ParameterList(torch.randn(size) for size in (3, (1024, 2048), 5, (2, 7)))
    model.append(nn.Parameter(torch.randn(64, 33).t()))
    shards = node_shards(model, rank=0).shards
    elements = sum(each.numel() for each in model.parameters())
    buffer = memoryview(bytearray(4 * elements))
    assert buffer.nbytes >= operations.LARGE_BYTES
    write_shards(shards, buffer)
    written_P = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    assert bytes(buffer) == written_P.numpy().tobytes()
    for each in model.parameters():
        each.detach().zero_()
    read_shards(shards, buffer.toreadonly(), "full")
    read_P = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    assert read_P.numpy().tobytes() == written_P.numpy().tobytes()


def test_reading_leaves_the_parameters_ready_to_train_and_the_buffer_as_it_was() -> None:
    model = nn.Linear(2, 1, bias=False)
    shards = node_shards(model, rank=0).shards
    weight = model.weight
    source = np.array([1, 2], dtype=np.float32).tobytes()
    read_shards(shards, memoryview(source), "full")
    assert model.weight is weight
    assert weight.is_leaf
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert model.weight.tolist() == [[0.0, 1.0]]
    assert np.frombuffer(source, np.float32).tolist() == [1, 2]


def test_a_delta_is_one_fp32_addition() -> None:
    model = nn.Linear(1, 1, bias=False)
    shards = node_shards(model, rank=0).shards
    read_shards(shards, memoryview(np.float32(16777216).tobytes()), "full")
    for _ in range(2):  # Kept in fp64, or summed first, they would count.
        read_shards(shards, memoryview(np.float32(1).tobytes()), "delta")
    assert model.weight.item() == 16777216


def test_mixing_is_two_products_and_a_sum_each_rounded_by_itself() -> None:
    model = nn.Linear(5, 201, bias=False)
    shards = node_shards(model, rank=0).shards
    ours = model.weight.detach().numpy().flatten().copy()
    theirs = np.random.default_rng(3).standard_normal(ours.size, np.float32)
    read_shards(shards, memoryview(theirs.tobytes()), "full", mixing=0.3)
    expected = ours * np.float32(0.3) + theirs * np.float32(1 - 0.3)
    assert model.weight.detach().numpy().tobytes() == expected.tobytes()


def test_other_types_of_trained_parameters_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match=r"1\.weight is torch.float64: only fp32, bf16 and fp16"):
        node_shards(model, rank=0)
    model[1].requires_grad_(False)
    assert len(node_shards(model, rank=0).shards) == 2


LOW = (torch.bfloat16, torch.float16)
SIZE = 201 * 5


class Low:
    """One rank with one parameter of a low precision, as its daemon sees it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.model = nn.Linear(5, 201, bias=False, dtype=dtype)
        self.shards = node_shards(self.model, rank=0).shards

    @property
    def own(self) -> F32:
        """The parameter itself."""
        return self.model.weight.detach().float().numpy().reshape(-1).copy()

    def take(self, values: F32, kind: Literal["full", "delta"] = "full", **how: float) -> None:
        read_shards(self.shards, memoryview(values.tobytes()), kind, **how)

    def written(self) -> F32:
        buffer = memoryview(bytearray(4 * SIZE))
        write_shards(self.shards, buffer)
        return np.frombuffer(buffer, np.float32)

    def train(self) -> F32:
        """Change the parameter; returns the change, as its type has it."""
        before = self.own
        generator = torch.Generator().manual_seed(1)
        step = torch.randn(self.model.weight.shape, generator=generator) / 8
        with torch.no_grad():
            self.model.weight.sub_(step.to(self.model.weight.dtype))
        return before - self.own


def outer(seed: int = 3) -> F32:
    return np.random.default_rng(seed).standard_normal(SIZE, np.float32)


@pytest.mark.parametrize("dtype", LOW)
def test_rounding_to_the_parameters_type_is_no_training(dtype: torch.dtype) -> None:
    """Rounds in which no rank trains leave the outer state as it is, bit by bit. If the parameter
    itself were the contribution, each round would train the rounding."""
    method, rank = DiLoCoMethod(), Low(dtype)
    start = outer()

    def after_rounds(contribution: Callable[[], F32]) -> F32:
        outer_P, momentum_P = start.copy(), np.zeros_like(start)
        for _ in range(20):
            rank.take(outer_P)
            delta_P = np.empty_like(start)
            operations.pseudo_gradient(outer_P, contribution(), delta_P)
            method.outer_step(outer_P, momentum_P, delta_P, outer_P, momentum_P)
        return outer_P

    assert after_rounds(rank.written).tobytes() == start.tobytes()
    rounded = torch.from_numpy(start).to(dtype).float().numpy()
    assert rank.own.tobytes() == rounded.tobytes(), "the rank has them rounded"
    drift = np.abs(after_rounds(lambda: rank.own) - start)
    assert drift.mean() > np.abs(rounded - start).mean() / 2


@pytest.mark.parametrize("dtype", LOW)
def test_a_contribution_is_what_was_trained_from_the_rounded_values_on(dtype: torch.dtype) -> None:
    rank, start = Low(dtype), outer()
    rank.take(start)
    trained = rank.train()
    np.testing.assert_allclose(start - rank.written(), trained, rtol=0, atol=2**-21)
    assert np.abs(trained - (start - rank.own)).max() > 2**-13, "rounding is above that"


@pytest.mark.parametrize("dtype", LOW)
def test_a_delta_keeps_the_work_and_mixing_its_share(dtype: torch.dtype) -> None:
    rank, start, move = Low(dtype), outer(), outer(4)
    rank.take(start)
    trained = rank.train()
    rank.take(move, "delta")
    moved = start + move - trained
    np.testing.assert_allclose(rank.written(), moved, rtol=0, atol=2**-20)
    assert np.array_equal(rank.own, torch.from_numpy(rank.written()).to(dtype).float().numpy())
    rank.take(start, mixing=0.25)
    np.testing.assert_allclose(rank.written(), start * 0.75 + moved * 0.25, rtol=0, atol=2**-20)


def test_an_fp32_parameter_has_no_remainder_and_is_no_copy() -> None:
    model = nn.Linear(2, 2)
    shard = node_shards(model, rank=0).shards[0]
    assert shard.remainder is None
    assert shard.values.data_ptr() == model.weight.data_ptr()
    version = model.weight._version
    shard.store(shard.values)
    assert model.weight._version == version, "it was copied to itself"


def test_a_model_without_elements_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameters"):
        node_shards(nn.Identity(), rank=0)
    with pytest.raises(ConfigError, match="no parameters"):
        node_shards(nn.ParameterList([torch.empty(0, 3)]), rank=0)


def test_only_parameters_that_need_a_gradient_are_exchanged() -> None:
    model = nn.Sequential(nn.Linear(2, 3).bfloat16(), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    assert node_shards(model, rank=0).layout == [
        TensorPlace(0, "1.weight", (2, 3), 0),
        TensorPlace(0, "1.bias", (2,), 6),
    ]
    buffer = memoryview(bytearray(32))
    write_shards(node_shards(model, rank=0).shards, buffer)
    assert buffer.cast("f").tolist()[6:] == model.get_parameter("1.bias").tolist()


def test_a_parameter_without_elements_is_left_out() -> None:
    model = nn.ParameterDict({"a": torch.ones(2), "empty": torch.empty(0, 3), "b": torch.ones(3)})
    assert node_shards(model, rank=0).layout == [
        TensorPlace(0, "a", (2,), 0),
        TensorPlace(0, "b", (3,), 2),
    ]
    buffer = memoryview(bytearray(20))
    write_shards(node_shards(model, rank=0).shards, buffer)
    assert buffer.cast("f").tolist() == [1.0] * 5


def test_a_node_without_a_gpu_says_so() -> None:
    with pytest.raises(ConfigError, match="rank 99 has no GPU of its own: torch sees"):
        rank_device("cuda", local_rank=99)


def test_one_rank_needs_no_process_group() -> None:
    assert join_node(torch.device("cpu"), world_size=1) is None
    assert not torch.distributed.is_initialized()
