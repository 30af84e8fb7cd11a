"""Rows that cross the borders of shards: every rank gets the whole groups that are its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.flexdemo.row_exchange import RowExchange, Rows, held, owned
from lowcomm.replicators.replicators import Grid


def test_rows_are_cut_as_fsdp2_cuts_them_and_groups_belong_to_whom_has_their_first_row() -> None:
    grid = Grid.of((20, 3), 8)
    assert [held(grid, rank, 3) for rank in range(3)] == [Rows(0, 7), Rows(7, 14), Rows(14, 20)]
    assert [owned(grid, rank, 3) for rank in range(3)] == [Rows(0, 8), Rows(8, 16), Rows(16, 20)]
    few = Grid.of((5, 3), 8)
    assert [owned(few, rank, 4) for rank in range(4)] == [Rows(0, 5), *([Rows(5, 5)] * 3)]
    assert [held(few, rank, 4) for rank in range(4)][-1] == Rows(5, 5), "nothing is left for it"


@pytest.mark.parametrize("rows", range(1, 60, 7))
@pytest.mark.parametrize("world", [1, 2, 3, 4, 9])
def test_shards_are_those_of_torch(rows: int, world: int) -> None:
    chunks = [len(chunk) for chunk in torch.arange(rows).chunk(world)]
    grid = Grid.of((rows, 2), 8)
    assert [len(held(grid, rank, world)) for rank in range(world)][: len(chunks)] == chunks
    assert sum(len(owned(grid, rank, world)) for rank in range(world)) == rows


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=4),
    world=st.integers(1, 5),
)
def test_every_rank_gets_the_rows_of_its_groups(sizes: list[tuple[int, int]], world: int) -> None:
    grids = [Grid.of(size, 8) for size in sizes]
    tensors = [
        torch.arange(1, 1 + rows * columns).reshape(rows, columns) for rows, columns in sizes
    ]
    ranks = [RowExchange(grids, rank=rank, world_size=world) for rank in range(world)]
    shards = [
        [tensor[rows.first : rows.stop] for tensor, rows in zip(tensors, each.held, strict=True)]
        for each in ranks
    ]
    for rank, each in enumerate(ranks):
        incoming = [ranks[other].outgoing(shards[other], rank) for other in range(world)]
        sizes_of = [each.incoming_elements(other) for other in range(world)]
        assert [part.numel() for part in incoming] == sizes_of
        got = each.joined(shards[rank], incoming)
        for tensor, rows, found in zip(tensors, each.owned, got, strict=True):
            assert torch.equal(found, tensor[rows.first : rows.stop])


def test_one_rank_and_whole_groups_have_nothing_to_exchange() -> None:
    grid = Grid.of((32, 3), 8)
    assert not RowExchange([grid], rank=0, world_size=1).crossed
    whole = RowExchange([grid], rank=1, world_size=2)
    assert not whole.crossed
    rows = torch.zeros(16, 3)
    assert whole.exchange([rows], None)[0] is rows
    assert RowExchange([grid], rank=1, world_size=3).crossed
