"""Which low-communication method a run uses. A new one is one file and one line here.

Must NOT import torch: the daemon steps.
"""

from collections.abc import Callable, Mapping

from lowcomm.config import MethodConfig
from lowcomm.methods.base import Method
from lowcomm.methods.diloco import DiLoCo
from protocols.errors import ConfigError

_METHODS: Mapping[str, Callable[[MethodConfig], Method]] = {"diloco": DiLoCo}


def method(config: MethodConfig) -> Method:
    """The method that `config.name` names; raises ConfigError naming those that exist."""
    if config.name not in _METHODS:
        raise ConfigError(f"unknown method {config.name!r}; known: {', '.join(sorted(_METHODS))}")
    return _METHODS[config.name](config)
