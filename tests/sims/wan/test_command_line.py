"""What `python -m sims.wan` refuses before it starts anything."""

from typing import Any

import pytest

from protocols.types.errors import ConfigError
from sims.wan.command_line import wan


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "COMMAND"),
        ({"command": ["true"], "means": "netem"}, "--means"),
        ({"command": ["true"], "rate": "fast"}, "--rate"),
        ({"command": ["true"], "delay": "50"}, "--delay"),
        ({"command": ["true"], "jitter": "1%"}, "--jitter"),
        ({"command": ["true"], "delay": "5ms", "jitter": "6ms"}, "jitter"),
        ({"command": ["true"], "loss": "1ms"}, "--loss"),
        ({"command": ["true"], "queue": "0"}, "queue"),
        ({"command": ["true"], "measure": True}, "--check"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        wan(**arguments)
