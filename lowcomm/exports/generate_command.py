"""The command `lowcomm generate`: the built-in model of a run continues a text.

Must NOT import anything slow: the command line imports this module before it listens.
"""

import codecs
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from protocols.types import ConfigError

if TYPE_CHECKING:
    from lowcomm.exports.model_source import ModelSource
    from lowcomm.models.llama import Llama


def generate(
    directory: Annotated[
        Path, typer.Argument(help="The directory of a run, of one of its nodes or checkpoints.")
    ],
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="The beginning.")] = "",
    length: Annotated[int, typer.Option("--length", help="Tokens to write after it.")] = 200,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            help="0: always the likeliest token.",
            show_default="that of a run's samples",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draws.")] = 0,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="The run's tokenizer.json, if its node does not name it."),
    ] = None,
) -> None:
    """Let the built-in model of a run continue a text.

    The model is that of the newest complete checkpoint in DIRECTORY; the run may go on meanwhile.
    The text appears token by token. Equal arguments give equal texts.

    \b
    Examples:
      lowcomm generate runs/demo --prompt "def main("
      lowcomm generate runs/demo/alpha --prompt "import " --temperature 0.5
      lowcomm generate runs/demo/alpha/checkpoints/round-000030 --seed 7
    """
    from lowcomm.config.schema import SAMPLE_TEMPERATURE

    temperature = SAMPLE_TEMPERATURE if temperature is None else temperature
    if length < 1:
        raise ConfigError(f"--length must be positive, got {length}")
    if not 0 <= temperature < float("inf"):
        raise ConfigError(f"--temperature must be at least 0, got {temperature}")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"--seed must be in [0, 2**63), got {seed}")
    from lowcomm.exports.model_source import with_model

    def loaded(source: "ModelSource") -> "tuple[Llama, Path | None]":
        if source.built_in is None:
            raise ConfigError(
                f"{source.path} has not the built-in model, but one of a program of your own: load "
                f"it there; `lowcomm export {source.path} OUT` writes it"
            )
        if tokenizer is not None:
            source = source.with_tokenizer(tokenizer)
        if source.tokenizer is None and not source.tokens_are_bytes:
            raise ConfigError(
                "the run's tokens are not bytes: name its tokenizer.json by --tokenizer"
            )
        return load_built_in(source), source.tokenizer

    model, path = with_model(directory, loaded)
    options = {"tokens": length, "seed": seed}
    if path is None:
        _continue_bytes(model, prompt, temperature, options)
    else:
        _continue_tokens(model, path, prompt, temperature, options)
    print()  # noqa: T201


def _continue_bytes(
    model: "Llama", prompt: str, temperature: float, options: Mapping[str, int]
) -> None:
    from lowcomm.program.evaluate import generated

    given = prompt.encode(errors="surrogateescape")
    show(given)
    show(generated(model, given, temperature=temperature, **options))


def _continue_tokens(
    model: "Llama", tokenizer: Path, prompt: str, temperature: float, options: Mapping[str, int]
) -> None:
    from lowcomm.data.tokenizer import Tokenizer
    from lowcomm.program.evaluate import generated

    made = Tokenizer(str(tokenizer))
    # An argument that is no UTF-8 has surrogates, which the package does not take.
    text = prompt.encode(errors="surrogateescape").decode(errors="replace")
    tokens = made.encode([text])[0]
    values = min(made.vocab_size, model.config.embeddings)
    drawn = generated(model, [*tokens], temperature=temperature, values=values, **options)

    def texts() -> Iterator[str]:
        yield made.text_of(tokens)
        for token in drawn:
            tokens.append(token)
            yield made.text_of(tokens)

    show_growing(texts())


def load_built_in(source: "ModelSource") -> "Llama":
    """The built-in model with the parameters of a checkpoint, fp32, on the CPU."""
    import torch
    from safetensors import safe_open

    from lowcomm.checkpoints.checkpoint import MODEL
    from lowcomm.models.llama import Llama

    assert source.built_in is not None
    model = Llama(source.built_in)
    with torch.no_grad(), cast(Any, safe_open)(source.path / MODEL, framework="pt") as file:
        for name, parameter in model.named_parameters():
            parameter.copy_(file.get_tensor(name))
    return model


def show_growing(texts: Iterable[str]) -> None:
    """Write a text to the standard output while it grows. Each of `texts` is the whole text so far;
    at its end there is U+FFFD in place of a character that may need further tokens.

    Control characters become question marks, as with `show`.
    """
    from lowcomm.reports.timeline import printable

    text, shown = "", 0
    for text in texts:
        end = len(text.rstrip("\ufffd"))
        sys.stdout.write(printable(text[shown:end], keep="\n\t"))
        sys.stdout.flush()
        shown = max(shown, end)
    sys.stdout.write(printable(text[shown:], keep="\n\t"))


def show(text: Iterable[int]) -> None:
    """Write bytes to the standard output as UTF-8, each character as soon as it is complete.

    Bytes that are not UTF-8 become U+FFFD, and control characters, which could confuse a terminal,
    question marks.
    """
    from lowcomm.reports.timeline import printable

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for byte in text:
        sys.stdout.write(printable(decoder.decode(bytes((byte,))), keep="\n\t"))
        sys.stdout.flush()
    sys.stdout.write(printable(decoder.decode(b"", final=True), keep="\n\t"))
