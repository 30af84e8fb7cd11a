"""Names, fused tensors and orders of rows that a program has in another way than its run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lowcomm.tensors.fsdp import node_shards, read_shards, write_shards
from lowcomm.tensors.placement import Placement
from lowcomm.tensors.run_names import Piece, RunNames, run_tensors
from peers.ipc import TensorPlace
from protocols.types import ConfigError
from tests.lowcomm import node_ranks
from tests.lowcomm.forking import run_ranks

HEADS, HALF, WIDTH = 2, 3, 4
ROWS = HEADS * 2 * HALF
NAMES: RunNames = {
    "a.q": [
        ("mixer.fused", slice(2 * HALF * head + half, 2 * HALF * (head + 1), 2))
        for head in range(HEADS)
        for half in range(2)
    ],
    "a.v": [("mixer.fused", slice(ROWS, None))],
    "frozen": "base",
    "z.norm": "gain",
    "b": "last.bias",
}
SHAPES = {"gain": (WIDTH,), "mixer.fused": (ROWS + 5, WIDTH), "last.bias": ()}


class Plain(nn.Module):
    """A program's model."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(3)
        self.gain = nn.Parameter(torch.randn(WIDTH, generator=made).to(dtype))
        self.mixer, self.last = nn.Module(), nn.Module()
        fused = torch.randn(ROWS + 5, WIDTH, generator=made)
        self.mixer.fused = nn.Parameter(fused.to(dtype))
        self.last.bias = nn.Parameter(torch.randn((), generator=made).to(dtype))


def as_run(made: nn.Module) -> list[torch.Tensor]:
    """The run's tensors, by the definition: of a pair of rows, one is in each half of its head."""
    fused = made.get_parameter("mixer.fused").detach()
    pairs = fused[:ROWS].view(HEADS, HALF, 2, WIDTH)
    queries = torch.cat([pairs[:, :, 0], pairs[:, :, 1]], dim=1).reshape(ROWS, WIDTH)
    others = [made.get_parameter(name).detach() for name in ("gain", "last.bias")]
    return [queries, fused[ROWS:], *others]


def test_a_program_with_a_table_has_the_runs_layout_and_moves_values_without_a_changed_bit() -> (
    None
):
    made = Plain(torch.float32)
    parts = node_shards(made, rank=0, names=NAMES)
    assert parts.layout == [
        TensorPlace(0, "a.q", (ROWS, WIDTH), 0),
        TensorPlace(0, "a.v", (5, WIDTH), ROWS * WIDTH),
        TensorPlace(0, "z.norm", (WIDTH,), (ROWS + 5) * WIDTH),
        TensorPlace(0, "b", (), (ROWS + 6) * WIDTH),
    ]
    expected = b"".join(each.numpy().tobytes() for each in as_run(made))
    buffer = memoryview(bytearray(len(expected)))
    write_shards(parts.shards, buffer)
    assert bytes(buffer) == expected
    assert sum(shard.elements for shard in parts.shards) == len(expected) // 4
    again = np.random.default_rng(1).permutation(np.frombuffer(expected, np.float32)).tobytes()
    read_shards(parts.shards, memoryview(again), "full")
    assert b"".join(each.numpy().tobytes() for each in as_run(made)) == again


def test_the_remainders_of_low_precisions_belong_to_their_rows() -> None:
    made = Plain(torch.bfloat16)
    shards = node_shards(made, rank=0, names=NAMES).shards
    elements = sum(shard.elements for shard in shards)
    given = np.random.default_rng(2).standard_normal(elements, np.float32).tobytes()
    read_shards(shards, memoryview(given), "full")
    buffer = memoryview(bytearray(len(given)))
    write_shards(shards, buffer)
    assert bytes(buffer) == given
    whole = np.concatenate([each.float().numpy().reshape(-1) for each in as_run(made)])
    assert (
        whole.tobytes()
        == torch.frombuffer(given, dtype=torch.float32).bfloat16().float().numpy().tobytes()
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 20])
def test_ranks_with_any_rows_have_all_of_a_piece_together(ranks: int) -> None:
    size = ROWS + 5
    tensors = run_tensors(SHAPES, NAMES)
    (queries, values) = (tensor for tensor in tensors if tensor.name.startswith("a."))
    share = -(-size // ranks)
    for tensor in (queries, values):
        found: list[tuple[int, int]] = []
        for first in range(0, share * ranks, share):
            own = range(size)[first : first + share]
            held = Placement((first, 1), (len(own), 2), writes=True)
            for piece in tensor.pieces:
                part = piece.part(held)
                if part is None:
                    continue
                assert part.rows is not None
                assert (part.offsets[1], part.sizes[1]) == (1, 2)
                taken = own[part.rows]
                assert len(taken) == part.sizes[0] > 0
                found += zip(
                    range(part.offsets[0], part.offsets[0] + part.sizes[0]), taken, strict=True
                )
        rows = [row for piece in tensor.pieces for row in piece.rows or ()]
        assert sorted(found) == list(enumerate(rows))


@pytest.mark.long
@pytest.mark.deadline(100)
def test_sharded_ranks_move_rows_as_one_whole_rank_does(tmp_path: Path) -> None:
    whole = node_ranks.build("names")
    shards = node_shards(whole, rank=0, names=node_ranks.NAMES).shards
    written = memoryview(bytearray(4 * sum(shard.elements for shard in shards)))
    write_shards(shards, written)
    size = written.nbytes // 4
    results = np.random.default_rng(4).standard_normal((2, size), np.float32)
    for name, result in zip(("full", "delta"), results, strict=True):
        (tmp_path / f"{name}.bin").write_bytes(result.tobytes())

    run_ranks("node_ranks.py", "names", 3, tmp_path)

    assert (tmp_path / "written.bin").read_bytes() == bytes(written)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(3)]
    assert sum(rank["elements"] for rank in ranks) == size
    read_shards(shards, memoryview(results[0].tobytes()), "full")
    full = node_ranks.flat(whole).numpy().tobytes().hex()
    read_shards(shards, memoryview(results[1].tobytes()), "delta")
    delta = node_ranks.flat(whole).numpy().tobytes().hex()
    for rank in ranks:
        assert (rank["full"], rank["delta"]) == (full, delta)


def test_a_whole_tensor_is_held_as_it_is_placed() -> None:
    held = Placement((3, 0), (2, 4), writes=False)
    assert Piece("x", None, 0).part(held) == ((3, 0), (2, 4), None)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({**NAMES, "b": "other"}, "place each row of parameter last.bias once .* places one 0"),
        ({**NAMES, "c": "gain"}, "place each row of parameter gain once .* places one 2 times"),
        ({**NAMES, "a.v": [("mixer.fused", slice(ROWS + 1, None))]}, "mixer.fused once .* one 0"),
        (
            {**NAMES, "b": [("last.bias", slice(0, 1))]},
            r"slice\(0, 1, None\) of the rows of last.bias",
        ),
        (
            {**NAMES, "z.norm": [("gain", slice(None, None, -1))]},
            "of gain .*: give .* a positive step",
        ),
        (
            {**NAMES, "z.norm": [("gain", slice(0, 4)), ("base", slice(0, 4))]},
            "makes z.norm of base and others",
        ),
        (
            {**NAMES, "a.v": [*NAMES["a.v"], ("gain", slice(0, 4))]},
            r"a.v of rows with different shapes: \[\(\), \(4,\)\]",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused(names: RunNames, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        run_tensors(SHAPES, names)
