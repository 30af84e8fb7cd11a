"""FlexDeMo's payloads in the daemon: their places, their mean, and what counts for nothing."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowcomm.codecs.codec import CodecError
from lowcomm.methods import FlexDeMoMethod
from lowcomm.methods.base import Parameter
from lowcomm.numerics.kernels import F32
from lowcomm.replicators.payload_mean import PayloadMean

SHAPES = [(20, 9), (13,)]
ELEMENTS = 20 * 9 + 13


def exchange(**options: Any) -> PayloadMean:
    options.setdefault("chunk", 8)
    parameters = [Parameter(str(number), shape) for number, shape in enumerate(SHAPES)]
    return FlexDeMoMethod(**options).make_exchange(parameters, seed=4)


def written(made: PayloadMean, values_P: F32, step: int = 1) -> tuple[bytes, F32]:
    """(the payload, what it says)."""
    payload, said_P = np.zeros(made.payload_bytes, np.uint8), np.zeros_like(values_P)
    for tensor in made.tensors:
        grid = tensor.grid
        for span in grid.spans(0, grid.groups):
            start = tensor.first_element + span.first * grid.chunk * grid.columns
            here = slice(start, start + span.count * span.rows * grid.columns)
            values = values_P[here].reshape(span.count, span.rows, grid.columns)
            records, said = made.replicator.encode_groups(values, grid, made.turn(step, tensor))
            payload[tensor.place(span, made.replicator)] = records.reshape(-1)
            said_P[here] = said.reshape(-1)
    return payload.tobytes(), said_P


def noise(seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(ELEMENTS).astype(np.float32)


def mean(made: PayloadMean, payloads: Sequence[bytes], step: int = 1) -> F32:
    out_P = np.full(ELEMENTS, np.nan, np.float32)
    made.write_mean(step, payloads, out_P)
    return out_P


def test_tensors_lie_one_behind_the_other() -> None:
    made = exchange(topk=2)
    matrix, vector = made.tensors
    record = 3 + 4
    assert (matrix.first_byte, matrix.group_bytes, matrix.size_bytes) == (0, 2 * record, 6 * record)
    assert (vector.first_element, vector.first_byte) == (180, 6 * record)
    assert made.payload_bytes == made.written_bytes == 6 * record + 2 * record


@pytest.mark.parametrize("replicator", ["demo", "random", "striding", "full"])
def test_the_mean_of_one_is_what_it_said(replicator: str) -> None:
    made = exchange(replicator=replicator)
    payload, said_P = written(made, noise(1))
    assert mean(made, [payload]).tobytes() == said_P.tobytes()


def test_a_coefficient_is_averaged_over_who_sent_it_or_over_all() -> None:
    """Two nodes that say something of different coefficients: nothing is halved, or everything."""
    constant = np.zeros(ELEMENTS, np.float32)
    constant[180:188] = 2.0  # Its spectrum is one coefficient.
    alternating = constant.copy()
    alternating[180:188] = 4 * np.cos(np.pi * (np.arange(8) + 0.5) * 5 / 8)
    for kind, share in (("contributors", 1.0), ("world", 0.5)):
        made = exchange(topk=1, mean=kind, values="fp32")
        payloads = [written(made, values)[0] for values in (constant, alternating)]
        expected = share * (constant + alternating)
        assert np.allclose(mean(made, payloads), expected, atol=1e-6)
        assert np.allclose(mean(made, [payloads[0]] * 2), constant, atol=1e-6)


@pytest.mark.parametrize("replicator", ["random", "striding", "full"])
def test_where_all_say_the_same_places_the_mean_is_over_all(replicator: str) -> None:
    made = exchange(replicator=replicator, values="fp32")
    (one, said_one), (two, said_two) = written(made, noise(1)), written(made, noise(2))
    expected_P = (said_one + said_two) / np.float32(2)
    assert mean(made, [one, two]).tobytes() == expected_P.tobytes()


def test_signs_are_averaged_as_signs() -> None:
    made = exchange(replicator="full", values="sign", sign="before")
    payloads = [written(made, values)[0] for values in (noise(1), noise(2), noise(3))]
    total = np.sign(noise(1)) + np.sign(noise(2)) + np.sign(noise(3))
    assert np.array_equal(mean(made, payloads), total / np.float32(3))


def test_the_order_of_sums_is_that_of_the_payloads() -> None:
    made = exchange(replicator="full", values="fp32")
    terms = [noise(seed) for seed in range(3)]
    payloads = [written(made, values)[0] for values in terms]
    expected = ((terms[0] + terms[1]) + terms[2]) / np.float32(3)
    assert mean(made, payloads).tobytes() == expected.tobytes()


def test_a_bad_payload_counts_for_nothing() -> None:
    made = exchange(values="fp32")
    good, _ = written(made, noise(1))
    infinite = good[:-4] + struct.pack("<f", np.inf)
    first, second = good[0:3], good[3:6]
    unordered = second + first + good[6:]
    short = good[:-1]
    for bad, why in ((short, "bytes, expected"), (infinite, "not finite"), (unordered, "order")):
        with pytest.raises(CodecError, match=why):
            made.check(1, bad)
        assert mean(made, [bad, good]).tobytes() == mean(made, [good]).tobytes()
        assert not mean(made, [bad]).any()
        out_P = np.empty(ELEMENTS, np.float32)
        assert list(made.write_mean(1, [bad, good, bad, good], out_P)) == [1, 3]
        assert not made.write_mean(1, [bad], out_P)


def test_finite_values_whose_sum_is_not_move_nothing() -> None:
    made = exchange(replicator="full", values="fp32")
    large, _ = written(made, np.full(ELEMENTS, 3e38, np.float32))
    assert not mean(made, [large, large]).any()


def test_another_step_has_other_places() -> None:
    made = exchange(replicator="random", values="fp32")
    payload, said_P = written(made, noise(1), step=1)
    assert mean(made, [payload], step=2).tobytes() != said_P.tobytes()
