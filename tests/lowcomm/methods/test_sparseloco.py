"""SparseLoCo: what it sends, what it makes of that, and what it refuses."""

from typing import Any

import numpy as np
import pytest

from lowcomm.config.schema import load_config
from lowcomm.methods import SparseLoCoMethod
from lowcomm.numerics.operations import F32, weighted_mean
from protocols.types.errors import ConfigError
from protocols.types.ids import Contributor, PeerId
from tests.lowcomm.replicas import gaussian

TERMS = [Contributor(PeerId(f"p{i}.0"), count, 1, "m") for i, count in enumerate((30, 10, 20))]


def sparse(seed: int) -> F32:
    """One in ten."""
    values = gaussian(seed, 1000)
    values[np.random.default_rng(seed).random(1000) > 0.1] = 0
    return values


def made(method: SparseLoCoMethod, contributions: list[F32]) -> F32:
    out, room = np.full((2, 1000), np.nan, np.float32)
    method.combine(contributions, TERMS, out, lambda _: room)
    return out


def test_it_is_the_paper_by_default() -> None:
    method = SparseLoCoMethod()
    assert (method.inner_steps, method.outer_lr, method.feedback) == (30, 1.0, 0.95)
    assert method.codec.name == "topk2bit"
    assert method.mean_codec is None, "by gather"
    assert method.state_arrays == ("outer",), "no momentum"


def test_contributions_are_as_long_as_the_formula_says_and_a_percent() -> None:
    elements = 1 << 22
    formula = elements * (64 / 4096) * 14 / 8
    assert 1 < SparseLoCoMethod().codec.encoded_bytes(elements) / formula < 1.01


def test_the_step_is_the_mean() -> None:
    outer, mean, none = gaussian(0, 9), gaussian(1, 9), np.empty(0, np.float32)
    stepped = np.empty_like(outer)
    SparseLoCoMethod().outer_step(outer, none, mean, stepped, none)
    assert stepped.tobytes() == (outer - mean).tobytes()


def test_what_a_node_did_not_send_counts_as_zero() -> None:
    contributions, wanted = [sparse(seed) for seed in range(3)], np.empty(1000, np.float32)
    weighted_mean(contributions, [30, 10, 20], wanted)
    assert made(SparseLoCoMethod(), contributions).tobytes() == wanted.tobytes()


def test_or_only_those_that_sent_an_element_count_for_it() -> None:
    contributions = [sparse(seed) for seed in range(3)]
    found = made(SparseLoCoMethod(sparse_mean="contributors"), contributions)
    weights = [np.float32(each.tokens / 30) for each in TERMS]
    for place in range(1000):
        terms = [values[place] * w for values, w in zip(contributions, weights, strict=True)]
        sent = np.float32(0)
        for values, weight in zip(contributions, weights, strict=True):
            sent = sent + weight if values[place] else sent
        total = terms[0] + terms[1] + terms[2]
        assert found[place] == (total / sent if sent else total)
    assert (found != made(SparseLoCoMethod(), contributions)).any()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            {"sparse_mean": "contributors", "aggregate": "clipped_mean"},
            "a mean of its own, but run.method.aggregate is .*: leave out one of them",
        ),
        ({"aggregate": "trimmed_mean"}, 'would be trimmed: set "clipped_mean"'),
        ({"result_codec": "fp32"}, 'not sparse any more: leave it out, or set "gather"'),
        ({"outer_lr": 0.0}, "run.method.outer_lr must be positive"),
    ],
)
def test_what_does_not_go_together_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SparseLoCoMethod(**said)


def test_it_is_chosen_by_its_name() -> None:
    config = load_config(None, ["run.method.name=sparseloco", "run.method.sparse_mean=world"])
    assert config.run is not None
    assert config.run.method == SparseLoCoMethod()
