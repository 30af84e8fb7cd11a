"""The parameters of the built-in model, without the model.

Must NOT import torch.
"""

from lowcomm.config.schema import ModelConfig


def llama_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its name, in the model's order; a tied output layer is the
    input embeddings, and not there."""
    hidden, inner = config.hidden_size, config.intermediate_size
    kv_size = config.kv_heads * (hidden // config.heads)
    layer = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.embeddings, hidden)}
    for number in range(config.layers):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.embeddings, hidden)
    return shapes
