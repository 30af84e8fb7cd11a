"""What the timing rules refuse."""

from dataclasses import replace

import pytest

from protocols.types.errors import ConfigError
from protocols.types.rules import ProtocolConfig

TIMES = [name for name in ProtocolConfig.__dataclass_fields__ if name != "check_owners"]


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_every_time_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(ProtocolConfig(), **{name: value})


@pytest.mark.parametrize("name", ["silence_timeout_s", "election_timeout_s"])
def test_silence_is_longer_than_three_heartbeats(name: str) -> None:
    """One lost heartbeat must not end a connection or a leader's term."""
    enough = {"heartbeat_interval_s": 2.0, "silence_timeout_s": 6.0, "election_timeout_s": 6.0}
    with pytest.raises(ConfigError, match=f"{name} must be at least 3 heartbeats"):
        replace(ProtocolConfig(), **{**enough, name: 5.9})
    assert getattr(replace(ProtocolConfig(), **enough), name) == 6.0


def test_a_timeout_follows_the_longest_pause_between_its_bounds() -> None:
    rules = replace(ProtocolConfig(), heartbeat_interval_s=0.1, silence_timeout_min_s=1.0)
    assert rules.silence_timeout(0.1) == 1.0
    assert rules.silence_timeout(0.5) == 1.5
    assert rules.silence_timeout(60.0) == rules.silence_timeout_s
    assert rules.silence_timeout(float("inf")) == rules.silence_timeout_s
    assert rules.election_timeout(0.1) == rules.election_timeout_min_s
    assert rules.election_timeout(0.4) == pytest.approx(1.2)
    assert rules.election_timeout(60.0) == rules.election_timeout_s


def test_no_timeout_is_shorter_than_three_heartbeats_nor_longer_than_its_maximum() -> None:
    slow = replace(ProtocolConfig(), heartbeat_interval_s=0.6)
    assert slow.election_timeout(0.0) == pytest.approx(1.8)
    impatient = replace(ProtocolConfig(), silence_timeout_s=0.7)
    assert impatient.silence_timeout(0.0) == 0.7
