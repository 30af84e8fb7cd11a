"""What the ranks of one node hold together: one order, one writer of each part."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from torch import nn

from lowcomm.tensors.frozen import frozen_parts
from lowcomm.tensors.fsdp import check_sharded, node_shards, write_shards
from lowcomm.tensors.model_buffers import node_buffers
from lowcomm.tensors.node_tensors import HeldPart, NodeTensor, merged, node_tensors
from protocols.types.errors import ConfigError
from tests.lowcomm import node_ranks
from tests.lowcomm.forking import run_ranks

DEEP = ("embed.weight", "layers.0.a", "layers.1.a", "layers.2.a", "layers.10.a", "norm.b", "head.w")


def some(*numbers: int) -> list[str]:
    return [DEEP[number] for number in numbers]


@pytest.mark.parametrize(
    "orders",
    [
        (some(0, 1, 2), some(3, 4, 5, 6)),
        (some(3, 4, 5, 6), some(0, 1, 2)),
        (some(0, 1, 4, 5, 6), some(2, 3)),  # A schedule in the form of a V.
        (some(0), some(4), some(1, 2, 3), some(5), some(6)),
        (some(0, 3), some(1, 4), some(2, 5, 6), some(0, 3)),
        (DEEP, DEEP, some(1)),
    ],
)
def test_the_order_is_that_of_the_whole_model_however_it_is_cut(orders: list[list[str]]) -> None:
    assert merged(orders) == list(DEEP)


def test_one_order_stays_as_it_is_and_contradictions_lose_nothing() -> None:
    odd = ["b.2.x", "b.10.x", "b.1.x", "a.w"]
    assert merged([odd, odd]) == odd
    assert merged([["head.w", "a.w"], ["head.w", "b.w"]]) == ["head.w", "a.w", "b.w"]
    assert sorted(merged([["a.w", "b.w"], ["b.w", "a.w", "c.w"]])) == ["a.w", "b.w", "c.w"]
    assert merged([[], ["a"]]) == ["a"]


def test_many_names_take_little_time() -> None:
    """A recursion over siblings of siblings would take minutes."""
    names = [f"layers.{n // 500}.experts.{n % 500}.w" for n in range(50_000)]
    assert merged([names[:20_000], names[20_000:]]) == names


def held(name: str, rows: range, *, of: int = 6, plain: bool = False) -> HeldPart:
    return HeldPart(name, (of, 2), (rows.start, 0), (len(rows), 2), "parameter", plain)


def test_parts_that_overlap_or_leave_gaps_are_refused_by_name() -> None:
    whole = NodeTensor(held("x", range(4)))
    for rank, rows in enumerate((range(4), range(4), range(4, 6), range(6, 6))):
        whole.add_part(rank, held("x", rows))
    whole.check()
    assert sorted(whole.writers.values()) == [0, 2]
    for second in (range(3, 6), range(5, 6)):
        broken = NodeTensor(held("x", range(4)))
        broken.add_part(0, held("x", range(4)))
        broken.add_part(1, held("x", second))
        with pytest.raises(ConfigError, match=r"tensor x \[6, 2\].* overlap or leave gaps"):
            broken.check()


def test_tensors_of_one_name_and_several_shapes_are_refused() -> None:
    tensor = NodeTensor(held("0.weight", range(6)))
    with pytest.raises(ConfigError, match=r"0\.weight is parameter \[4, 2\] on rank 1, .*\[6, 2\]"):
        tensor.add_part(1, held("0.weight", range(4), of=4))


def test_without_a_process_group_all_ranks_hold_what_this_one_does() -> None:
    mine = [held("x", range(6), plain=True)]
    found = node_tensors(mine, rank=1, world_size=2)
    assert found.tensors["x"].plain_on == 2
    assert not found.placement(mine[0]).writes
    assert node_tensors(mine, rank=0, world_size=1).placement(mine[0]).writes
    with pytest.raises(ConfigError, match=r"parameter weight is not sharded, so of the 2 ranks"):
        check_sharded(node_shards(nn.Linear(2, 2), rank=0, world_size=2))


@pytest.mark.long
@pytest.mark.deadline(100)
def test_stages_of_a_pipeline_have_the_layout_of_the_whole_model(tmp_path: Path) -> None:
    whole = node_ranks.build("stages")
    whole.get_parameter("layers.2.up.bias").requires_grad = False
    expected = node_shards(whole, rank=0).layout
    buffers, _ = node_buffers(whole, rank=0, fragment=1)
    size = 4 * sum(place.elements for place in expected)
    written = memoryview(bytearray(size))
    write_shards(node_shards(whole, rank=0).shards, written)

    run_ranks("node_ranks.py", "stages", 2, tmp_path)

    assert (tmp_path / "written.bin").read_bytes()[:size] == bytes(written)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [rank["layout"] for rank in ranks] == [
        as_json([asdict(place) for place in expected])
    ] * 2
    assert [rank["buffers"] for rank in ranks] == [
        as_json([asdict(place) for place in buffers])
    ] * 2
    assert all(rank["read"] for rank in ranks)
    every = [name for rank in ranks for name in rank["own"]]
    assert sorted(every) == sorted(place.name for place in expected)
    total = sum(place.elements for place in (*expected, *buffers))
    assert sum(rank["elements"] for rank in ranks) == total
    (spec,) = [part.spec for part in frozen_parts(whole, rank=0)]
    digests = [[each[3] for each in rank["frozen"]] for rank in ranks]
    assert [rank["frozen"][0][:3] for rank in ranks] == [as_json(spec[:3])] * 2
    assert digests == [[0], [spec.digest]]
    for rank in ranks:
        assert "stages of a pipeline keep the names" in rank["twice"]


def as_json(value: object) -> object:
    return json.loads(json.dumps(value))


def test_the_parts_of_one_rank_are_one_model() -> None:
    parts = [nn.ModuleDict({"a": nn.Linear(2, 2)}), nn.ModuleDict({"b": nn.Linear(2, 1)})]
    assert [place.name for place in node_shards(parts, rank=0).layout] == [
        "a.weight",
        "a.bias",
        "b.weight",
        "b.bias",
    ]
    again = [nn.ModuleDict({"a": nn.Linear(2, 2)}), nn.ModuleDict({"a": nn.Linear(2, 1)})]
    with pytest.raises(ConfigError, match=r"are both named a\.weight"):
        node_shards(again, rank=0)
    tied = nn.ModuleDict({"b": parts[0]["a"]})
    layout = node_shards([parts[0], tied], rank=0).layout
    assert [place.name for place in layout] == ["a.weight", "a.bias"]
