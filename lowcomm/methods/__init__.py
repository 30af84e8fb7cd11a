"""The methods, one in each file: the daemon's half.

In: the table `[run.method]`. Out: what is contributed and when, in which codecs, how contributions
become one result, and the outer step. The half that runs in the ranks is lowcomm/training (methods
of rounds) and lowcomm/flexdemo. Must NOT import torch. No method imports another one.

Start reading: base.py, then diloco.py. A new method is one file and one line here.
"""

from typing import TypeAlias, get_args

from lowcomm.methods.allreduce import AllReduce
from lowcomm.methods.base import GATHER, GATHERED, Parameter, RoundMethod, StepMethod
from lowcomm.methods.decoupled_diloco import DecoupledDiLoCo
from lowcomm.methods.diloco import DiLoCo
from lowcomm.methods.eager_diloco import EagerDiLoCo
from lowcomm.methods.flexdemo import FlexDeMo
from lowcomm.methods.local_sgd import LocalSGD
from lowcomm.methods.noloco import NoLoCo
from lowcomm.methods.sparseloco import SparseLoCo
from lowcomm.methods.streaming_diloco import StreamingDiLoCo

AnyMethod: TypeAlias = (
    DiLoCo  # The method of a table without a name.
    | AllReduce
    | DecoupledDiLoCo
    | EagerDiLoCo
    | FlexDeMo
    | LocalSGD
    | NoLoCo
    | SparseLoCo
    | StreamingDiLoCo
)

PER_STEP_METHODS = frozenset(
    each.__dataclass_fields__["name"].default
    for each in get_args(AnyMethod)
    if issubclass(each, StepMethod)
)
"""The names of the per-step methods."""

__all__ = [
    "GATHER",
    "GATHERED",
    "PER_STEP_METHODS",
    "AllReduce",
    "AnyMethod",
    "DecoupledDiLoCo",
    "DiLoCo",
    "EagerDiLoCo",
    "FlexDeMo",
    "LocalSGD",
    "NoLoCo",
    "Parameter",
    "RoundMethod",
    "SparseLoCo",
    "StepMethod",
    "StreamingDiLoCo",
]
