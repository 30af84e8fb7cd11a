"""Replicators: which values they keep, what a payload weighs, and what no node would send."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.codecs.codec import CodecError
from lowcomm.numerics.kernels import F32
from lowcomm.replicators.replicators import (
    ELEMENTS_AT_ONCE,
    Demo,
    Full,
    Grid,
    Random,
    Replicator,
    Span,
    Striding,
    Turn,
    Values,
    Wire,
)

TURN = Turn(seed=3, step=5, tensor=1)
ALL = [
    Demo(Wire("bf16"), topk=4),
    Demo(Wire("sign"), topk=5),
    Random(Wire("fp32"), one_in=16),
    Striding(Wire("sign"), one_in=3),
    Full(Wire("bf16")),
]


def noise(*shape: int, seed: int = 1) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def cosines(size: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    k, at = np.arange(size)[:, None], np.arange(size)[None]
    scale = np.where(k == 0, math.sqrt(1 / size), math.sqrt(2 / size))
    return scale * np.cos(math.pi * (at + 0.5) * k / size)


def test_spans_cover_each_group_once_and_the_last_one_may_be_short() -> None:
    grid = Grid.of((200, 3), 64)
    assert (grid.groups, grid.columns, grid.is_matrix) == (4, 3, True)
    assert list(grid.spans(0, 4)) == [Span(0, 3, 64), Span(3, 1, 8)]
    assert list(grid.spans(1, 3)) == [Span(1, 2, 64)]
    assert list(grid.spans(3, 4)) == [Span(3, 1, 8)]
    assert list(grid.spans(2, 2)) == []
    wide = Grid.of((256, ELEMENTS_AT_ONCE // 128), 64)
    assert list(wide.spans(0, 4)) == [Span(0, 2, 64), Span(2, 2, 64)]
    assert (Grid.of((), 64), Grid.of((5,), 64)) == (Grid(1, 1, 64, False), Grid(5, 1, 64, False))
    assert Grid.of((4, 3, 5), 64).columns == 15


def test_demo_keeps_the_largest_coefficients_of_each_tile() -> None:
    demo, grid = Demo(Wire("fp32"), topk=6), Grid.of((8, 16), 8)
    values = noise(1, 8, 16)
    records, said = demo.encode_groups(values, grid, TURN)
    basis = cosines(8)
    for tile in range(2):
        here = slice(8 * tile, 8 * tile + 8)
        spectrum = basis @ values[0, :, here] @ basis.T
        border = np.sort(np.abs(spectrum), axis=None)[-6]
        expected = basis.T @ np.where(np.abs(spectrum) >= border, spectrum, 0) @ basis
        assert np.allclose(said[0, :, here], expected, atol=1e-5)
    places, kept = demo.decode_groups(records, grid, Span(0, 1, 8), TURN)
    assert places.shape == kept.shape == (2, 6)
    tiles = np.zeros((2, 64), np.float32)
    np.put_along_axis(tiles, places, kept, axis=1)
    again = demo.synthesise(tiles, grid, Span(0, 1, 8))
    assert again.tobytes() == np.ascontiguousarray(said).tobytes()


def test_beyond_its_border_a_tile_is_zero() -> None:
    """It is padded, not cut into whatever divides the tensor: any number of rows is fine."""
    demo, grid = Demo(Wire("fp32"), topk=6), Grid.of((5, 11), 8)
    values, padded = noise(1, 5, 11), np.zeros((1, 8, 16), np.float32)
    padded[:, :5, :11] = values
    records, said = demo.encode_groups(values, grid, TURN)
    expected, said_of_all = demo.encode_groups(padded, Grid.of((8, 16), 8), TURN)
    assert records.tobytes() == expected.tobytes()
    assert np.array_equal(said, said_of_all[:, :5, :11])


@pytest.mark.parametrize("one_in", [1, 3, 16])
def test_random_places_are_one_in_so_many_and_other_ones_in_each_step(one_in: int) -> None:
    random = Random(Wire("fp32"), one_in=one_in)
    first = random.turns(5000, TURN)
    assert first.size == -(-4096 // one_in) + -(-904 // one_in)
    assert (np.diff(first) > 0).all()
    assert first[-1] < 5000
    assert np.array_equal(first, random.turns(5000, TURN))
    for other in (Turn(3, 6, 1), Turn(3, 5, 2), Turn(4, 5, 1)):
        assert one_in == 1 or not np.array_equal(first, random.turns(5000, other))


def test_random_places_reach_every_value() -> None:
    random = Random(Wire("fp32"), one_in=8)
    counts = np.zeros(512, int)
    for step in range(400):
        counts[random.turns(512, Turn(0, step, 0))] += 1
    assert counts.sum() == 400 * 64
    assert abs(counts - 50).max() < 5 * math.sqrt(50 * 7 / 8)


@pytest.mark.parametrize("width", [1, 15, 16, 100])
def test_striding_sends_each_value_once_in_a_round_of_steps(width: int) -> None:
    """By the step alone: the order of tensors has no part in it."""
    striding, seen = Striding(Wire("fp32"), one_in=16), list[int]()
    whole = width // 16 * 16
    for step in range(16):
        places = striding.turns(width, Turn(9, step, step % 3))
        assert places.size == -(-width // 16)
        seen += [int(place) for place in places if place < whole]
    assert sorted(seen) == list(range(whole))


def test_random_and_striding_say_the_values_themselves() -> None:
    grid, values = Grid.of((70, 9), 64), noise(1, 64, 9)
    for replicator in (Random(Wire("fp32"), one_in=4), Striding(Wire("fp32"), one_in=4)):
        _, said = replicator.encode_groups(values, grid, TURN)
        assert np.count_nonzero(said) == replicator.tiling(grid, 64)[2]
        assert np.array_equal(said[said != 0], values[said != 0])


@pytest.mark.parametrize(
    ("values", "per_value"), [("bf16", 2), ("fp32", 4), ("sign", 0.125)], ids=str
)
def test_a_payload_weighs_what_the_formula_says(values: Values, per_value: float) -> None:
    grid, elements = Grid.of((640, 512), 64), 640 * 512
    wire = Wire(values)
    demo = Demo(wire, topk=32)
    assert 10 * demo.group_bytes(grid, 64) == elements * 32 // 4096 * (1.5 + per_value)
    random, striding = Random(wire, one_in=16), Striding(wire, one_in=16)
    for replicator in (random, striding):
        assert 10 * replicator.group_bytes(grid, 64) == elements // 16 * per_value
    assert 10 * Full(wire).group_bytes(grid, 64) == elements * per_value


def test_of_a_vector_tiles_are_as_long_as_a_chunk_and_all_of_a_small_one_is_sent() -> None:
    grid = Grid.of((200,), 64)
    assert Demo(Wire("bf16"), topk=32).tiling(grid, 64) == (1, 64, 32)
    assert Demo(Wire("bf16"), topk=100).tiling(grid, 8) == (1, 64, 64)


@pytest.mark.parametrize("replicator", ALL, ids=lambda each: type(each).__name__)
def test_what_is_decoded_is_what_was_said(replicator: Replicator) -> None:
    grid = Grid.of((150, 33), 64)
    for span in grid.spans(0, grid.groups):
        values = noise(span.count, span.rows, 33)
        records, said = replicator.encode_groups(values, grid, TURN)
        assert records.shape == (span.count, replicator.group_bytes(grid, span.rows))
        places, kept = replicator.decode_groups(records, grid, span, TURN)
        tiles, width, count = replicator.tiling(grid, span.rows)
        assert kept.shape == (span.count * tiles, count)
        if replicator.wire.values == "sign":
            assert set(np.abs(kept).reshape(-1)) == {1.0}
            continue
        again = np.zeros((len(kept), width), np.float32)
        np.put_along_axis(again, np.broadcast_to(places, kept.shape), kept, axis=1)
        made = replicator.synthesise(again, grid, span)
        assert np.ascontiguousarray(made).tobytes() == np.ascontiguousarray(said).tobytes()


def test_signs_travel_and_magnitudes_stay_with_the_sender() -> None:
    kept = np.array([[1.5, -0.25, 0.0, -0.0, 3, -3, 1, -1, -7]], np.float32)
    packed, said = Wire("sign").pack(kept)
    assert packed.tobytes() == bytes([0b10101010, 1])
    assert said is kept
    assert Wire("sign").unpack(packed, 9).tolist() == [[1, -1, 1, -1, 1, -1, 1, -1, -1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("values", ["bf16", "fp32"])
def test_a_value_that_is_not_finite_is_refused(values: Values, bad: float) -> None:
    packed, _ = Wire(values).pack(np.array([[1, bad, 2]], np.float32))
    with pytest.raises(CodecError, match="not finite"):
        Wire(values).unpack(packed, 3)


def test_bits_after_the_last_sign_are_refused() -> None:
    with pytest.raises(CodecError, match="after the last sign"):
        Wire("sign").unpack(np.array([[0b1000]], np.uint8), 3)


@given(st.binary(min_size=10, max_size=10))
def test_places_are_good_or_refused(record: bytes) -> None:
    """Of 4 places in 64 values, and 4 bf16: anything may have come."""
    demo, grid = Demo(Wire("bf16"), topk=4), Grid.of((8, 8), 8)
    padded = np.frombuffer(record + bytes(4), np.uint8)[None]
    try:
        places, values = demo.decode_groups(padded, grid, Span(0, 1, 8), TURN)
    except CodecError:
        return
    assert (np.diff(places[0]) > 0).all()
    assert places[0, 0] >= 0
    assert places[0, -1] < 64
    assert np.isfinite(values).all()
