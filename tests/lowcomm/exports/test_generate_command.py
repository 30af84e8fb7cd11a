"""The command `lowcomm generate`, without daemons."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from lowcomm.config.schema import DataConfig, RunConfig
from lowcomm.data.tokenizer import train_bpe
from lowcomm.exports.generate_command import generate, load_built_in, show, show_growing
from lowcomm.exports.model_source import find_model
from lowcomm.models.shapes import llama_shapes
from protocols.types.errors import ConfigError
from tests.lowcomm.exports.written_runs import MODEL, Written, built_in, write_node


def test_it_continues_the_prompt_and_repeats_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_node(tmp_path / "alpha", built_in())
    texts: list[str] = []
    for seed in (1, 1, 2):
        generate(tmp_path / "alpha", prompt="def f(", length=30, temperature=0.8, seed=seed)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("def f(") and text.endswith("\n") for text in texts)


def test_a_checkpoint_that_is_deleted_meanwhile_is_replaced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = write_node(tmp_path / "alpha", built_in(), (3, 6))
    opened = safetensors.safe_open

    def open_(path: Path, **options: Any) -> Any:
        shutil.rmtree(newest, ignore_errors=True)
        return opened(path, **options)

    monkeypatch.setattr(safetensors, "safe_open", open_)
    generate(tmp_path / "alpha", prompt="x", length=3, temperature=0.0, seed=0)
    assert not newest.exists()
    assert capsys.readouterr().out.startswith("x")


@pytest.mark.parametrize("tied", [False, True])
def test_the_model_is_that_of_the_checkpoint(tmp_path: Path, *, tied: bool) -> None:
    write_node(tmp_path / "alpha", built_in(replace(MODEL, tied_embeddings=tied)))
    source = find_model(tmp_path / "alpha")
    model = load_built_in(source)
    for name, expected in safetensors.torch.load_file(source.files[0]).items():
        assert torch.equal(model.get_parameter(name), expected)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_only_whole_characters_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show("\u00e9\u20ac\n".encode() + b"\xff\x1b[2J\xe2\x82")
    assert capsys.readouterr().out == "\u00e9\u20ac\n\ufffd?[2J\ufffd"


def test_a_growing_text_ends_with_what_never_became_a_character(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_growing(["a", "a\ufffd", "a\u20ac", "a\u20ac\x1b", "a\u20ac\x1bb\ufffd\ufffd"])
    assert capsys.readouterr().out == "a\u20ac?b\ufffd\ufffd"
    show_growing([])
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"length": 0}, "--length must be positive"),
        ({"temperature": -1.0}, "--temperature must be at least 0"),
        ({"temperature": float("nan")}, "--temperature must be at least 0"),
        ({"seed": -1}, "--seed must be in"),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, wrong: dict[str, float], words: str) -> None:
    given = {"length": 5, "temperature": 0.8, "seed": 0, **wrong}
    with pytest.raises(ConfigError, match=words):
        generate(tmp_path, prompt="", **given)  # pyright: ignore[reportArgumentType]


def test_tokens_that_are_not_bytes_need_their_tokenizer(tmp_path: Path) -> None:
    run = RunConfig(model=replace(MODEL, vocab_size=320), data=DataConfig(source="tokens"))
    written = Written(run=run, shapes=llama_shapes(run.model))
    write_node(tmp_path / "alpha", written)
    with pytest.raises(ConfigError, match=r"tokens are not bytes: name its tokenizer\.json"):
        generate(tmp_path / "alpha", prompt="x", length=5, temperature=0.8, seed=0)


@pytest.mark.long  # Needs the package tokenizers.
def test_a_text_of_tokens_appears_as_they_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.json"
    made = train_bpe(["def f(x): return x\n"] * 9, vocab_size=270, out=path)
    model, data = replace(MODEL, vocab_size=made.vocab_size), DataConfig(tokenizer=made.fingerprint)
    run = RunConfig(model=model, data=data)
    write_node(tmp_path / "alpha", Written(run=run, shapes=llama_shapes(model)))
    given = {"prompt": "def f(", "length": 20, "temperature": 0.0, "seed": 0}
    generate(tmp_path / "alpha", **given, tokenizer=path)  # pyright: ignore[reportArgumentType]
    text = capsys.readouterr().out
    assert text.startswith("def f(")
    assert text.endswith("\n")
    assert len(text) >= len("def f(") + 20, "20 tokens of a byte or more"
    given["prompt"] = "x\udcff"  # An argument of the command line that is no UTF-8.
    generate(tmp_path / "alpha", **given, tokenizer=path)  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().out.startswith("x\ufffd")


def test_the_model_of_a_program_cannot_be_run(tmp_path: Path) -> None:
    write_node(tmp_path / "alpha", replace(built_in(), command=("python", "train.py")))
    with pytest.raises(ConfigError, match="one of a program of your own: load it there"):
        generate(tmp_path / "alpha", prompt="", length=5, temperature=0.8, seed=0)
