"""A user's loop over the run's text, with the run's Llama in several forms: test_unlike.py starts
it.

unlike_train.py SHAPE

SHAPE: `whole` (one rank, the LlamaForCausalLM of Hugging Face), `tensors` (4 ranks, tensor
parallelism of 2 below FSDP2 of 2) or `stages` (2 ranks, a pipeline).
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name.
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import lowcomm
from lowcomm.config.schema import ModelConfig
from lowcomm.models import Llama, build_model, next_token_loss
from lowcomm.training.round_methods import ROUND_METHODS

COLUMNS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    *("mlp.gate_proj", "mlp.up_proj"),
)
ROWS = ("self_attn.o_proj", "mlp.down_proj")
PLAN: dict[str, ParallelStyle] = {
    **{f"model.layers.*.{name}": ColwiseParallel() for name in COLUMNS},
    **{f"model.layers.*.{name}": RowwiseParallel() for name in ROWS},
}
Backward = Callable[[Tensor], None]
"""Adds the gradients of some rows of tokens, int64 [B, T + 1]."""


def hugging_face(config: ModelConfig) -> tuple[nn.Module, Backward]:
    transformers: Any = import_module("transformers")
    sizes = transformers.LlamaConfig(
        vocab_size=config.embeddings,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.context,
        rms_norm_eps=config.norm_eps,
        rope_theta=config.rope_theta,
        tie_word_embeddings=config.tied_embeddings,
    )
    model = transformers.LlamaForCausalLM(sizes)

    def backward(tokens_BT1: Tensor) -> None:
        logits_BTV = model(tokens_BT1[:, :-1]).logits
        F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT1[:, 1:].flatten()).backward()

    return model, backward


def stage(model: Llama, rank: int) -> tuple[nn.Module, Backward]:
    """Half of the model's layers, under their names in the whole of it."""
    inner, half = model.model, len(model.model.layers) // 2
    numbers = range(half) if rank == 0 else range(half, 2 * half)
    layers = nn.ModuleDict({str(number): inner.layers[number] for number in numbers})
    inner.layers = cast("Any", layers)

    def through(x_BTC: Tensor) -> Tensor:
        length = x_BTC.shape[1]
        for layer in layers.values():
            x_BTC = layer(x_BTC, inner.rope_cos[:length], inner.rope_sin[:length])
        return x_BTC

    def first(tokens_BT1: Tensor) -> None:
        x_BTC = through(inner.embed_tokens(tokens_BT1[:, :-1]))
        dist.send(x_BTC.detach(), 1)
        grad_BTC = torch.empty_like(x_BTC)
        dist.recv(grad_BTC, 1)
        x_BTC.backward(grad_BTC)

    def last(tokens_BT1: Tensor) -> None:
        x_BTC = torch.empty(*tokens_BT1[:, 1:].shape, model.config.hidden_size)
        dist.recv(x_BTC, 0)
        logits_BTV = model.lm_head(inner.norm(through(x_BTC.requires_grad_())))
        F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT1[:, 1:].flatten()).backward()
        assert x_BTC.grad is not None
        dist.send(x_BTC.grad, 0)

    if rank == 0:
        del inner.norm, model.lm_head
        return model, first
    del inner.embed_tokens
    return model, last


def build(
    shape: str, config: ModelConfig, rank: int
) -> tuple[nn.Module, Backward, tuple[int, int]]:
    """This rank's model, its work, and its share of a batch."""
    if shape == "whole":
        return *hugging_face(config), (0, 1)
    model = build_model(config, seed=5)
    if shape == "stages":
        dist.init_process_group("gloo")
        return *stage(model, rank), (0, 1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensors"))
    parallelize_module(model, mesh["tensors"], PLAN)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh["data"])

    def backward(tokens_BT1: Tensor) -> None:
        next_token_loss(model, tokens_BT1).backward()

    return model, backward, (mesh["data"].get_local_rank(), 2)


def main(shape: str) -> None:
    peer = lowcomm.attach()
    run = peer.run
    model, backward, share = build(shape, run.model, peer.rank)
    # Tensors on several meshes have no step in one call.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002, foreach=False)
    method = ROUND_METHODS[run.method.name](model, optimizer, peer)
    for tokens_BT1 in peer.batches(share=share):
        backward(tokens_BT1)
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
