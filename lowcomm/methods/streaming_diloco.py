"""Streaming DiLoCo (arXiv:2501.18512): DiLoCo for one fragment of the model after the other, while
training continues.

Of each H steps, fragment p of P is contributed at step floor(p H / P), and fragment 0 at the end.
Its result is taken `overlap_steps` later and mixed with the ranks' parameters of that time. Only
the last result of each fragment replaces them, because the run ends with the outer parameters,
which the paper evaluates; the last steps of the other fragments are trained beside them. Must NOT
import torch or another method.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lowcomm.methods.base import TABLE, NesterovMethod, Parameter, check_fragments
from protocols.types import ConfigError

_BLOCK = re.compile(r"(.*?(?:^|\.)\d+)(?:\.|$)")
"""A parameter's name up to its first number: "model.layers.3" of "model.layers.3.mlp.w"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingDiLoCoMethod(NesterovMethod):
    """See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["streaming_diloco"] = "streaming_diloco"
    fragments: int = 3
    """The number of fragments of the model. A block is all parameters that share the first number
    in their names, such as "model.layers.3"; blocks are in fragments 1, 2, ..., and all other
    parameters (embeddings, head, norms) in fragment 0. If a model has only blocks, fragment 0 has
    blocks too."""
    pattern: Literal["strided", "sequential"] = "strided"
    """The blocks of one fragment: `strided` takes every so many, `sequential` takes neighbours."""
    overlap_steps: int = 1  # pyright: ignore[reportIncompatibleMethodOverride] - a key here.
    """Inner steps between a contribution and the use of its result (tau), below inner_steps. Beyond
    inner_steps / fragments, several fragments are in flight at once. 0: the ranks wait for the
    result."""
    mixing: float = 0.5  # pyright: ignore[reportIncompatibleMethodOverride]
    """The share of the ranks' own parameters that remains when they take a result in which they
    were counted (alpha); 0: the result replaces them."""

    waits_for_rounds = False

    def __post_init__(self) -> None:
        NesterovMethod.__post_init__(self)
        check_fragments(self.inner_steps, self.fragments, self.overlap_steps)
        if not 0 <= self.mixing < 1:
            raise ConfigError(f"{TABLE}.mixing must be in [0, 1), got {self.mixing}")

    def fragments_of(self, parameters: Sequence[Parameter]) -> tuple[int, ...]:
        names = [match[1] if (match := _BLOCK.match(p.name)) else "" for p in parameters]
        blocks = [name for name in dict.fromkeys(names) if name]
        rest = 1 if "" in names and self.fragments > 1 else 0
        groups = self.fragments - rest
        if self.fragments > 1 and len(blocks) < groups:
            raise ConfigError(
                f"{TABLE}.fragments is {self.fragments}, but this model has {len(blocks)} blocks "
                f"(parameters with the same first number in their names): at most "
                f"{max(len(blocks) + rest, 1)}"
            )
        strided = self.pattern == "strided"
        group_of = {
            block: rest + (number % groups if strided else number * groups // len(blocks))
            for number, block in enumerate(blocks)
        }
        return tuple(group_of.get(name, 0) for name in names)
