"""A job of torchtitan with the model of test_unlike.py, for `--config unlike_titan.job`.

As a program it prints how far the logits of its model are from those of the built-in one with the
same values, as one JSON object. Must NOT judge them: the test does.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from lowcomm.config.schema import ModelConfig
from lowcomm.integrations.hf_names import hf_names
from lowcomm.models import build_model
from lowcomm.tensors import node_shards, read_shards, write_shards

SIZES = ModelConfig(layers=2, hidden_size=64, heads=4, kv_heads=2, intermediate_size=172)
"""Those of test_unlike.py."""


def job() -> Any:
    made = import_module("small").debugmodel()
    made.model_spec = replace(made.model_spec, flavor="unlike", model=model())
    made.dataloader.dataset = "run"
    made.training.local_batch_size, made.training.global_batch_size = 3, 6
    return made


def model() -> Any:
    llama3: Any = import_module("torchtitan.models.llama3")
    width, tokens = SIZES.hidden_size, SIZES.embeddings
    normal: Any = {"weight": partial(nn.init.normal_, std=0.1)}
    norm = llama3.RMSNorm.Config(normalized_shape=width, param_init={"weight": nn.init.ones_})
    rope = llama3.ComplexRoPE.Config(
        dim=width // SIZES.heads, max_seq_len=SIZES.context, theta=SIZES.rope_theta
    )
    return llama3.Llama3Model.Config(
        dim=width,
        vocab_size=tokens,
        tok_embeddings=llama3.Embedding.Config(
            num_embeddings=tokens, embedding_dim=width, param_init=normal
        ),
        norm=norm,
        lm_head=llama3.Linear.Config(in_features=width, out_features=tokens, param_init=normal),
        layers=llama3._build_llama3_layers(
            n_layers=SIZES.layers,
            dim=width,
            n_heads=SIZES.heads,
            n_kv_heads=SIZES.kv_heads,
            hidden_dim=SIZES.intermediate_size,
            rope=rope,
            attn_backend="flex",
        ),
    )


def main() -> None:
    import_module("on_cpu")
    adapter: Any = import_module("torchtitan.models.llama3").Llama3StateDictAdapter
    config, built_in = model(), build_model(SIZES, seed=1)
    with torch.device("meta"):
        whole = config.build()
    names = hf_names(whole, adapter(config, None))
    theirs = config.build()
    theirs.init_states()
    ours, parts = node_shards(built_in, rank=0), node_shards(theirs, rank=0, names=names)
    values = memoryview(bytearray(4 * sum(shard.elements for shard in ours.shards)))
    write_shards(ours.shards, values)
    read_shards(parts.shards, values, "full")
    tokens_BT = torch.randint(SIZES.embeddings, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits_BTV = built_in(tokens_BT)
        difference = (theirs(tokens_BT) - logits_BTV).abs().max().item()
    found = {
        "names": names is not None,
        "same_layout": ours.layout == parts.layout,
        "difference": difference,
        "largest": logits_BTV.abs().max().item(),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
