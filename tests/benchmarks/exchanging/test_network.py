"""Which network the conditions ask for."""

import pytest

from benchmarks.exchanging.network import Conditions
from protocols.types.errors import ConfigError


def test_without_conditions_the_own_loopback_would_do() -> None:
    assert Conditions().plain
    assert not Conditions(congestion="reno").plain
    assert not Conditions(rate_bps=1e9).plain
    assert not Conditions(rtt_s=0.1).plain


def test_a_line_is_shared_until_there_is_a_way_to_go() -> None:
    assert Conditions(rate_bps=1e9).shared_rate_bps == 1e9
    assert Conditions(rate_bps=1e9, rtt_s=0.1).shared_rate_bps is None
    assert Conditions(loss=0.01).routed


def test_congestion_control_is_one_that_the_kernel_has() -> None:
    Conditions(congestion="reno").check()  # Always there.
    with pytest.raises(ConfigError, match=r"--congestion fast: this kernel has .*reno"):
        Conditions(congestion="fast").check()
