"""Held-out loss and generation, against what they mean."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from lowcomm.config.schema import ModelConfig
from lowcomm.models.llama import Llama, build_model, next_token_loss
from lowcomm.program.evaluate import EVAL_BATCH, generated, held_out_loss
from protocols.types.errors import ConfigError

CONFIG = ModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=2, intermediate_size=24, context=8)
TEXT = np.random.default_rng(0).integers(0, 256, 500).astype(np.uint8)


@pytest.fixture
def model() -> Llama:
    return build_model(CONFIG, seed=0)


def successor_model() -> Llama:
    """After byte b it expects b + 1, whatever came before: all but the embeddings is a no-op."""
    model = build_model(
        ModelConfig(hidden_size=256, layers=1, heads=2, kv_heads=2, intermediate_size=8, context=8),
        seed=0,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(256))
        model.lm_head.weight.copy_(torch.eye(256).roll(1, dims=0))
    return model


def test_a_model_that_knows_nothing_has_the_loss_of_a_uniform_guess(model: Llama) -> None:
    torch.nn.init.zeros_(model.lm_head.weight)
    loss = held_out_loss(model, TEXT, windows=EVAL_BATCH + 3, window=8, seed=0)
    assert loss == pytest.approx(math.log(256), abs=1e-5)


def test_it_is_the_mean_over_the_windows_though_the_last_batch_is_smaller(model: Llama) -> None:
    text = TEXT[:40]

    def mean(windows: int) -> float:
        return held_out_loss(model, text, windows=windows, window=8, seed=0)

    rows = [torch.from_numpy(text[at : at + 9].astype(np.int64))[None] for at in range(32)]
    possible = [next_token_loss(model, row).item() for row in rows]
    # What one more window adds to the sum is the loss of one window of the text.
    added = (EVAL_BATCH + 1) * mean(EVAL_BATCH + 1) - EVAL_BATCH * mean(EVAL_BATCH)
    assert min(abs(added - loss) for loss in possible) < 1e-4
    assert max(possible) - min(possible) > 0.1
    assert mean(2000) == pytest.approx(sum(possible) / len(possible), abs=0.05)


def test_the_seed_draws_the_windows(model: Llama) -> None:
    def loss(seed: int) -> float:
        return held_out_loss(model, TEXT, windows=4, window=8, seed=seed)

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)


def test_evaluation_leaves_no_gradient(model: Llama) -> None:
    held_out_loss(model, TEXT, windows=2, window=8, seed=0)
    list(generated(model, b"a", tokens=2, temperature=1.0, seed=0))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_too_little_held_out_text_is_refused(model: Llama) -> None:
    with pytest.raises(ConfigError, match="8 tokens are held out, but one window takes 9"):
        held_out_loss(model, TEXT[:8], windows=1, window=8, seed=0)
    assert held_out_loss(model, TEXT[:9], windows=1, window=8, seed=0) > 0


def test_without_temperature_the_likeliest_byte_is_written() -> None:
    model = successor_model()
    assert list(generated(model, b"abc", tokens=4, temperature=0, seed=0)) == [*b"defg"]
    assert list(generated(model, b"", tokens=2, temperature=0, seed=0)) == [11, 12]
    assert list(generated(model, b"abc", tokens=0, temperature=0, seed=0)) == []
    few = list(generated(model, [98], tokens=5, temperature=0, seed=0, values=101))
    assert few[:2] == [99, 100]
    assert max(few) == 100, "only tokens that there are"


def test_a_higher_temperature_is_wilder() -> None:
    model = successor_model()
    expected = [(ord("a") + 1 + step) % 256 for step in range(100)]
    assert list(generated(model, b"a", tokens=100, temperature=0.1, seed=0)) == expected
    wild = list(generated(model, b"a", tokens=100, temperature=10.0, seed=0))
    assert sum(1 for old, new in pairwise(wild) if new == old + 1) < 50


def test_a_sample_depends_on_the_seed_and_on_nothing_else(model: Llama) -> None:
    def sample(seed: int) -> list[int]:
        return list(generated(model, b"def ", tokens=30, temperature=1.0, seed=seed))

    torch.manual_seed(1)
    first = sample(5)
    torch.manual_seed(2)
    assert sample(5) == first
    assert len(first) == 30
    assert sample(6) != first


def test_the_model_sees_the_last_bytes_of_a_long_prompt(model: Llama) -> None:
    def sample(prompt: bytes) -> list[int]:
        return list(generated(model, prompt, tokens=30, temperature=1.0, seed=0))

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "lm_head.weight")):
                parameter.mul_(10)  # So that one of eight bytes before makes a difference.
    tail = b"12345678"  # As long as the context.
    assert sample(b"something before " + tail) == sample(tail)
    assert sample(b"something before " + tail) != sample(b"something before 02345678")
