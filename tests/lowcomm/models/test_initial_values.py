"""The values of a part are those of the whole, whatever part it is."""

import pytest
import torch

from lowcomm.config.schema import ModelConfig
from lowcomm.models.initial_values import SeededValues
from lowcomm.models.llama import build_model

CONFIG = ModelConfig(hidden_size=12, layers=2, heads=2, kv_heads=1, intermediate_size=23)
SHAPES = {name: each.shape for name, each in build_model(CONFIG, seed=0).named_parameters()}


@pytest.mark.parametrize("half", [0, 1])
def test_parts_are_of_the_same_stream(half: int) -> None:
    wholes = dict(build_model(CONFIG, seed=3).named_parameters())
    values = SeededValues(CONFIG, SHAPES, seed=3)
    for name, shape in SHAPES.items():
        cut = -(-shape[0] // 2)
        rows = slice(half * cut, min((half + 1) * cut, shape[0]))
        assert torch.equal(values.part(name, [rows]), wholes[name][rows])


def test_the_order_is_that_of_the_model() -> None:
    values = SeededValues(CONFIG, SHAPES, seed=3)
    with pytest.raises(AssertionError, match="one serial stream"):
        values.part(list(SHAPES)[1], ())
