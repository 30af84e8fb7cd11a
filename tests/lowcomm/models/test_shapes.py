"""What is known of the built-in model without making it."""

from dataclasses import replace

import pytest

from lowcomm.config.schema import ModelConfig
from lowcomm.models.llama import build_model
from lowcomm.models.shapes import llama_shapes

MODEL = ModelConfig(hidden_size=32, layers=2, heads=4, kv_heads=2, intermediate_size=48)


@pytest.mark.parametrize("config", [MODEL, replace(MODEL, tied_embeddings=True, kv_heads=4)])
def test_names_and_shapes_are_the_models_own(config: ModelConfig) -> None:
    model = build_model(config, seed=0)
    assert llama_shapes(config) == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }
