"""One node of the comparison: the project's own model, its inner optimizer, its parameters.

Nodes share nothing. The parameters are views into one array, in the method's layout, so that a
fragment is a slice of it. Must NOT know when nodes meet, nor draw data.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.comparing.settings import Setting
from lowcomm.methods import Parameter, RoundMethod
from lowcomm.models import build_model, next_token_loss
from lowcomm.numerics import F32
from lowcomm.program import Muon
from lowcomm.worker import make_optimizer
from protocols.types import TensorSpec

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of AdamW's state tensors of each parameter."""
State = Mapping[str, Tensor]
"""The state of a warm start: `parameter:NAME`, and each of AdamW's moments as `exp_avg:NAME`."""


class ComparedNode:
    """Call `backward`, then `inner_step`, repeatedly; `steps` and `tokens` count until
    they are reset."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.model = build_model(setting.model, seed=setting.seed)
        self._named: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self.layout = layout_of(self._named, setting)
        flat_P = torch.empty(sum(math.prod(each.shape) for each in self.layout))
        start = 0
        for each in self.layout:
            parameter = self._named[each.name]
            place = flat_P[start : start + parameter.numel()].view(parameter.shape)
            place.copy_(parameter.data)
            parameter.data = place
            start += parameter.numel()
        self.params_P: F32 = flat_P.numpy()
        """fp32 [P], fragment after fragment; writing to it changes the model."""
        self.renew_optimizer()
        self.steps = 0
        """Inner steps since the last contribution; `tokens` counts since then too."""
        self.tokens = 0

    def renew_optimizer(self) -> None:
        """Make a fresh inner optimizer, as a joiner has it."""
        self._optimizer = make_optimizer(self.model, self._setting.run)

    def backward(self, tokens_BT1: Tensor, *, share: float = 1.0) -> None:
        """Add `share` of the gradient of the mean loss to the gradients."""
        (next_token_loss(self.model, tokens_BT1) * share).backward()

    def inner_step(self, factor: float) -> None:
        """Make one inner step with the present gradients; `factor` scales the learning rate."""
        self._clip()
        for group in self._optimizer.param_groups:
            group["lr"] = self._setting.optimizer.lr * factor
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps += 1
        self.tokens += self._setting.step_tokens

    def take_gradients(self) -> list[Tensor]:
        """Take the clipped gradients, by parameter, in place of a step; none remain."""
        self._clip()
        found: list[Tensor] = []
        for parameter in self._named.values():
            assert parameter.grad is not None, "backward first"
            found.append(parameter.grad)
            parameter.grad = None
        return found

    def state(self) -> dict[str, Tensor]:
        """Copies of the state of a warm start; its number of steps is in the setting."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._named.items():
            found[f"parameter:{name}"] = parameter.detach().clone()
            for moment in MOMENTS:
                found[f"{moment}:{name}"] = self._optimizer.state[parameter][moment].clone()
        return found

    def begin(self, state: State, *, steps: int) -> None:
        """Continue from a warm start of so many steps. The tensors are copied: nodes that shared
        moments would get each other's gradients without an exchange."""
        names = {parameter: name for name, parameter in self._named.items()}
        with torch.no_grad():
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    name = names[parameter]
                    parameter.copy_(state[f"parameter:{name}"])
                    moments = self._moments(name, group, state, steps)
                    self._optimizer.state[parameter] = moments
        self.steps, self.tokens = 0, 0

    def _moments(
        self, name: str, group: Mapping[str, Any], state: State, steps: int
    ) -> dict[str, Tensor]:
        """The optimizer's state of a parameter in this group, after AdamW's warm start."""
        if "betas" in group:  # Of AdamW, also of the parameters that Muon leaves to it.
            moments = {moment: state[f"{moment}:{name}"].clone() for moment in MOMENTS}
            return {"step": torch.tensor(float(steps)), **moments}
        if isinstance(self._optimizer, Muon):
            # A sum, where AdamW has a mean: its value if all gradients had been that mean.
            return {"momentum_buffer": state[f"exp_avg:{name}"] / (1 - group["momentum"])}
        return {}

    def _clip(self) -> None:
        norm_max = self._setting.optimizer.grad_clip
        if norm_max > 0:
            clip_grad_norm_(self.model.parameters(), norm_max)


def layout_of(named: Mapping[str, nn.Parameter], setting: Setting) -> tuple[TensorSpec, ...]:
    """The parameters by fragment, and within a fragment in the model's order."""
    shapes = [Parameter(name, tuple(each.shape)) for name, each in named.items()]
    method = setting.method
    numbers: Sequence[int] = (0,) * len(shapes)
    if isinstance(method, RoundMethod):
        numbers = method.fragments_of(shapes)
    ends = [0] * (max(numbers) + 1)
    found: list[TensorSpec] = []
    for fragment, each in sorted(zip(numbers, shapes, strict=True), key=lambda pair: pair[0]):
        found.append(TensorSpec(fragment, each.name, each.shape, ends[fragment]))
        ends[fragment] += math.prod(each.shape)
    return tuple(found)


def fragment_slices(layout: Sequence[TensorSpec]) -> list[slice]:
    """The slice of each fragment in `params_P`."""
    sizes = np.zeros(1 + max(each.fragment for each in layout), np.int64)
    for each in layout:
        sizes[each.fragment] += math.prod(each.shape)
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for end, size in zip(ends, sizes.tolist(), strict=True)]
