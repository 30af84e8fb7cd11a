"""The tables `[run]` and `[node]`.

They are loaded and checked here only. In: a TOML file and overrides of the command line. Out:
frozen dataclasses; ConfigError with what is wrong and what to do. Learning rates and round lengths
that follow from it are pure functions. Must NOT import torch, and no other room reads a
configuration file.

Start reading: schema.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.config.explain_command import setting_names
    from lowcomm.config.lr_schedule import CosineSchedule, warmup
    from lowcomm.config.round_length import early_steps, planned_rounds, round_steps
    from lowcomm.config.schema import (
        AdamWConfig,
        DataConfig,
        ModelConfig,
        MuonConfig,
        NodeConfig,
        RunConfig,
        load_config,
    )

__all__ = [
    "AdamWConfig",
    "CosineSchedule",
    "DataConfig",
    "ModelConfig",
    "MuonConfig",
    "NodeConfig",
    "RunConfig",
    "early_steps",
    "load_config",
    "planned_rounds",
    "round_steps",
    "setting_names",
    "warmup",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "explain_command": "setting_names",
        "lr_schedule": "CosineSchedule warmup",
        "round_length": "early_steps planned_rounds round_steps",
        "schema": "AdamWConfig DataConfig ModelConfig MuonConfig NodeConfig RunConfig load_config",
    },
)
