"""Streaming DiLoCo (arXiv:2501.18512): DiLoCo for one fragment of the model after the other, while
training goes on.

Fragment p of P is contributed at step floor(p H / P) of each H, fragment 0 at the end; its result
is taken `overlap_steps` later and mixed with what the ranks have by then. Only the last one of each
fragment replaces that: the run ends with the outer parameters, which are what the paper evaluates,
and the last steps of other fragments are trained beside them. Must NOT import torch or another
method.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lowcomm.methods.base import TABLE, NesterovMethod, Parameter, check_fragments
from protocols.types.errors import ConfigError

_BLOCK = re.compile(r"(.*?(?:^|\.)\d+)(?:\.|$)")
"""A parameter's name up to its first number: "model.layers.3" of "model.layers.3.mlp.w"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingDiLoCo(NesterovMethod):
    """See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["streaming_diloco"] = "streaming_diloco"
    fragments: int = 3
    """Of the model. A block is what shares the first number in the parameters' names, such as
    "model.layers.3"; blocks are fragments 1, 2, ..., and all else (embeddings, head, norms)
    is fragment 0. A model that has nothing else has blocks in fragment 0 too."""
    pattern: Literal["strided", "sequential"] = "strided"
    """Which blocks go together: every so many, or neighbours."""
    overlap_steps: int = 1  # pyright: ignore[reportIncompatibleMethodOverride] - a key here.
    """A result is taken so many inner steps after the contribution (tau), below inner_steps; beyond
    inner_steps / fragments several fragments are in flight at once. 0: the ranks wait for it."""
    mixing: float = 0.5  # pyright: ignore[reportIncompatibleMethodOverride]
    """What is left of the ranks' own parameters when they take a result in which they were counted
    (alpha); 0: it replaces them."""

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
                f"(what shares the first number in the parameters' names): at most "
                f"{max(len(blocks) + rest, 1)}"
            )
        strided = self.pattern == "strided"
        group_of = {
            block: rest + (number % groups if strided else number * groups // len(blocks))
            for number, block in enumerate(blocks)
        }
        return tuple(group_of.get(name, 0) for name in names)
