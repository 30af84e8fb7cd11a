"""The built-in model as Hugging Face's LlamaForCausalLM: its configuration and its tokenizer.

Names and shapes of the parameters are the same already. Must NOT import torch or transformers, nor
read a checkpoint.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowcomm.config.schema import BYTE_VALUES, SAMPLE_TEMPERATURE, ModelConfig
from lowcomm.data.tokenizer import ENDS

_ANY_TEXT = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def write_llama_files(
    config: ModelConfig, directory: Path, tokenizer: Mapping[str, Any] | None
) -> list[Path]:
    """Write config.json and generation_config.json, and for a `tokenizer` (the content of
    tokenizer.json) its two files; return their paths. Raises OSError."""
    end, end_id = (None, None) if tokenizer is None else _end_of(tokenizer)
    files: dict[str, Mapping[str, object]] = {
        "config.json": _config(config, end_id),
        "generation_config.json": {
            "do_sample": True,
            "temperature": SAMPLE_TEMPERATURE,
            "max_length": config.context,
            "eos_token_id": end_id,
        },
    }
    if tokenizer is not None:
        files["tokenizer.json"] = tokenizer
        files["tokenizer_config.json"] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.context,
            "clean_up_tokenization_spaces": False,
            "eos_token": end,
        }
    paths: list[Path] = []
    for name, content in files.items():
        paths.append(directory / name)
        paths[-1].write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return paths


def _end_of(tokenizer: Mapping[str, Any]) -> tuple[str, int] | tuple[None, None]:
    """Text and number of the token that ends a document, as lowcomm/data/tokenizer.py chooses it;
    bytes have none."""
    model = tokenizer.get("model", {})
    known: dict[str, int] = {}
    if model.get("type") == "Unigram":  # Its vocabulary has pairs of a text and a score.
        known |= {text: number for number, (text, _) in enumerate(model["vocab"])}
    else:
        known |= model.get("vocab", {})
    known |= {each["content"]: each["id"] for each in tokenizer.get("added_tokens", ())}
    return next(((text, known[text]) for text in ENDS if text in known), (None, None))


def _config(config: ModelConfig, end_id: int | None) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.embeddings,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.hidden_size // config.heads,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        # transformers 5 reads the second, earlier versions the first.
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "torch_dtype": "float32",
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": end_id,
        "pad_token_id": None,
    }


def byte_tokenizer() -> dict[str, object]:
    """Every byte is a token, and its number is the byte's value: a byte-level BPE without merges.
    The format has one printable character for each byte."""
    vocabulary = {symbol: value for value, symbol in enumerate(_byte_symbols())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **_ANY_TEXT},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **_ANY_TEXT},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _byte_symbols() -> list[str]:
    """The character that stands for each byte, as in GPT-2: its own, if that is visible in Latin-1;
    the others in their order from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(BYTE_VALUES)]
