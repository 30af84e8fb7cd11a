"""Others are asked only for what they can do."""

import pytest

from benchmarks.exchanging.others import others
from benchmarks.exchanging.systems import prepared
from protocols.types.errors import ConfigError


def test_gloo_sends_fp32_whatever_is_asked() -> None:
    assert others()["gloo"].codec("int8") == "fp32"


def test_what_is_no_comparison_is_refused_before_it_is_installed() -> None:
    torchft, hivemind = others()["torchft"], others()["hivemind"]
    assert torchft.codec("fp32") == "fp32"
    assert hivemind.codec("int8") == "int8"
    with pytest.raises(ConfigError, match="hivemind: no int4"):
        hivemind.codec("int4")
    told: list[str] = []
    assert "fp32 without a warning" in prepared(torchft, codec="int8", tell=told.append).missing
    assert told == []
