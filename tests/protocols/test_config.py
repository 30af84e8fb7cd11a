"""What the timing rules refuse."""

import pytest

from protocols.config import ProtocolConfig
from protocols.errors import ConfigError


@pytest.mark.parametrize("name", [*ProtocolConfig.__dataclass_fields__])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_every_time_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        ProtocolConfig(**{name: value})


def test_silence_is_longer_than_three_heartbeats() -> None:
    with pytest.raises(ConfigError, match="at least 3 heartbeats"):
        ProtocolConfig(heartbeat_interval_s=2.0, silence_timeout_s=5.9)
    assert ProtocolConfig(heartbeat_interval_s=2.0, silence_timeout_s=6.0).silence_timeout_s == 6.0
