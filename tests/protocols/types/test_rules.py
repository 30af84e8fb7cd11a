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
