"""The model against its formulas, its names, and its promises about initialisation."""

import cmath
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lowcomm.config.schema import ModelConfig
from lowcomm.models.llama import Llama, build_model, next_token_loss

SMALL = ModelConfig(
    vocab_size=50,
    hidden_size=24,
    layers=2,
    heads=4,
    kv_heads=2,
    intermediate_size=40,
    context=16,
    rope_theta=100.0,
    embedding_std=0.5,
)
LAYER = {
    "self_attn.q_proj.weight": (24, 24),
    "self_attn.k_proj.weight": (12, 24),
    "self_attn.v_proj.weight": (12, 24),
    "self_attn.o_proj.weight": (24, 24),
    "mlp.gate_proj.weight": (40, 24),
    "mlp.up_proj.weight": (40, 24),
    "mlp.down_proj.weight": (24, 40),
    "input_layernorm.weight": (24,),
    "post_attention_layernorm.weight": (24,),
}
F64 = NDArray[np.float64]


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, SMALL.vocab_size, shape))


def rms_norm(x_C: F64, weight_C: F64) -> F64:
    return x_C / math.sqrt(float(np.mean(x_C**2)) + SMALL.norm_eps) * weight_C


def rotate(x_D: F64, position: int) -> F64:
    """RoPE by complex numbers: the pair (i, i + D/2) is one number, turned by its angle."""
    half = len(x_D) // 2
    turned = [
        complex(x_D[i], x_D[i + half])
        * cmath.exp(1j * position * SMALL.rope_theta ** (-2 * i / len(x_D)))
        for i in range(half)
    ]
    return np.array([pair.real for pair in turned] + [pair.imag for pair in turned])


def attend(q_THD: F64, k_TKD: F64, v_TKD: F64) -> F64:
    """Softmax attention, one position and one head at a time; returns [T, C]."""
    T, H, D = q_THD.shape
    group = H // k_TKD.shape[1]
    out_THD = np.zeros_like(q_THD)
    for t in range(T):
        for h in range(H):
            q_D = rotate(q_THD[t, h], t)
            scores = np.array([q_D @ rotate(k_TKD[s, h // group], s) for s in range(t + 1)])
            chances = np.exp(scores / math.sqrt(D))
            chances /= chances.sum()
            out_THD[t, h] = sum(chances[s] * v_TKD[s, h // group] for s in range(t + 1))
    return out_THD.reshape(T, -1)


def reference_logits(model: Llama, tokens_T: torch.Tensor) -> F64:
    """The slow forward pass in float64: [T] to [T, V]."""
    w = {name: value.double().numpy() for name, value in model.state_dict().items()}
    D = SMALL.hidden_size // SMALL.heads
    x_TC = w["model.embed_tokens.weight"][tokens_T.numpy()]
    for layer in range(SMALL.layers):
        at = f"model.layers.{layer}."
        h_TC = np.stack([rms_norm(x, w[at + "input_layernorm.weight"]) for x in x_TC])
        q, k, v = (
            (h_TC @ w[f"{at}self_attn.{name}_proj.weight"].T).reshape(len(x_TC), -1, D)
            for name in "qkv"
        )
        x_TC = x_TC + attend(q, k, v) @ w[at + "self_attn.o_proj.weight"].T
        h_TC = np.stack([rms_norm(x, w[at + "post_attention_layernorm.weight"]) for x in x_TC])
        gate = h_TC @ w[at + "mlp.gate_proj.weight"].T
        up = h_TC @ w[at + "mlp.up_proj.weight"].T
        x_TC = x_TC + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
    h_TC = np.stack([rms_norm(x, w["model.norm.weight"]) for x in x_TC])
    return h_TC @ w["lm_head.weight"].T


def with_uneven_norms(model: Llama) -> Llama:
    """Norm weights start at one, which would hide a norm that forgets its weight."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_the_forward_pass_follows_the_formulas(kv_heads: int, tied: bool) -> None:
    config = replace(SMALL, kv_heads=kv_heads, tied_embeddings=tied)
    model = with_uneven_norms(build_model(config, seed=1))
    tokens_BT = tokens(2, SMALL.context)
    logits_BTV = model(tokens_BT).detach().numpy()
    assert logits_BTV.shape == (2, SMALL.context, SMALL.vocab_size)
    for row in range(2):
        np.testing.assert_allclose(
            logits_BTV[row], reference_logits(model, tokens_BT[row]), rtol=0, atol=2e-5
        )


def test_names_shapes_and_order_are_those_of_hugging_face() -> None:
    expected = [("model.embed_tokens.weight", (50, 24))]
    for layer in range(SMALL.layers):
        expected += [(f"model.layers.{layer}.{name}", shape) for name, shape in LAYER.items()]
    expected += [("model.norm.weight", (24,)), ("lm_head.weight", (50, 24))]
    model = build_model(SMALL, seed=0)
    assert [(name, tuple(value.shape)) for name, value in model.state_dict().items()] == expected
    assert [(name, tuple(value.shape)) for name, value in model.named_parameters()] == expected
    assert all(value.dtype == torch.float32 for value in model.parameters())


def test_tied_embeddings_are_one_parameter_under_its_first_name() -> None:
    model = build_model(replace(SMALL, tied_embeddings=True), seed=0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    names = [name for name, _ in model.named_parameters()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert "lm_head.weight" in model.state_dict()  # As Hugging Face's state_dict has it.


def test_no_position_sees_a_later_one() -> None:
    model = build_model(SMALL, seed=1)
    before_BT = tokens(1, 12)
    after_BT = before_BT.clone()
    after_BT[0, 7] = (after_BT[0, 7] + 1) % SMALL.vocab_size
    before_BTV, after_BTV = model(before_BT), model(after_BT)
    assert torch.equal(before_BTV[:, :7], after_BTV[:, :7])
    assert not torch.isclose(before_BTV[:, 7:], after_BTV[:, 7:]).all(dim=-1).any()


def test_equal_seeds_give_equal_bits_whatever_the_threads_and_the_global_generator() -> None:
    torch.manual_seed(1)
    once = build_model(ModelConfig(), seed=7).state_dict()
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        torch.manual_seed(2)
        again = build_model(ModelConfig(), seed=7).state_dict()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(value, again[name]) for name, value in once.items())
    other = build_model(ModelConfig(), seed=8)
    assert all(
        not torch.equal(value, once[name])
        for name, value in other.named_parameters()
        if value.ndim == 2
    )


def test_building_draws_nothing_from_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    build_model(SMALL, seed=0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_initial_standard_deviations() -> None:
    config = ModelConfig(embedding_std=0.02)
    model = build_model(config, seed=0)
    layer = "model.layers.3."
    expected = {
        "model.embed_tokens.weight": 0.02,
        f"{layer}self_attn.q_proj.weight": 1 / math.sqrt(128),
        f"{layer}self_attn.o_proj.weight": 1 / math.sqrt(128 * 2 * config.layers),
        f"{layer}mlp.up_proj.weight": 1 / math.sqrt(128),
        f"{layer}mlp.down_proj.weight": 1 / math.sqrt(344 * 2 * config.layers),
        "lm_head.weight": 1 / math.sqrt(128),
    }
    values = model.state_dict()
    measured = {name: values[name].std().item() for name in expected}
    assert measured == pytest.approx(expected, rel=0.03)
    assert torch.equal(values["model.norm.weight"], torch.ones(128))


def test_the_loss_is_the_mean_surprise_of_the_next_token() -> None:
    model = build_model(SMALL, seed=1)
    tokens_BT1 = tokens(2, 9)
    logits_BTV = np.stack([reference_logits(model, row[:-1]) for row in tokens_BT1])
    chances_BTV = np.exp(logits_BTV) / np.exp(logits_BTV).sum(axis=-1, keepdims=True)
    surprise = [
        -math.log(chances_BTV[b, t, int(tokens_BT1[b, t + 1])]) for b in range(2) for t in range(8)
    ]
    loss = next_token_loss(model, tokens_BT1)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(sum(surprise) / len(surprise), abs=1e-5)
    loss.backward()
    assert all(value.grad is not None for value in model.parameters())


def test_a_sequence_longer_than_the_context_is_a_programmers_error() -> None:
    model = build_model(SMALL, seed=0)
    with pytest.raises(AssertionError, match="context"):
        model(tokens(1, SMALL.context + 1))
