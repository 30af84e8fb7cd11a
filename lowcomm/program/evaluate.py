"""Evaluates a model: its loss on held-out text, and a sample of generated text.

Works on a plain module and under FSDP2. Under FSDP2 every rank must make the same call: all ranks
run the same windows in lockstep and get the same result. Must NOT know of nodes, rounds or methods.

Legend: B windows, T positions, V values of a byte.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lowcomm.data.batches import raw_words
from lowcomm.models.llama import Llama, next_token_loss
from protocols.types import ConfigError

EVAL_BATCH = 16
"""Windows in one forward pass. It bounds the memory, and changes the loss by rounding only."""
EVAL_STREAM = 2**64 - 1
"""Number of the random stream of a seed; no pass over the training data reaches this number."""
BYTE_VALUES = 256


@torch.no_grad()
def held_out_loss(
    model: nn.Module, held_out: NDArray[np.uint8], *, windows: int, window: int, seed: int
) -> float:
    """Mean loss in nats per byte over `windows` windows of `window` predicted bytes each.

    `held_out` is uint8 [bytes]. The windows are drawn with replacement, from `seed` alone, so all
    evaluations of a run use the same ones. Raises ConfigError if the text is shorter than a window.
    """
    places = len(held_out) - window
    if places < 1:
        raise ConfigError(
            f"{len(held_out)} bytes are held out, but one window takes {window + 1}: "
            "raise run.data.held_out_below or name a folder with more text"
        )
    starts = (raw_words(seed, EVAL_STREAM, windows) % np.uint64(places)).astype(np.int64)
    device = next(model.parameters()).device
    total = 0.0
    for first in range(0, windows, EVAL_BATCH):
        rows = starts[first : first + EVAL_BATCH, None] + np.arange(window + 1)
        tokens_BT1 = torch.from_numpy(held_out[rows].astype(np.int64)).to(device)
        total += next_token_loss(model, tokens_BT1).item() * len(rows)
    return total / windows


def generate(model: Llama, prompt: bytes, *, tokens: int, temperature: float, seed: int) -> bytes:
    """The bytes of `generated`, all at once."""
    return bytes(generated(model, prompt, tokens=tokens, temperature=temperature, seed=seed))


@torch.no_grad()
def generated(
    model: Llama, prompt: bytes, *, tokens: int, temperature: float, seed: int
) -> Iterator[int]:
    """Continue `prompt` by `tokens` bytes; yield each as soon as it is drawn.

    Each byte is drawn from softmax(logits / temperature); temperature 0 takes the likeliest byte.
    The model gets the last `context` bytes. An empty prompt is replaced by a line feed. Every byte
    costs a whole forward pass: there is no cache, so that sharded models work unchanged.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    text = bytearray(prompt or b"\n")
    for _ in range(tokens):
        seen_T = torch.tensor(list(text[-model.config.context :]), device=device)
        logits_V = model(seen_T[None])[0, -1, :BYTE_VALUES].cpu().double()
        text.append(_draw(logits_V, temperature, generator))
        yield text[-1]


def _draw(logits_V: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    chances_V = torch.softmax(logits_V / temperature, dim=0)
    return int(torch.multinomial(chances_V, 1, generator=generator))
