"""A small Llama in plain torch: RMSNorm, RoPE, SwiGLU, grouped-query attention, no biases.

The names, shapes and order of the parameters are those of Hugging Face's LlamaForCausalLM, so that
an export is a copy. Must NOT know nodes, ranks or sharding: `fully_shard` wraps each of
`model.model.layers`, and then the model, from outside.

Legend: B samples, T positions, C hidden size, H heads, K kv heads, D head size, V vocabulary.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name.
from torch import Tensor, nn

from lowcomm.config.schema import ModelConfig


class Attention(nn.Module):
    """Causal self-attention; each kv head serves `heads / kv_heads` query heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.heads
        self.grouped = config.kv_heads < config.heads
        kv_size = config.kv_heads * self.head_size
        self.q_proj = _linear(config.hidden_size, config.hidden_size)
        self.k_proj = _linear(config.hidden_size, kv_size)
        self.v_proj = _linear(config.hidden_size, kv_size)
        self.o_proj = _linear(config.hidden_size, config.hidden_size)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Attend over positions: fp32 [B, T, C] to fp32 [B, T, C]."""
        q_BHTD = _rotate(self._heads(self.q_proj(x_BTC)), cos_TD, sin_TD)
        k_BKTD = _rotate(self._heads(self.k_proj(x_BTC)), cos_TD, sin_TD)
        v_BKTD = self._heads(self.v_proj(x_BTC))
        mixed_BHTD = F.scaled_dot_product_attention(
            q_BHTD, k_BKTD, v_BKTD, is_causal=True, enable_gqa=self.grouped
        )
        return self.o_proj(mixed_BHTD.transpose(1, 2).flatten(2))

    def _heads(self, x_BTC: Tensor) -> Tensor:
        return x_BTC.view(*x_BTC.shape[:2], -1, self.head_size).transpose(1, 2)


class Mlp(nn.Module):
    """The SwiGLU layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Transform each position independently: fp32 [B, T, C] to fp32 [B, T, C]."""
        return self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))


class DecoderLayer(nn.Module):
    """One transformer block: the unit that `fully_shard` wraps."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = _norm(config)
        self.post_attention_layernorm = _norm(config)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Add attention and MLP to the residual stream: fp32 [B, T, C] to fp32 [B, T, C]."""
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), cos_TD, sin_TD)
        return x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))


class Backbone(nn.Module):
    """The model without its head. Its name in the state_dict is `model`."""

    rope_cos: Tensor
    rope_sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        embedding = nn.utils.skip_init(
            nn.Embedding, config.embeddings, config.hidden_size, device="cpu"
        )
        self.embed_tokens = cast(nn.Embedding, embedding)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = _norm(config)
        cos_TD, sin_TD = _rope_tables(config)
        # Not persistent: these buffers follow the model to its device, but not into its state_dict.
        self.register_buffer("rope_cos", cos_TD, persistent=False)
        self.register_buffer("rope_sin", sin_TD, persistent=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Map tokens to hidden states: int64 [B, T] to fp32 [B, T, C]."""
        length = tokens_BT.shape[1]
        cos_TD, sin_TD = self.rope_cos[:length], self.rope_sin[:length]
        x_BTC = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC, cos_TD, sin_TD)
        return self.norm(x_BTC)


class Llama(nn.Module):
    """The language model. `build_model` makes one and initializes its parameters."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = _linear(config.hidden_size, config.embeddings)
        if config.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return next-token logits: int64 [B, T], T <= config.context, to fp32 [B, T, V]."""
        assert tokens_BT.shape[1] <= self.config.context, "longer than the model's context"
        return self.lm_head(self.model(tokens_BT))


def build_model(config: ModelConfig, *, seed: int) -> Llama:
    """Make a model on the CPU in fp32; equal seeds give equal bits with any number of threads.

    Embeddings are normal with standard deviation `embedding_std`, and so is the head if they are
    tied. Other matrices have standard deviation 1 / sqrt(fan_in), divided by sqrt(2 * layers) if
    they write into the residual stream, so that its variance does not grow with depth. torch's
    global generator is not used.
    """
    model = Llama(config)
    # One serial stream in the order of named_parameters(): independent of threads.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            std = 1 / math.sqrt(parameter.shape[1])
            if name == "model.embed_tokens.weight":
                std = config.embedding_std
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                std /= math.sqrt(2 * config.layers)
            parameter.normal_(0.0, std, generator=generator)
    return model


def next_token_loss(model: nn.Module, tokens_BT1: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per predicted token: a 0-d fp32 tensor with its graph.

    `tokens_BT1` is int64 [B, T + 1]: the first T tokens of each row are the input, and the last T
    the targets. `model` may be wrapped, if a call returns logits.
    """
    logits_BTV: Tensor = model(tokens_BT1[:, :-1])
    return F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT1[:, 1:].flatten())


def _linear(fan_in: int, fan_out: int) -> nn.Linear:
    # Not initialized: `build_model` does it; torch's default would use the global generator.
    linear = nn.utils.skip_init(nn.Linear, fan_in, fan_out, bias=False, device="cpu")
    return cast(nn.Linear, linear)


def _norm(config: ModelConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=config.norm_eps, device="cpu")


def _rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return the cosine and the signed sine, fp32 [context, D]; columns i and i + D/2 are one pair.

    The first half of the sine is negated here, so that `_rotate` needs no negation.
    """
    half = config.hidden_size // config.heads // 2
    frequency = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(config.context, dtype=torch.float64), frequency)
    cos_TD = torch.cat((angle.cos(), angle.cos()), dim=1)
    sin_TD = torch.cat((-angle.sin(), angle.sin()), dim=1)
    return cos_TD.float(), sin_TD.float()


def _rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotate each pair (i, i + D/2) by the angle of its position, as Hugging Face does.

    (a, b) becomes (a cos - b sin, b cos + a sin). Rolling by D/2 swaps the halves, in two thirds of
    the time that cutting and joining them takes.
    """
    swapped_BHTD = x_BHTD.roll(x_BHTD.shape[-1] // 2, dims=-1)
    return torch.addcmul(x_BHTD * cos_TD, swapped_BHTD, sin_TD)
