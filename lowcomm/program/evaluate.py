"""Evaluates a model: its loss on held-out text, and a sample of generated text.

Works on a plain module and under FSDP2. Under FSDP2 every rank must make the same call: all ranks
run the same windows in lockstep and get the same result. Must NOT know of nodes, rounds or methods.

Legend: B windows, T positions, V values of a token.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from lowcomm.config.schema import BYTE_VALUES
from lowcomm.data.batches import raw_words
from lowcomm.data.token_shards import TokenArray
from lowcomm.models.llama import Llama, next_token_loss
from protocols.types import ConfigError

EVAL_BATCH = 16
"""Windows in one forward pass. It bounds the memory, and changes the loss by rounding only."""
EVAL_STREAM = 2**64 - 1
"""Number of the random stream of a seed; no pass over the training data reaches this number."""


@torch.no_grad()
def held_out_loss(
    model: nn.Module, held_out: TokenArray, *, windows: int, window: int, seed: int
) -> float:
    """Mean loss in nats per token over `windows` windows of `window` predicted tokens each.

    The windows are drawn with replacement, from `seed` alone, so all evaluations of a run use the
    same ones. Raises ConfigError if the text is shorter than a window.
    """
    places = len(held_out) - window
    if places < 1:
        raise ConfigError(
            f"{len(held_out)} tokens are held out, but one window takes {window + 1}: "
            "raise run.data.held_out_below or name a folder with more text"
        )
    starts = (raw_words(seed, EVAL_STREAM, windows) % np.uint64(places)).astype(np.int64)
    device = next(model.parameters()).device
    total = 0.0
    for first in range(0, windows, EVAL_BATCH):
        rows = starts[first : first + EVAL_BATCH, None] + np.arange(window + 1)
        tokens_BT1 = torch.from_numpy(held_out[rows].astype(np.int64, copy=False)).to(device)
        total += next_token_loss(model, tokens_BT1).item() * len(rows)
    return total / windows


@torch.no_grad()
def generated(
    model: Llama,
    prompt: Sequence[int],
    *,
    tokens: int,
    temperature: float,
    seed: int,
    values: int = BYTE_VALUES,
) -> Iterator[int]:
    """Continue `prompt` (bytes are tokens too) by `tokens` tokens; yield each as soon as it is
    drawn.

    Each token is drawn from softmax(logits / temperature) of the first `values` ones; temperature 0
    takes the likeliest one. The model gets the last `context` tokens. An empty prompt is replaced
    by token 10, a line feed. Every token costs a whole forward pass: there is no cache, so that
    sharded models work unchanged.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt or b"\n")
    for _ in range(tokens):
        seen_T = torch.tensor(text[-model.config.context :], device=device)
        logits_V = model(seen_T[None])[0, -1, :values].cpu().double()
        text.append(_draw(logits_V, temperature, generator))
        yield text[-1]


def _draw(logits_V: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    chances_V = torch.softmax(logits_V / temperature, dim=0)
    return int(torch.multinomial(chances_V, 1, generator=generator))
