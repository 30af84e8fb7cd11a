"""Subsets: one in sixteen, the same for all who have the key, and sums stay sums."""

import numpy as np
import pytest

from lowcomm.codecs.random_subset import RandomSubset
from lowcomm.codecs.strided_subset import StridedSubset
from lowcomm.codecs.subsets import RATE, SubsetCodec
from tests.lowcomm.codecs.samples import encoded, there_and_back

KINDS: tuple[type[SubsetCodec], ...] = (RandomSubset, StridedSubset)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_of_payloads_is_the_payload_of_the_sum(kind: type[SubsetCodec]) -> None:
    one, other = np.random.default_rng(0).standard_normal((2, 10_001), np.float32)
    left, right = (np.frombuffer(encoded(kind(9), values), "<f4") for values in (one, other))
    assert (left + right).tobytes() == encoded(kind(9), one + other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 4095, 4096])
def test_one_in_sixteen_is_sent_as_it_is(kind: type[SubsetCodec], size: int) -> None:
    values = np.arange(1, size + 1).astype(np.float32)
    back = there_and_back(kind(5), values)
    assert np.count_nonzero(back) == -(-size // RATE)
    assert (back[back != 0] == values[back != 0]).all()


def test_sixteen_keys_in_turn_send_everything_once() -> None:
    values = np.arange(1, 33).astype(np.float32)
    total = np.zeros_like(values)
    for key in range(100, 116):
        total += there_and_back(StridedSubset(key), values)
    assert (total == values).all()


def test_random_keys_send_every_value_equally_often() -> None:
    counts = np.zeros(4096)
    keys = 400
    for key in range(keys):
        counts[RandomSubset(key).places(4096)] += 1
    expected, deviation = keys / RATE, np.sqrt(keys / RATE * (1 - 1 / RATE))
    assert abs(counts - expected).max() < 5.5 * deviation
    assert np.std(counts) == pytest.approx(deviation, rel=0.1)


def test_keys_are_64_bits() -> None:
    low, high = RandomSubset(1).places(4096), RandomSubset(1 + 2**63).places(4096)
    assert low.tolist() != high.tolist()
