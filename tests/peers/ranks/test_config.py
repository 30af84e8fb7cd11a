"""What a node may choose about its ranks."""

from typing import Any

import pytest

from peers.ranks.attempt import HangLimits
from peers.ranks.config import RanksConfig
from protocols.types.errors import ConfigError


@pytest.mark.parametrize(
    "config",
    [
        {"ranks": 0},
        {"ranks": 1, "port_range": (2, 1)},
        {"ranks": 1, "port_range": (0, 1)},
        {"ranks": 1, "port_range": (1, 65536)},
        {"ranks": 1, "hang_limits": HangLimits(0)},
        {"ranks": 1, "hang_limits": HangLimits(1, attach_timeout_s=0)},
        {"ranks": 1, "hang_limits": HangLimits(1, first_step_timeout_s=0)},
        {"ranks": 1, "restarts_max": -1},
    ],
)
def test_what_cannot_work_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RanksConfig(**config)
