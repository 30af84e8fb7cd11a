"""What Hugging Face's loaders read of the built-in model, without them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowcomm.exports.llama_files import byte_tokenizer, write_llama_files
from tests.lowcomm.exports.written_runs import MODEL


def test_the_configuration_has_the_sizes_of_the_model(tmp_path: Path) -> None:
    paths = write_llama_files(MODEL, tmp_path, byte_tokenizer())
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    config, generation = (read(tmp_path, name) for name in ("config", "generation_config"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    assert [config[key] for key in sizes] == [256, 32, 48, 2]
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert config["rope_parameters"]["rope_theta"] == config["rope_theta"] == MODEL.rope_theta
    assert config["max_position_embeddings"] == generation["max_length"] == MODEL.context


def test_the_tokenizer_numbers_bytes_by_their_values(tmp_path: Path) -> None:
    write_llama_files(MODEL, tmp_path, byte_tokenizer())
    vocabulary = read(tmp_path, "tokenizer")["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    # As in GPT-2: a visible character stands for itself, a space is U+0120, a line feed U+010A.
    known = {"a": 97, "~": 126, "\u00e9": 0xE9, "\u0120": 32, "\u010a": 10, "\u0100": 0}
    assert {symbol: vocabulary[symbol] for symbol in known} == known
    assert all(symbol.isprintable() and not symbol.isspace() for symbol in vocabulary)


def test_a_model_of_tokens_has_their_tokenizer_or_none(tmp_path: Path) -> None:
    write_llama_files(replace(MODEL, vocab_size=320), tmp_path, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
    ]
    assert read(tmp_path, "config")["vocab_size"] == 320
    write_llama_files(MODEL, tmp_path, {"version": "7"})
    assert read(tmp_path, "tokenizer") == {"version": "7"}


END = "<|endoftext|>"


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"added_tokens": [{"id": 7, "content": END}], "model": {"vocab": {"</s>": 2}}},
        {"added_tokens": [], "model": {"vocab": {"a": 0, END: 7}}},
        {"model": {"type": "Unigram", "vocab": [["a", -1.0]] * 7 + [[END, -2.0]]}},
    ],
)
def test_the_token_that_ended_documents_ends_a_text(
    tmp_path: Path, tokenizer: dict[str, Any]
) -> None:
    write_llama_files(replace(MODEL, vocab_size=320), tmp_path, tokenizer)
    assert read(tmp_path, "config")["eos_token_id"] == 7
    assert read(tmp_path, "generation_config")["eos_token_id"] == 7
    assert read(tmp_path, "tokenizer_config")["eos_token"] == END


def test_no_byte_ends_a_text(tmp_path: Path) -> None:
    write_llama_files(MODEL, tmp_path, byte_tokenizer())
    assert read(tmp_path, "config")["eos_token_id"] is None
    assert read(tmp_path, "tokenizer_config")["eos_token"] is None


def read(directory: Path, name: str) -> dict[str, Any]:
    return json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
