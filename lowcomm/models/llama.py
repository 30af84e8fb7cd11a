"""A small Llama in plain torch: RMSNorm, RoPE, SwiGLU, grouped-query attention, no biases.

The names, shapes and order of the parameters are those of Hugging Face's LlamaForCausalLM, so that
an export is a copy. Must NOT know nodes, ranks or sharding: `fully_shard` wraps each of
`model.model.layers`, and then the model, from outside.

Legend: B samples, T positions, C hidden size, H heads, K kv heads, D head size, V vocabulary.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name.
from torch import Tensor, nn
from torch.utils import checkpoint

from lowcomm.config.schema import ModelConfig
from lowcomm.models.initial_values import SeededValues

_repeated = cast("Callable[..., Tensor]", checkpoint.checkpoint)
"""It has no annotations, and torch.compile can trace no `cast` of a function."""


class Attention(nn.Module):
    """Causal self-attention; each kv head serves `heads / kv_heads` query heads."""

    def __init__(self, config: ModelConfig, device: str) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.heads
        self.grouped = config.kv_heads < config.heads
        kv_size = config.kv_heads * self.head_size
        self.q_proj = _linear(config.hidden_size, config.hidden_size, device)
        self.k_proj = _linear(config.hidden_size, kv_size, device)
        self.v_proj = _linear(config.hidden_size, kv_size, device)
        self.o_proj = _linear(config.hidden_size, config.hidden_size, device)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Attend over positions: [B, T, C] to [B, T, C]."""
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

    def __init__(self, config: ModelConfig, device: str) -> None:
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size, device)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size, device)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size, device)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Transform each position independently: [B, T, C] to [B, T, C]."""
        return self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))


class DecoderLayer(nn.Module):
    """One transformer block: the unit that `fully_shard` wraps."""

    def __init__(self, config: ModelConfig, device: str) -> None:
        super().__init__()
        self.self_attn = Attention(config, device)
        self.mlp = Mlp(config, device)
        self.input_layernorm = _norm(config, device)
        self.post_attention_layernorm = _norm(config, device)
        self.in_training: Callable[[Tensor, Tensor, Tensor], Tensor] = self.transform
        """The function that takes the place of `transform` if a backward pass follows."""

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Add attention and MLP to the residual stream: [B, T, C] to [B, T, C]."""
        block = self.in_training if torch.is_grad_enabled() else self.transform
        return block(x_BTC, cos_TD, sin_TD)

    def transform(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Do the work of `forward` as it is written."""
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), cos_TD, sin_TD)
        return x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))

    def _recomputed(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        options = {"use_reentrant": False, "preserve_rng_state": False}  # Nothing here is random.
        return _repeated(self.transform, x_BTC, cos_TD, sin_TD, **options)

    def train_by(self, *, recompute: bool, compiled: bool) -> None:
        """Choose how training computes this block. `recompute`: only its input is kept for the
        backward pass. `compiled`: torch.compile translates it at its first call.

        Hooks of `fully_shard` stay outside of what is compiled or repeated.
        """
        block = self._recomputed if recompute else self.transform
        self.in_training = torch.compile(block, fullgraph=True) if compiled else block


class Backbone(nn.Module):
    """The model without its head. Its name in the state_dict is `model`."""

    rope_cos: Tensor
    rope_sin: Tensor

    def __init__(self, config: ModelConfig, device: str) -> None:
        super().__init__()
        embedding = nn.utils.skip_init(
            nn.Embedding, config.embeddings, config.hidden_size, device=device
        )
        self.embed_tokens = cast(nn.Embedding, embedding)
        self.layers = nn.ModuleList(DecoderLayer(config, device) for _ in range(config.layers))
        self.norm = _norm(config, device)
        cos_TD, sin_TD = _rope_tables(config)
        # Not persistent: these buffers follow the model to its device, but not into its state_dict.
        self.register_buffer("rope_cos", cos_TD, persistent=False)
        self.register_buffer("rope_sin", sin_TD, persistent=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Map tokens to hidden states: int64 [B, T] to [B, T, C]."""
        length = tokens_BT.shape[1]
        cos_TD, sin_TD = self.rope_cos[:length], self.rope_sin[:length]
        x_BTC = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC, cos_TD, sin_TD)
        return self.norm(x_BTC)


class Llama(nn.Module):
    """The language model. `build_model` makes one and initializes its parameters."""

    def __init__(self, config: ModelConfig, *, device: str = "cpu") -> None:
        """The parameters have no values yet; on the device "meta", no storage either: shard the
        model, then call `to_storage`."""
        super().__init__()
        self.config = config
        self.model = Backbone(config, device)
        self.lm_head = _linear(config.hidden_size, config.embeddings, device)
        self._tie()

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return next-token logits: int64 [B, T], T <= config.context, to fp32 [B, T, V]."""
        assert tokens_BT.shape[1] <= self.config.context, "longer than the model's context"
        return self.lm_head(self.model(tokens_BT))

    def train_by(self, *, recompute: bool, compiled: bool) -> None:
        """Choose how training computes the blocks, as `DecoderLayer.train_by` says."""
        for layer in self.model.layers:
            assert isinstance(layer, DecoderLayer)
            layer.train_by(recompute=recompute, compiled=compiled)

    def to_storage(self, device: torch.device) -> None:
        """Allocate the parameters on this device, without values."""
        self.to_empty(device=device)
        cos_TD, sin_TD = _rope_tables(self.config)
        self.model.rope_cos, self.model.rope_sin = cos_TD.to(device), sin_TD.to(device)
        self._tie()  # `to_empty` has made two of a parameter with two names.

    def _tie(self) -> None:
        if self.config.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight


def build_model(config: ModelConfig, *, seed: int) -> Llama:
    """Make a model on the CPU in fp32; equal seeds give equal bits with any number of threads.
    torch's global generator is not used."""
    model = Llama(config)
    parameters = dict(model.named_parameters())
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    values = SeededValues(config, shapes, seed=seed)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values.part(name, ()))
    return model


def next_token_loss(model: nn.Module, tokens_BT1: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per predicted token: a 0-d fp32 tensor with its graph.

    `tokens_BT1` is int64 [B, T + 1]: the first T tokens of each row are the input, and the last T
    the targets. `model` may be wrapped, if a call returns logits.
    """
    logits_BTV: Tensor = model(tokens_BT1[:, :-1])
    return F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT1[:, 1:].flatten())


def _linear(fan_in: int, fan_out: int, device: str) -> nn.Linear:
    # Not initialized: SeededValues are its values; torch's default would use the global generator.
    linear = nn.utils.skip_init(nn.Linear, fan_in, fan_out, bias=False, device=device)
    return cast(nn.Linear, linear)


def _norm(config: ModelConfig, device: str) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=config.norm_eps, device=device)


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
