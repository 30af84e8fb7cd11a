"""The methods, one in each file: the daemon's half.

In: the table `[run.method]`. Out: what is contributed and when, in which codecs, how contributions
become one result, and the outer step. The half that runs in the ranks is lowcomm/training (methods
of rounds) and lowcomm/flexdemo. Must NOT import torch. No method imports another one.

Start reading: base.py, then diloco.py. A new method is one file and one line here.
"""

from typing import TypeAlias, get_args

from lowcomm.methods.allreduce import AllReduceMethod
from lowcomm.methods.base import GATHER, GATHERED, Parameter, RoundMethod, StepMethod
from lowcomm.methods.decoupled_diloco import DecoupledDiLoCoMethod
from lowcomm.methods.diloco import DiLoCoMethod
from lowcomm.methods.eager_diloco import EagerDiLoCoMethod
from lowcomm.methods.flexdemo import FlexDeMoMethod
from lowcomm.methods.local_sgd import LocalSGDMethod
from lowcomm.methods.noloco import NoLoCoMethod
from lowcomm.methods.sparseloco import SparseLoCoMethod
from lowcomm.methods.streaming_diloco import StreamingDiLoCoMethod

AnyMethod: TypeAlias = (
    DiLoCoMethod  # The method of a table without a name.
    | AllReduceMethod
    | DecoupledDiLoCoMethod
    | EagerDiLoCoMethod
    | FlexDeMoMethod
    | LocalSGDMethod
    | NoLoCoMethod
    | SparseLoCoMethod
    | StreamingDiLoCoMethod
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
    "AllReduceMethod",
    "AnyMethod",
    "DecoupledDiLoCoMethod",
    "DiLoCoMethod",
    "EagerDiLoCoMethod",
    "FlexDeMoMethod",
    "LocalSGDMethod",
    "NoLoCoMethod",
    "Parameter",
    "RoundMethod",
    "SparseLoCoMethod",
    "StepMethod",
    "StreamingDiLoCoMethod",
]
