"""FlexDeMo's table: what its options mean for payloads and state, and what is refused."""

import math
from typing import Any

import pytest

from lowcomm.config.schema import load_config
from lowcomm.methods import FlexDeMoMethod
from lowcomm.methods.base import Parameter
from protocols.types.errors import ConfigError

MATRIX = [Parameter("a", (640, 1024)), Parameter("b", (256, 64))]
ELEMENTS = sum(math.prod(each.shape) for each in MATRIX)


def payload_bytes(**options: Any) -> int:
    return FlexDeMoMethod(**options).make_exchange(MATRIX, seed=0).payload_bytes


def test_payloads_weigh_what_the_literature_counts() -> None:
    """12 bits for a place; 16 or 1 for a value, where DeMo as published takes 96 for both."""
    assert payload_bytes() == ELEMENTS * 32 / 4096 * 3.5
    assert payload_bytes(values="sign", topk=8) == ELEMENTS * 8 / 4096 * 1.625
    assert payload_bytes(replicator="random", values="fp32") == ELEMENTS / 16 * 4
    assert payload_bytes(replicator="striding", one_in=32) == ELEMENTS / 32 * 2
    assert payload_bytes(replicator="full", values="fp32") == ELEMENTS * 4


def test_the_state_is_the_parameters_and_what_adamw_adds() -> None:
    assert FlexDeMoMethod().state_arrays == ("parameters",)
    assert FlexDeMoMethod(step="adamw").state_arrays == ("parameters", "exp_avg", "exp_avg_sq")


@pytest.mark.parametrize(
    ("replicator", "sign", "has_rate"),
    [("demo", "none", True), ("demo", "after", False), ("full", "none", False)],
)
def test_the_learning_rate_is_in_the_momentum_or_in_the_step(
    replicator: Any, sign: Any, has_rate: bool
) -> None:
    assert FlexDeMoMethod(replicator=replicator, sign=sign).update_has_rate == has_rate


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"chunk": 48}, r"chunk must be one of 8, 16, 32, 64, got 48: the nearest is 32"),
        ({"chunk": 100}, r"the nearest is 64"),
        ({"topk": 0}, r"topk must be positive"),
        ({"chunk": 8, "topk": 65}, r"a tile of 8 x 8 has 64 coefficients: set at most that"),
        ({"one_in": 0}, r"one_in must be positive"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"sign": "before"}, r'so that a value is one bit.*"bf16": set values = "sign"'),
        ({"sign": "none", "values": "sign"}, r'set sign = "before", or values = "bf16"'),
        ({"snapshot_every_steps": 40}, r"must be a multiple"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_what_would(options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        FlexDeMoMethod(**options)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ('replicator="slicing"', "'demo', 'random', 'striding' or 'full'"),
        ('values="fp16"', "'bf16', 'fp32' or 'sign'"),
        (
            'contribution_codec="bf16"',
            "unknown key run.method.contribution_codec; known here: chunk",
        ),
    ],
)
def test_an_unknown_option_names_the_known_ones(typed: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["run.method.name=flexdemo", f"run.method.{typed}"])
    assert why in str(caught.value)
