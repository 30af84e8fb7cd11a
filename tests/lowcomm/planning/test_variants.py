"""Variants have the settings of the comparison, and their tables are those of a run."""

import tomllib
from typing import Any

import pytest

from lowcomm.config.schema import FileConfig
from lowcomm.methods import DiLoCoMethod, StreamingDiLoCoMethod
from lowcomm.planning.loss_costs import LOSS_COSTS
from lowcomm.planning.model_shapes import stated_parameters
from lowcomm.planning.variants import Variant, compared_variants, settings_of, toml_of
from lowcomm.validation import validate

VARIANTS = compared_variants(stated_parameters(100_000, layers=4))


def test_each_method_of_the_comparison_is_one() -> None:
    assert [each.name for each in VARIANTS] == list(LOSS_COSTS)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_its_lines_of_a_configuration_give_the_method_again(variant: Variant) -> None:
    raw = tomllib.loads(toml_of(variant.method, nodes=3))
    config: Any = validate(FileConfig, raw, where="the plan")
    assert config.run.method == variant.method
    assert config.run.peers_min == 3


def test_settings_are_those_that_differ() -> None:
    method = StreamingDiLoCoMethod(inner_steps=20, overlap_steps=3)
    told = {"name": "streaming_diloco", "inner_steps": 20, "overlap_steps": 3}
    assert dict(settings_of(method)) == told


def test_a_small_model_has_fewer_fragments() -> None:
    few = compared_variants(stated_parameters(1000, layers=1))
    (streaming,) = [each.method for each in few if each.name == "streaming_diloco fp4"]
    assert isinstance(streaming, StreamingDiLoCoMethod)
    assert streaming.fragments == 1


def test_longer_rounds_were_not_compared() -> None:
    made = Variant(name="diloco", method=DiLoCoMethod(inner_steps=30)).longer(4)
    assert isinstance(made.method, DiLoCoMethod)
    assert (made.method.inner_steps, made.cost) == (120, None)
