"""Means of directions: a slow reference, and the same bits wherever pieces and parts are cut."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lowcomm.methods import DecoupledDiLoCoMethod
from lowcomm.numerics.direction_means import Directions
from lowcomm.numerics.kernels import NORM_ELEMENTS
from lowcomm.numerics.operations import F32, WeightsError
from lowcomm.outer_state.replica import Replica
from protocols.types.ids import TensorSpec
from tests.lowcomm.replicas import arrays, contributors, cut, encoded, gaussian, share, stamp, view

SHAPES = {"embed": (30, 100), "a": (70, 90), "none": (0,), "b": (), "c": (5000,), "d": (777,)}
TOKENS = (300, 100, 200)


def layout() -> tuple[TensorSpec, ...]:
    found, offset = list[TensorSpec](), 0
    for name, shape in SHAPES.items():
        found.append(TensorSpec(0, name, shape, offset))
        offset += math.prod(shape)
    return tuple(found)


LAYOUT = layout()
SIZE = sum(math.prod(tensor.shape) for tensor in LAYOUT)


def merged(
    contributions: Sequence[F32], weights: Sequence[int], borders: Iterable[int] = ()
) -> F32:
    """In pieces that begin there."""
    directions = Directions(LAYOUT, lambda name: name != "embed")
    cuts = list(pairwise((0, *borders, SIZE)))

    def pieces() -> Iterator[tuple[int, list[F32]]]:
        for start, stop in cuts:
            yield start, [values[start:stop] for values in contributions]

    sum_P, out_P = np.full((2, SIZE), np.nan, np.float32)
    directions.add_up(pieces, weights, sum_P)
    for start, stop in cuts:
        directions.scale(start, sum_P[start:stop], out_P[start:stop])
    return out_P


def slow(contributions: Sequence[F32], weights: Sequence[int]) -> Iterator[tuple[str, Any, Any]]:
    """By tensor, what the definition says in fp64: (name, mean, mean length)."""
    total = sum(weights)
    for tensor in LAYOUT:
        place = slice(tensor.offset, tensor.offset + math.prod(tensor.shape))
        parts = [values[place].astype(np.float64) for values in contributions]
        norms = [np.linalg.norm(part) for part in parts]
        length = sum(w * norm for w, norm in zip(weights, norms, strict=True)) / total
        units = [part / norm if norm else part for part, norm in zip(parts, norms, strict=True)]
        turned: Any = sum(w * unit for w, unit in zip(weights, units, strict=True))
        if tensor.name == "embed":
            yield tensor.name, sum(w * p for w, p in zip(weights, parts, strict=True)) / total, 0
        else:
            norm = np.linalg.norm(turned)
            yield tensor.name, turned * (length / norm if norm else 0), length


@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_is_what_the_definition_says(count: int) -> None:
    contributions = [np.float32(3**seed) * gaussian(seed, SIZE) for seed in range(count)]
    weights = [count**2 for count in TOKENS[:count]]
    found = merged(contributions, weights)
    for tensor, (name, wanted, length) in zip(LAYOUT, slow(contributions, weights), strict=True):
        mine = found[tensor.offset : tensor.offset + math.prod(tensor.shape)]
        np.testing.assert_allclose(mine, wanted, rtol=2e-6, atol=1e-6, err_msg=name)
        if length:
            assert np.linalg.norm(mine) == pytest.approx(length, rel=1e-6)


def test_more_nodes_make_it_no_shorter() -> None:
    """Of eight that are orthogonal a plain mean is a third as long as one."""
    contributions = [gaussian(seed, SIZE) for seed in range(8)]
    found, there = merged(contributions, [1] * 8), slice(LAYOUT[1].offset, SIZE)
    alone = float(np.linalg.norm(contributions[0][there]))
    assert np.linalg.norm(found[there]) == pytest.approx(alone, rel=0.02)
    mean = np.mean([values[there] for values in contributions], axis=0)
    assert np.linalg.norm(mean) < 0.4 * alone


@pytest.mark.parametrize(
    "borders", [(NORM_ELEMENTS,), (2 * NORM_ELEMENTS, 3 * NORM_ELEMENTS), (3 * NORM_ELEMENTS,)]
)
def test_pieces_that_begin_at_blocks_give_the_bits_of_the_whole(borders: tuple[int, ...]) -> None:
    contributions = [gaussian(seed, SIZE) for seed in range(3)]
    assert (
        merged(contributions, TOKENS, borders).tobytes() == merged(contributions, TOKENS).tobytes()
    )


def test_what_is_nothing_has_no_direction() -> None:
    nothing, one = np.zeros(SIZE, np.float32), gaussian(1, SIZE)
    assert not merged([nothing, nothing], [1, 2]).any()
    found, there = merged([one, nothing], [1, 3]), slice(LAYOUT[1].offset, SIZE)
    np.testing.assert_allclose(found[there], one[there] / 4, rtol=1e-6)
    assert not merged([one, -one], [1, 1])[there].any(), "against each other"


@pytest.mark.parametrize("factor", [1e-44, 1e-20, 1e37])
def test_one_that_is_tiny_or_huge_hides_no_others_direction(factor: float) -> None:
    """It counts as one direction of three; a huge one makes all of it long."""
    others = [gaussian(1, SIZE), gaussian(2, SIZE)]
    wrong = (np.float64(factor) * gaussian(3, SIZE)).astype(np.float32)
    found, there = merged([*others, wrong], [1, 1, 1]), slice(LAYOUT[4].offset, SIZE)
    assert np.isfinite(found).all()
    assert np.corrcoef(found[there], (others[0] + others[1])[there])[0, 1] > 0.75
    assert merged([wrong], [2**120])[there].any() == (factor > 1e-30)


def test_without_weights_there_is_nothing() -> None:
    with pytest.raises(WeightsError):
        merged([gaussian(0, SIZE)], [0])


def play(borders: tuple[int, ...], *, ahead: bool) -> tuple[str, F32]:
    """A round of three; its state digest, and the outer parameters."""
    method = DecoupledDiLoCoMethod(contribution_codec="int8", fragments=1, outer_momentum=0.9)
    replicas = [Replica(method, LAYOUT) for _ in range(3)]
    for seed, replica in enumerate(replicas):
        share(replica)
        replica.initialise(0, view(np.zeros(SIZE, np.float32)))
        replica.contributions.take_local(0, view(gaussian(seed, SIZE)))
    wholes, terms, parts = [encoded(x, 0) for x in replicas], contributors(*TOKENS), list[bytes]()
    for start, stop in pairwise((0, *borders, SIZE)):
        slices = [cut(replicas[0], whole, start, stop) for whole in wholes]
        out = bytearray(3 * replicas[0].result_bytes(0, stop - start))
        replicas[0].reduce(0, stop - start, slices, terms, memoryview(out))
        parts.append(bytes(out))
        if ahead:
            replicas[1].ahead(stamp(0, 1), start, parts[-1], parts[-1], stop - start, terms)
    marks = (0, *borders, SIZE)
    found = {replica.apply(stamp(0, 1), marks, parts, terms) for replica in replicas}
    assert len(found) == 1
    return found.pop(), arrays(replicas[0], 0)[0]


def test_a_round_ends_with_equal_bits_wherever_parts_are_cut() -> None:
    found = {
        play(borders, ahead=ahead)[0]
        for borders in ((), (NORM_ELEMENTS,), (NORM_ELEMENTS, 3 * NORM_ELEMENTS))
        for ahead in (False, True)
    }
    assert len(found) == 1


def test_a_round_steps_by_it() -> None:
    _, outer = play((), ahead=False)
    wanted = merged([-gaussian(seed, SIZE) for seed in range(3)], [w * w for w in TOKENS])
    moved = outer / np.float32(-0.7 * 1.9)
    there = slice(LAYOUT[1].offset, SIZE)
    for place in (slice(0, LAYOUT[1].offset), there):
        error = np.linalg.norm(moved[place] - wanted[place]) / np.linalg.norm(wanted[place])
        assert error < 0.02, "what int8 loses, and no more"
