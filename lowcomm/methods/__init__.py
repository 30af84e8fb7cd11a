"""Which low-communication method a run uses. A new one is one file and one line here.

Must NOT import torch: the daemon steps.
"""

from collections.abc import Callable, Mapping

from lowcomm.config import MethodConfig
from lowcomm.methods.allreduce import AllReduce
from lowcomm.methods.base import Method, StepMethod
from lowcomm.methods.diloco import DiLoCo
from protocols.errors import ConfigError

_METHODS: Mapping[str, Callable[[MethodConfig], Method]] = {"diloco": DiLoCo}
_STEP_METHODS: Mapping[str, Callable[[MethodConfig], StepMethod]] = {"allreduce": AllReduce}


def method(config: MethodConfig) -> Method:
    """The method that `config.name` names; raises ConfigError naming those that exist."""
    if config.name not in _METHODS:
        raise ConfigError(f"unknown method {config.name!r}; known: {', '.join(sorted(_METHODS))}")
    return _METHODS[config.name](config)


def step_method(config: MethodConfig) -> StepMethod:
    """As `method`, if `config.is_per_step`."""
    return _STEP_METHODS[config.name](config)
