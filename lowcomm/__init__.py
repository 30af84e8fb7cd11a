"""Train one model on many nodes joined by slow, unreliable links.

This module imports nothing by itself: the daemon is in this package too, and must not import torch
or numpy by accident. Names are resolved when they are first used (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowcomm.flexdemo.method import FlexDeMo
    from lowcomm.loop_state.kept_objects import RandomState
    from lowcomm.loop_state.run_scheduler import lr_scheduler
    from lowcomm.training.attach import attach
    from lowcomm.training.item_batches import Sampler
    from lowcomm.training.round_methods import (
        DecoupledDiLoCo,
        DiLoCo,
        EagerDiLoCo,
        LocalSGD,
        NoLoCo,
        SparseLoCo,
        StreamingDiLoCo,
    )
    from lowcomm.training.step_methods import AllReduce

    __version__: str

__all__ = [
    "AllReduce",
    "DecoupledDiLoCo",
    "DiLoCo",
    "EagerDiLoCo",
    "FlexDeMo",
    "LocalSGD",
    "NoLoCo",
    "RandomState",
    "Sampler",
    "SparseLoCo",
    "StreamingDiLoCo",
    "__version__",
    "attach",
    "lr_scheduler",
]

# No module may have the name of an export: its import would replace the export by the module.
_EXPORTS = {
    "attach": "lowcomm.training.attach",
    "lr_scheduler": "lowcomm.loop_state.run_scheduler",
    "RandomState": "lowcomm.loop_state.kept_objects",
    "Sampler": "lowcomm.training.item_batches",
    "AllReduce": "lowcomm.training.step_methods",
    "DecoupledDiLoCo": "lowcomm.training.round_methods",
    "DiLoCo": "lowcomm.training.round_methods",
    "EagerDiLoCo": "lowcomm.training.round_methods",
    "FlexDeMo": "lowcomm.flexdemo.method",
    "LocalSGD": "lowcomm.training.round_methods",
    "NoLoCo": "lowcomm.training.round_methods",
    "SparseLoCo": "lowcomm.training.round_methods",
    "StreamingDiLoCo": "lowcomm.training.round_methods",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("lowcomm")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'lowcomm' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
