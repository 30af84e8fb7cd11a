"""The ranks of a sharded node share the memory of the model and of its optimizer."""

import json

import pytest

from benchmarks import ranks
from protocols.types.errors import ConfigError


def test_a_model_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="--model huge: known are tiny, 10m, 100m"):
        ranks.main(model="huge")


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(300)
def test_each_of_two_ranks_needs_less_than_an_only_one(capsys: pytest.CaptureFixture[str]) -> None:
    ranks.main(model="10m", ranks=2, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["parameters"] > 9e6
    alone, sharded = told["ranks"]
    assert 8 * told["parameters"] < sharded["net"] < 0.8 * alone["net"]
