"""Nodes in lockstep: the bits of plain operations, and of what real daemons keep."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from lowcomm.methods import DecoupledDiLoCoMethod, DiLoCoMethod, RoundMethod, SparseLoCoMethod
from lowcomm.numerics import state_digests
from lowcomm.numerics.kernels import NORM_ELEMENTS
from lowcomm.numerics.operations import F32, WeightsError
from peers.exchange.pieces import PIECE_ELEMENTS
from protocols.types.ids import TensorSpec
from sims.lockstep.exchange import LocalContribution, Lockstep

SIZE = PIECE_ELEMENTS + 4097
LAYOUT = (TensorSpec(0, "w", (SIZE,), 0),)


def locked(nodes: int, **said: Any) -> Lockstep:
    return Lockstep(DiLoCoMethod(**said), LAYOUT, nodes=nodes)


def noise(seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(SIZE, np.float32)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rounds_have_the_bits_of_one_operation_after_the_other(momentum: float) -> None:
    together, lr, beta = locked(3, outer_momentum=momentum), np.float32(0.7), np.float32(momentum)
    outer_P, momentum_P = noise(0), np.zeros(SIZE, np.float32)
    together.begin(0, outer_P)
    locals_P = [outer_P.copy() for _ in range(3)]
    for round_ in range(1, 5):
        for node in range(3):
            locals_P[node] += np.float32(0.01) * noise(10 * round_ + node)
        tokens = [100, 100 + round_, 50]
        weights = [np.float32(count / max(tokens)) for count in tokens]
        sum_P = (outer_P - locals_P[0]) * weights[0]
        for local_P, weight in zip(locals_P[1:], weights[1:], strict=True):
            sum_P = sum_P + (outer_P - local_P) * weight
        mean_P: F32 = np.multiply(sum_P, 1.0 / sum(map(float, weights)), dtype=np.float32)
        if momentum:
            momentum_P *= beta
            momentum_P += mean_P
            outer_P -= (momentum_P * beta + mean_P) * lr
        else:
            outer_P -= mean_P * lr
        given = {
            node: LocalContribution(local_P, count)
            for node, (local_P, count) in enumerate(zip(locals_P, tokens, strict=True))
        }
        taken, digest = together.exchange_round(0, given)
        kept_P = momentum_P if momentum else np.empty(0, np.float32)
        assert digest == state_digests.state_digest(outer_P, kept_P)
        assert all(one.counted for one in taken)
        assert {one.values_P.tobytes() for one in taken} == {outer_P.tobytes()}
        assert together.arrays(0)[0].tobytes() == outer_P.tobytes()
        locals_P = [one.values_P.copy() for one in taken]
        del taken
    assert together.payload_bytes == 4 * 3 * 4 * SIZE
    together.close()


def test_who_is_not_counted_keeps_its_work_and_contributes_it_later() -> None:
    together, first_P = locked(2, outer_lr=1.0, outer_momentum=0.0), np.zeros(SIZE, np.float32)
    together.begin(0, first_P)
    fast_P, slow_P = first_P + np.float32(1), first_P + np.float32(4)
    taken, _ = together.exchange_round(0, {0: LocalContribution(fast_P, 10)})
    assert [one.counted for one in taken] == [True, False]
    assert (taken[0].values_P == 1).all()
    slow_P += taken[1].values_P  # Moved along with the others, and what it learned is still there.
    assert (slow_P == 5).all()
    taken, _ = together.exchange_round(
        0, {0: LocalContribution(fast_P, 10), 1: LocalContribution(slow_P, 10)}
    )
    assert (taken[0].values_P == 3).all(), "the mean of nothing and of 4, from 1 on"
    assert taken[0].values_P.tobytes() == taken[1].values_P.tobytes()
    del taken
    together.close()


@pytest.mark.parametrize("codec", ["int8", "fp4", "topk"])
def test_a_codec_loses_what_it_says_and_all_nodes_lose_the_same(codec: str) -> None:
    together = locked(3, contribution_codec=codec)
    together.begin(0, noise(0))
    given = {node: LocalContribution(noise(0) - noise(node + 1), 10) for node in range(3)}
    taken, _ = together.exchange_round(0, given)
    assert len({one.values_P.tobytes() for one in taken}) == 1
    assert together.payload_bytes < 3 * 1.1 * SIZE
    del taken
    together.close()


def test_a_round_without_tokens_has_no_mean() -> None:
    together = locked(2)
    together.begin(0, noise(0))
    with pytest.raises(WeightsError, match="cannot be weights of a mean"):
        together.exchange_round(
            0, {0: LocalContribution(noise(1), 0), 1: LocalContribution(noise(2), 0)}
        )
    together.close()


FEATURES, ANSWERS, NODES, ROWS = 96, 130, 5, 4000
WEIGHTS = FEATURES * ANSWERS
"""Three blocks of 4096, each with a norm of its own, and a piece of a fourth."""
WRONG = 3
"""Which node's contributions are not what it learned."""
EVERYTHING, ONE_BLOCK = slice(None), slice(NORM_ELEMENTS, 2 * NORM_ELEMENTS)


@cache
def regression(seed: int) -> tuple[F32, F32]:
    """Inputs, one a row, and noisy answers, each by a linear rule of a few of the inputs."""
    drawn = np.random.default_rng(77)
    rule = drawn.standard_normal((FEATURES, ANSWERS), np.float32)
    rule *= drawn.random((FEATURES, ANSWERS)) < 1 / 32
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((ROWS, FEATURES), np.float32)
    return inputs, inputs @ rule + random.standard_normal((ROWS, ANSWERS), np.float32)


@cache
def moments(seed: int) -> tuple[F32, F32]:
    """All that a gradient needs of them."""
    inputs, answers = regression(seed)
    return inputs.T @ inputs / np.float32(ROWS), inputs.T @ answers / np.float32(ROWS)


def loss_after(
    method: RoundMethod, *, factor: float = 1.0, where: slice = EVERYTHING, rounds: int = 60
) -> float:
    """The held-out loss when one of five contributes so many times what it learned there."""
    together = Lockstep(method, (TensorSpec(0, "w", (WEIGHTS,), 0),), nodes=NODES)
    theta_P = np.zeros(WEIGHTS, np.float32)
    together.begin(0, theta_P)
    for _ in range(rounds):
        given: dict[int, LocalContribution] = {}
        for node in range(NODES):
            squares, products = moments(node)
            local_P = theta_P.copy()
            local = local_P.reshape(FEATURES, ANSWERS)
            for _ in range(5):
                local -= np.float32(0.05) * (squares @ local - products)
            if node == WRONG:
                local_P[where] -= theta_P[where]
                local_P[where] *= np.float32(factor)
                local_P[where] += theta_P[where]
            given[node] = LocalContribution(local_P, 100)
        together.exchange_round(0, given)
        theta_P = together.arrays(0)[0]
    together.close()
    inputs, answers = regression(1000)
    errors = inputs.astype(np.float64) @ theta_P.reshape(FEATURES, ANSWERS) - answers
    return float(np.mean(np.square(errors)))


ROBUST: dict[str, RoundMethod] = {
    "trimmed": DiLoCoMethod(aggregate="trimmed_mean"),
    "clipped": DiLoCoMethod(aggregate="clipped_mean"),
    "centred": DiLoCoMethod(aggregate="centred_clipping", result_codec="gather"),
    "sparse": SparseLoCoMethod(aggregate="clipped_mean"),
}


@cache
def clean_loss(name: str) -> float:
    return loss_after(ROBUST[name])


@pytest.mark.parametrize(
    ("factor", "where"),
    [(-1.0, EVERYTHING), (-1000.0, EVERYTHING), (1000.0, EVERYTHING), (-1000.0, ONE_BLOCK)],
    ids=["sign", "both", "size", "block"],
)
@pytest.mark.parametrize("name", ROBUST)
def test_one_of_five_that_is_wrong_costs_next_to_nothing(
    name: str, factor: float, where: slice
) -> None:
    """Its sign turned, a thousand times too much, or both; or in one block alone."""
    assert clean_loss(name) < 1.01, "the noise is 1"
    assert loss_after(ROBUST[name], factor=factor, where=where) < 1.05 * clean_loss(name)


PLAIN = (DiLoCoMethod(), DecoupledDiLoCoMethod(fragments=1, contribution_codec="fp32"))


@pytest.mark.parametrize("factor", [-1000.0, 1000.0])
@pytest.mark.parametrize("method", PLAIN, ids=lambda method: method.name)
def test_a_plain_mean_diverges_with_one_of_five_a_thousand_times_too_large(
    method: RoundMethod, factor: float
) -> None:
    """As does the mean of directions, which is as long as the mean of the lengths."""
    assert loss_after(method, factor=factor, rounds=8) > 1e6 * loss_after(method)


@pytest.mark.parametrize("method", [DiLoCoMethod(), ROBUST["clipped"]], ids=["mean", "clipped"])
def test_a_turned_sign_slows_a_mean_of_lengths_and_does_no_more(method: RoundMethod) -> None:
    """Three fifths of the pull are left, and lead to about the same place. It is no longer than it
    should be, so nothing is clipped."""
    assert loss_after(method, factor=-1.0, rounds=6) > 1.2 * loss_after(method, rounds=6)
    assert loss_after(method, factor=-1.0) < 1.05 * loss_after(method)


@pytest.mark.parametrize(
    "method", [ROBUST["trimmed"], ROBUST["centred"], PLAIN[1]], ids=["trimmed", "centred", "turned"]
)
def test_a_turned_sign_does_not_slow_others(method: RoundMethod) -> None:
    """What goes by direction has the mean length wherever most directions agree."""
    assert loss_after(method, factor=-1.0, rounds=6) < 1.05 * loss_after(method, rounds=6)
