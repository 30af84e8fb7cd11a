"""The initial values of the built-in model's parameters, from a seed.

They have the same bits whatever the sharding and the number of threads. Must NOT know which part of
a parameter a rank holds.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lowcomm.config.schema import ModelConfig


class SeededValues:
    """Draws one parameter after the other from one serial stream.

    Embeddings are normal with standard deviation `embedding_std`, and so is the head if they are
    tied. Other matrices have standard deviation 1 / sqrt(fan_in), divided by sqrt(2 * layers) if
    they write into the residual stream, so that its variance does not grow with depth.
    """

    def __init__(
        self, config: ModelConfig, shapes: Mapping[str, Sequence[int]], *, seed: int
    ) -> None:
        """`shapes`: of the model's parameters, by name, in the order of `named_parameters()`."""
        self._config = config
        self._shapes = shapes
        self._order = iter(shapes)
        self._generator = torch.Generator().manual_seed(seed)

    def part(self, name: str, window: Sequence[slice]) -> Tensor:
        """The values of a parameter in this window, fp32, on the CPU. Call this once for each
        parameter, in their order, also for an empty window."""
        expected = next(self._order)
        assert name == expected, "one serial stream"
        return self._whole(name, self._shapes[name])[tuple(window)]

    def _whole(self, name: str, shape: Sequence[int]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape)
        std = 1 / math.sqrt(shape[1])
        if name == "model.embed_tokens.weight":
            std = self._config.embedding_std
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            std /= math.sqrt(2 * self._config.layers)
        return torch.empty(shape).normal_(0.0, std, generator=self._generator)
