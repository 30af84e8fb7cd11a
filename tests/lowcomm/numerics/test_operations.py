"""The arithmetic of the outer step against slow references, one scalar operation at a time.

Everything is tried twice: with what this installation has compiled, and as if it had nothing.
"""

import math
import tracemalloc
from collections.abc import Generator, Sequence
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lowcomm.numerics import operations as outer_module
from lowcomm.numerics.kernels import BLOCK_ELEMENTS, F32, NORM_ELEMENTS, Loops, NumpyLoops, loops
from lowcomm.numerics.operations import (
    WeightsError,
    block_squares,
    descent,
    heavy_ball_step,
    nesterov_step,
    pseudo_gradient,
    rebase,
    trimmed_mean,
    weighted_mean,
)
from lowcomm.numerics.state_digests import state_digest
from peers.exchange.pieces import PIECE_ELEMENTS

# Denormals and signed zeros included; bounded so that nothing overflows.
NUMBERS = st.floats(-(2.0**90), 2.0**90, width=32)


@pytest.fixture(scope="module", autouse=True, params=["as installed", "nothing compiled"])
def chosen(request: pytest.FixtureRequest) -> Generator[Loops]:
    here = loops() if request.param == "as installed" else NumpyLoops()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outer_module, "_loops", here)
        yield here


def vectors(count: int) -> st.SearchStrategy[list[F32]]:
    """`count` arrays of one length between 0 and 17."""
    return st.integers(0, 17).flatmap(
        lambda size: st.lists(
            hnp.arrays(np.float32, size, elements=NUMBERS), min_size=count, max_size=count
        )
    )


def f32(*values: float) -> F32:
    return np.array(values, np.float32)


def gaussian(seed: int, size: int) -> F32:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def mean_of(contributions: Sequence[F32], tokens: Sequence[int]) -> F32:
    out = np.full_like(contributions[0], np.nan)
    weighted_mean(contributions, tokens, out)
    return out


def slow_mean(contributions: Sequence[F32], tokens: Sequence[int]) -> F32:
    weights = [np.float32(float(Fraction(count, max(tokens)))) for count in tokens]
    total = np.float64(0)
    for weight in weights:
        total = total + np.float64(weight)
    inverse = np.float32(np.float64(1) / total)
    out = np.empty_like(contributions[0])
    for i in range(out.size):
        acc = contributions[0][i] * weights[0]
        for contribution, weight in zip(contributions[1:], weights[1:], strict=True):
            acc = acc + contribution[i] * weight
        out[i] = acc * inverse
    return out


@given(st.data(), st.lists(st.integers(0, 2**63), min_size=1, max_size=5).filter(any))
def test_the_mean_is_the_slow_one_bit_by_bit(data: st.DataObject, tokens: list[int]) -> None:
    contributions = data.draw(vectors(len(tokens)))
    mean = mean_of(contributions, tokens)
    assert mean.tobytes() == slow_mean(contributions, tokens).tobytes()


def test_the_mean_is_near_the_exact_one() -> None:
    contributions = [gaussian(seed, 1000) for seed in range(4)]
    tokens = [1000, 250, 4000, 3]
    exact = np.average(np.array(contributions, np.float64), axis=0, weights=tokens)
    np.testing.assert_allclose(mean_of(contributions, tokens), exact, atol=5e-7)


def test_the_mean_of_one_is_itself() -> None:
    only = gaussian(0, 100)
    assert mean_of([only], [12345]).tobytes() == only.tobytes()


def test_the_sum_runs_in_the_given_order() -> None:
    big, one, minus = f32(2.0**25), f32(1), f32(-(2.0**25))
    assert mean_of([big, one, minus], [1, 1, 1]) == 0  # The 1 is lost in the big one.
    assert mean_of([big, minus, one], [1, 1, 1]) == np.float32(1) * np.float32(1 / 3)


def test_no_tokens_no_weight() -> None:
    contributions = [gaussian(seed, 50) for seed in range(3)]
    with_idle = mean_of(contributions, [300, 0, 700])
    assert (with_idle == mean_of([contributions[0], contributions[2]], [300, 700])).all()


@pytest.mark.parametrize("tokens", [[0, 0], [0], [], [5, -1], [-1, -1]])
def test_a_mean_over_nothing_is_an_error_and_writes_nothing(tokens: list[int]) -> None:
    out = f32(7, 7)
    with pytest.raises(WeightsError, match="token counts"):
        weighted_mean([f32(1, 2) for _ in tokens], tokens, out)
    assert out.tolist() == [7, 7]


def slow_trimmed_mean(contributions: Sequence[F32], trimmed: int) -> F32:
    out = np.empty_like(contributions[0])
    for i in range(out.size):
        found = sorted((each[i] for each in contributions), key=lambda x: (x, not np.signbit(x)))
        total, *others = found[trimmed : len(found) - trimmed]
        for value in others:
            total = total + value
        out[i] = total * np.float32(1 / (len(found) - 2 * trimmed))
    return out


@given(st.data(), st.sampled_from([(1, 0), (2, 0), (3, 1), (4, 1), (5, 0), (5, 2), (9, 2)]))
def test_the_trimmed_mean_is_the_slow_one_bit_by_bit(
    data: st.DataObject, shape: tuple[int, int]
) -> None:
    count, trimmed = shape
    contributions = data.draw(vectors(count))
    out = np.full_like(contributions[0], np.nan)
    trimmed_mean(contributions, trimmed, out)
    assert out.tobytes() == slow_trimmed_mean(contributions, trimmed).tobytes()
    backwards = np.full_like(out, np.nan)
    trimmed_mean(contributions[::-1], trimmed, backwards)
    assert backwards.tobytes() == out.tobytes(), "in whatever order they are given"


@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_trimmed_need_not_be_finite(wrong: float) -> None:
    contributions = [gaussian(seed, 100) for seed in range(5)]
    contributions[2][:] = np.float32(wrong)
    out = np.empty(100, np.float32)
    trimmed_mean(contributions, 1, out)
    assert np.isfinite(out).all()
    trimmed_mean(contributions, 0, out)
    assert not np.isfinite(out).any()


@pytest.mark.parametrize("size", [0, 1, 700, NORM_ELEMENTS, NORM_ELEMENTS + 1, 40_000])
def test_squares_are_summed_by_blocks_in_halves(size: int) -> None:
    values, slow = gaussian(size, size), list[float]()
    for at in range(0, size, NORM_ELEMENTS):
        terms = [float(value) ** 2 for value in values[at : at + NORM_ELEMENTS]]
        terms += [0.0] * (NORM_ELEMENTS - len(terms))
        while len(terms) > 1:
            half = len(terms) // 2
            terms = [one + two for one, two in zip(terms[:half], terms[half:], strict=True)]
        slow += terms
    assert block_squares(values).tolist() == slow


def test_out_must_not_be_a_contribution() -> None:
    first, second = f32(1, 2), f32(3, 4)
    with pytest.raises(AssertionError):
        weighted_mean([first, second], [1, 1], second)


CLIPS = st.just(0.0) | st.floats(2.0**-20, 2.0**20)


@given(vectors(3), st.floats(0.015625, 2), st.floats(0, 0.984375), CLIPS)
def test_the_step_is_the_slow_one_bit_by_bit(
    arrays: list[F32], lr: float, beta: float, clip: float
) -> None:
    params, grad, momentum = arrays
    lr_1, beta_1, clip_1 = np.float32(lr), np.float32(beta), np.float32(clip or math.inf)
    slow_params, slow_momentum = params.copy(), momentum.copy()
    for i in range(params.size):
        slow_momentum[i] = slow_momentum[i] * beta_1 + grad[i]
        slow_momentum[i] = max(min(slow_momentum[i], clip_1), -clip_1)
        slow_params[i] = slow_params[i] - (slow_momentum[i] * beta_1 + grad[i]) * lr_1
    before = grad.tobytes()
    ahead, moved = np.full((2, params.size), np.nan, np.float32)
    nesterov_step(params, grad, momentum, ahead, moved, lr=lr, beta=beta, clip=clip)
    assert ahead.tobytes() == slow_params.tobytes()
    assert moved.tobytes() == slow_momentum.tobytes()
    # That changed nothing else.
    nesterov_step(params, grad, momentum, params, momentum, lr=lr, beta=beta, clip=clip)
    assert params.tobytes() == slow_params.tobytes()
    assert momentum.tobytes() == slow_momentum.tobytes()
    assert grad.tobytes() == before


@given(vectors(3), st.floats(0.015625, 2), st.floats(0, 0.984375))
def test_the_pull_is_the_slow_one_bit_by_bit(arrays: list[F32], lr: float, beta: float) -> None:
    params, target, momentum = arrays
    lr_1, beta_1 = np.float32(lr), np.float32(beta)
    slow_params, slow_momentum = params.copy(), momentum.copy()
    for i in range(params.size):
        slow_momentum[i] = slow_momentum[i] * beta_1 + (target[i] - params[i]) * lr_1
        slow_params[i] = slow_params[i] + slow_momentum[i]
    before = target.tobytes()
    ahead, moved = np.full((2, params.size), np.nan, np.float32)
    heavy_ball_step(params, target, momentum, ahead, moved, lr=lr, beta=beta)
    assert ahead.tobytes() == slow_params.tobytes()
    assert moved.tobytes() == slow_momentum.tobytes()
    heavy_ball_step(params, target, momentum, params, momentum, lr=lr, beta=beta)
    assert params.tobytes() == slow_params.tobytes()
    assert momentum.tobytes() == slow_momentum.tobytes()
    assert target.tobytes() == before


@given(vectors(2), st.floats(0.015625, 2))
def test_without_momentum_it_is_a_plain_descent(arrays: list[F32], lr: float) -> None:
    params, grad = arrays
    slow = np.array([p - g * np.float32(lr) for p, g in zip(params, grad, strict=True)], np.float32)
    ahead = np.full_like(params, np.nan)
    descent(params, grad, ahead, lr=lr)
    assert ahead.tobytes() == slow.tobytes()
    descent(params, grad, params, lr=lr)
    assert params.tobytes() == slow.tobytes()


def test_the_step_is_torch_sgd() -> None:
    import torch

    params, momentum = gaussian(0, 1000), np.zeros(1000, np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(params.copy()))
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for step in range(20):
        grad = gaussian(step + 1, 1000) * np.float32(0.01)
        theirs.grad = torch.from_numpy(grad.copy())
        sgd.step()
        nesterov_step(params, grad, momentum, params, momentum, lr=0.7, beta=0.9)
    np.testing.assert_allclose(params, theirs.detach().numpy(), rtol=0, atol=1e-6)
    buffer = sgd.state[theirs]["momentum_buffer"].numpy()
    np.testing.assert_allclose(momentum, buffer, rtol=0, atol=1e-6)


def test_pieces_give_the_bits_of_the_whole() -> None:
    size, cut = 2 * BLOCK_ELEMENTS + 77, BLOCK_ELEMENTS - 5
    contributions = [gaussian(seed, size) for seed in range(3)]
    whole, pieces = np.empty(size, np.float32), np.empty(size, np.float32)
    weighted_mean(contributions, [5, 3, 4], whole)
    for piece in (slice(0, cut), slice(cut, size)):
        weighted_mean([each[piece] for each in contributions], [5, 3, 4], pieces[piece])
    assert pieces.tobytes() == whole.tobytes()
    states: list[str] = []
    for clip, cuts in product((0.0, 0.5), ((0, size), (0, cut, size))):
        params, momentum = gaussian(7, size), gaussian(8, size)
        for start, stop in pairwise(cuts):
            piece = slice(start, stop)
            step = params[piece], whole[piece], momentum[piece], params[piece], momentum[piece]
            nesterov_step(*step, lr=0.7, beta=0.9, clip=clip)
        states.append(state_digest(params, momentum))
    assert states[0] == states[1] != states[2] == states[3]


def test_what_is_no_number_stays_none_through_a_clip() -> None:
    nan, none = f32(math.nan), f32(0)
    params, momentum = np.empty((2, 1), np.float32)
    nesterov_step(none, nan, none, params, momentum, lr=1, beta=0.5, clip=1.0)
    assert np.isnan([params, momentum]).all()


def test_no_array_is_allocated_beyond_one_block(chosen: Loops) -> None:
    size = 1 << 20
    contributions = [np.ones(size, np.float32) for _ in range(3)]
    out, momentum, params, grad = (np.ones(size, np.float32) for _ in range(4))
    tracemalloc.start()
    try:
        weighted_mean(contributions, [1, 2, 3], out)
        nesterov_step(params, grad, momentum, out, momentum, lr=0.7, beta=0.9)
        pseudo_gradient(params, momentum, out)
        rebase(params, momentum, out)
        state_digest(params, momentum)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    block = 4 * BLOCK_ELEMENTS if isinstance(chosen, NumpyLoops) else 0
    assert peak < block + (64 << 10)


def test_signs() -> None:
    outer, local, out = f32(3, 5), f32(1, 9), f32(0, 0)
    pseudo_gradient(outer, local, out)
    assert out.tolist() == [2, -4]  # Outer minus local: a step subtracts it.
    rebase(f32(10, 10), f32(7, 12), out)
    assert out.tolist() == [3, -2]  # New minus old: it is added to the local parameters.
    params = outer.copy()
    pseudo_gradient(outer, local, out)
    momentum = f32(0, 0)
    nesterov_step(params, out, momentum, params, momentum, lr=1, beta=0)
    assert params.tolist() == local.tolist()  # With lr 1 and no momentum: plain averaging.


@pytest.mark.parametrize("size", [0, 1, PIECE_ELEMENTS, 2 * PIECE_ELEMENTS + 3])
def test_the_digest_is_of_the_digests_of_cells(size: int) -> None:
    source = np.random.default_rng(size)
    outer, momentum = source.standard_normal((2, size), np.float32)
    found = b""
    for start in range(0, size, PIECE_ELEMENTS):
        cell = slice(start, start + PIECE_ELEMENTS)
        found += xxhash.xxh3_128_digest(outer[cell].tobytes() + momentum[cell].tobytes())
    assert state_digest(outer, momentum) == xxhash.xxh3_128_hexdigest(found)


def test_the_digest_tells_outer_from_momentum_and_signs_of_zero() -> None:
    outer, momentum = f32(1, -0.0, 1e-45), f32(2, 3, 4)
    assert state_digest(momentum, outer) != state_digest(outer, momentum)
    assert state_digest(f32(1, 0.0, 1e-45), momentum) != state_digest(outer, momentum)


def test_the_next_parameters_and_momentum_must_be_apart() -> None:
    params, grad, momentum = f32(1, 2), f32(3, 4), f32(5, 6)
    with pytest.raises(AssertionError):
        nesterov_step(params, grad, momentum, params, params, lr=1, beta=0)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(4),
        np.zeros(3, np.float32),
        np.zeros((2, 2), np.float32),
        f32(*range(8))[::2],
        np.frombuffer(bytes(17), np.float32, offset=1),
    ],
)
def test_another_type_shape_or_stride_is_a_mistake(wrong: F32) -> None:
    with pytest.raises(AssertionError):
        pseudo_gradient(f32(1, 2, 3, 4), wrong, f32(1, 2, 3, 4))
