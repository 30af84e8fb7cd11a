"""Parameters without a model have the sizes of the model."""

import pytest

from lowcomm.config.schema import ModelConfig
from lowcomm.methods import DiLoCoMethod, Parameter, StreamingDiLoCoMethod
from lowcomm.models.llama import build_model
from lowcomm.outer_state.fragment_layout import fragment_elements
from lowcomm.planning.model_shapes import (
    configured_parameters,
    count_blocks,
    layout_of,
    stated_parameters,
)
from protocols.types.errors import ConfigError


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(),
        ModelConfig(hidden_size=32, heads=4, kv_heads=2, layers=2, tied_embeddings=True),
    ],
)
def test_the_built_in_model_has_these_parameters(config: ModelConfig) -> None:
    model = build_model(config, seed=0)
    shapes = [Parameter(name, tuple(each.shape)) for name, each in model.named_parameters()]
    assert configured_parameters(config) == shapes
    assert count_blocks(shapes) == config.layers


@pytest.mark.parametrize(("count", "layers"), [(1_300_000_007, 24), (857_216, 4), (48, 1)])
def test_a_stated_number_of_parameters_is_kept(count: int, layers: int) -> None:
    found = stated_parameters(count, layers=layers)
    assert sum(each.elements for each in found) == count
    assert all(each.elements > 0 for each in found)
    assert count_blocks(found) == layers


def test_fragments_are_those_of_the_method() -> None:
    found = stated_parameters(12_000, layers=4)
    assert fragment_elements(layout_of(found, DiLoCoMethod())) == (12_000,)
    parts = fragment_elements(layout_of(found, StreamingDiLoCoMethod(fragments=2)))
    assert parts == (6_000, 6_000)
    with pytest.raises(ConfigError, match="fragments"):
        layout_of(found, StreamingDiLoCoMethod(fragments=6))


@pytest.mark.parametrize(("count", "layers"), [(47, 1), (100, 3), (1000, 0)])
def test_too_few_parameters_are_refused(count: int, layers: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} parameters in {layers} layers"):
        stated_parameters(count, layers=layers)
