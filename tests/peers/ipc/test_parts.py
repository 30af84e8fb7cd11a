"""Parts of fragments: which bytes they are, cut into pieces, packed, and refused."""

import math
import random

import numpy as np
import pytest

from peers.ipc.msgpack_records import LinkError
from peers.ipc.parts import PIECE_ELEMENTS, Runs, pack_parts, runs_of, unpack_parts
from protocols.types import TensorSpec


def boxed(seed: int) -> tuple[TensorSpec, tuple[int, ...], tuple[int, ...]]:
    """A tensor of up to four dimensions, and a part of it."""
    draw = random.Random(seed)
    shape = tuple(draw.randint(1, 6) for _ in range(draw.randint(0, 4)))
    offsets = tuple(draw.randrange(size) for size in shape)
    sizes = tuple(
        draw.randint(0 if seed % 5 == 0 else 1, size - first)
        for size, first in zip(shape, offsets, strict=True)
    )
    return TensorSpec(0, "w", shape, draw.randint(0, 9)), offsets, sizes


@pytest.mark.parametrize("seed", range(200))
def test_runs_are_the_elements_of_a_part(seed: int) -> None:
    place, offsets, sizes = boxed(seed)
    numbers = place.offset + np.arange(place.elements).reshape(place.shape)
    window = tuple(slice(a, a + b) for a, b in zip(offsets, sizes, strict=True))
    wanted = numbers[window].ravel().tolist()
    found = [
        run.start + row * run.step + at
        for run in runs_of(place, offsets, sizes, writes=True)
        for row in range(run.count)
        for at in range(run.length)
    ]
    assert found == wanted


def test_a_shard_of_the_first_dimension_is_one_run() -> None:
    place = TensorSpec(2, "w", (8, 3, 5), 100)
    assert runs_of(place, (4, 0, 0), (2, 3, 5), writes=False) == [Runs(2, 160, 30, 30, 1, False)]


def test_a_shard_of_the_last_dimension_is_one_entry() -> None:
    place = TensorSpec(0, "w", (8, 3, 5), 0)
    assert runs_of(place, (0, 0, 1), (8, 3, 2), writes=True) == [Runs(0, 1, 2, 5, 24, True)]


@pytest.mark.parametrize(
    "run",
    [
        Runs(0, 7, 3 * PIECE_ELEMENTS + 5, 3 * PIECE_ELEMENTS + 9, 2, True),
        Runs(0, 0, 700, 1000, 331, True),
        Runs(0, 3, 1, 2, PIECE_ELEMENTS + 1, False),
    ],
)
def test_pieces_carry_each_element_once(run: Runs) -> None:
    source = np.arange(run.end + 4, dtype=np.uint32)
    target = np.zeros_like(source)
    seen = 0
    for piece in run.pieces():
        assert piece.total <= PIECE_ELEMENTS
        seen += piece.total
        values = piece.gather(source.view(np.uint8).data)
        piece.scatter(target.view(np.uint8).data, memoryview(values))
    assert seen == run.total
    wanted = np.zeros_like(source)
    for row in range(run.count):
        at = run.start + row * run.step
        wanted[at : at + run.length] = source[at : at + run.length]
    assert np.array_equal(target, wanted)


def test_a_piece_of_another_size_is_refused() -> None:
    with pytest.raises(LinkError, match="a piece of 8 bytes, not 12"):
        Runs(0, 0, 3, 3, 1, True).scatter(memoryview(bytearray(40)), memoryview(bytes(8)))


def test_packed_parts_come_back() -> None:
    parts = (Runs(0, 0, 5, 5, 1, True), Runs(1, 2, 3, 7, 4, False))
    assert unpack_parts(pack_parts(parts), (20, 4 * (2 + 3 * 7 + 3))) == parts
    assert unpack_parts(pack_parts(()), (20,)) == ()


def test_parts_of_many_tensors_fit_into_a_record() -> None:
    """As FSDP2 shards 50,000 tensors of a model."""
    draw, at, parts = random.Random(0), 0, list[Runs]()
    for number in range(50_000):
        size = math.prod(draw.choices((64, 256, 1024), k=1 + number % 2))
        parts.append(Runs(number % 24, at, size // 2, size // 2, 1, True))
        at = at + size if number % 24 else 0
    assert len(pack_parts(parts)) < 1 << 19


@pytest.mark.parametrize(
    "part",
    [
        Runs(1, 0, 1, 1, 1, True),
        Runs(0, 6, 5, 5, 1, True),
        Runs(0, 0, 2, 5, 3, True),
        Runs(0, -1, 2, 5, 1, True),
        Runs(0, 0, 0, 5, 1, True),
        Runs(0, 0, 3, 2, 1, True),
        Runs(0, 0, 1, 1, 0, True),
        Runs(0, 0, 1, 1, 1 << 40, True),
    ],
)
def test_parts_outside_of_their_fragment_are_refused(part: Runs) -> None:
    with pytest.raises(LinkError):
        unpack_parts(pack_parts([part]), (40,))


@pytest.mark.parametrize("packed", [b"", b"abc", pack_parts([Runs(0, 0, 1, 1, 1, True)])[:-2]])
def test_bytes_that_are_no_parts_are_refused(packed: bytes) -> None:
    with pytest.raises(LinkError):
        unpack_parts(packed, (40,))
