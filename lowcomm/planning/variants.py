"""The methods that a plan compares, with the settings of the comparison of methods.

Must NOT measure or estimate anything.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from lowcomm.methods import (
    AllReduceMethod,
    AnyMethod,
    DecoupledDiLoCoMethod,
    DiLoCoMethod,
    EagerDiLoCoMethod,
    FlexDeMoMethod,
    LocalSGDMethod,
    NoLoCoMethod,
    Parameter,
    RoundMethod,
    SparseLoCoMethod,
    StreamingDiLoCoMethod,
)
from lowcomm.planning.loss_costs import LOSS_COSTS, LossCost
from lowcomm.planning.model_shapes import count_blocks

INNER_STEPS = 30
"""Inner steps of a round in the comparison (H)."""
FRAGMENTS = 3
"""Fragments of streaming_diloco in the comparison; decoupled_diloco had DECOUPLED_FRAGMENTS."""
DECOUPLED_FRAGMENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A method with its settings."""

    name: str
    """As in the comparison."""
    method: AnyMethod
    cost: LossCost | None = None
    """None: it was not compared with these settings."""

    def longer(self, factor: int) -> "Variant":
        """This variant with rounds `factor` times as long. The comparison had no such rounds."""
        assert isinstance(self.method, RoundMethod)
        method = replace(self.method, inner_steps=factor * self.method.inner_steps)
        return Variant(name=self.name, method=cast(AnyMethod, method))


def compared_variants(parameters: Sequence[Parameter]) -> list[Variant]:
    """All methods of the comparison. A model with few blocks has fewer fragments."""
    fragments = min(FRAGMENTS, count_blocks(parameters))
    small = min(DECOUPLED_FRAGMENTS, len(parameters))
    methods: dict[str, AnyMethod] = {
        "allreduce": AllReduceMethod(),
        "diloco": DiLoCoMethod(inner_steps=INNER_STEPS),
        "local_sgd": LocalSGDMethod(inner_steps=INNER_STEPS),
        "streaming_diloco fp4": StreamingDiLoCoMethod(
            inner_steps=INNER_STEPS,
            fragments=fragments,
            contribution_codec="fp4",
            result_codec="bf16",
        ),
        "eager_diloco": EagerDiLoCoMethod(inner_steps=INNER_STEPS, outer_momentum=0.0),
        "decoupled_diloco": DecoupledDiLoCoMethod(inner_steps=INNER_STEPS, fragments=small),
        "sparseloco": SparseLoCoMethod(inner_steps=INNER_STEPS, outer_lr=2.0),
        "noloco": NoLoCoMethod(inner_steps=INNER_STEPS, outer_lr=1.0, outer_momentum=0.0),
        "flexdemo full": FlexDeMoMethod(replicator="full"),
        "flexdemo demo": FlexDeMoMethod(),
        "flexdemo random": FlexDeMoMethod(replicator="random"),
        "flexdemo striding": FlexDeMoMethod(replicator="striding"),
    }
    return [
        Variant(name=name, method=method, cost=LOSS_COSTS[name]) for name, method in methods.items()
    ]


def settings_of(method: AnyMethod) -> Mapping[str, Any]:
    """The method's keys that have another value than by default, the name first."""
    usual = type(method)()
    keys = [field.name for field in fields(method)]
    changed = {
        key: getattr(method, key)
        for key in keys
        if key != "name" and getattr(method, key) != getattr(usual, key)
    }
    lengths = {"inner_steps": method.inner_steps} if isinstance(method, RoundMethod) else {}
    return {"name": method.name, **lengths, **changed}


def toml_of(method: AnyMethod, *, nodes: int) -> str:
    """The lines of run.toml for this method: the tables `[run]` and `[run.method]`."""
    lines = ["[run]", f"peers_min = {nodes}", "", "[run.method]"]
    lines += [f"{key} = {_toml_value(value)}" for key, value in settings_of(method).items()]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    """JSON's numbers, texts, booleans and arrays are TOML's."""
    return json.dumps(value)
