"""The command `lowcomm export`: the model of a run in a format of other programs.

Must NOT import anything slow: the command line imports this module before it listens.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lowcomm.exports.model_source import ModelSource


class Format(StrEnum):
    """Formats of an export."""

    HF = "hf"
    DCP = "dcp"


def export(
    directory: Annotated[
        Path, typer.Argument(help="The directory of a run, of one of its nodes or checkpoints.")
    ],
    out: Annotated[Path, typer.Argument(help="New or empty directory for the files.")],
    format_: Annotated[
        Format, typer.Option("--format", help="hf: for transformers; dcp: for torch.distributed.")
    ] = Format.HF,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="The run's tokenizer.json, if its node does not name it."),
    ] = None,
) -> None:
    """Write the model of a run for other programs.

    It is that of the newest complete checkpoint in DIRECTORY; of several nodes, of the one with
    most committed tokens. Values are fp32.

    hf: model.safetensors and, for the built-in model, config.json, generation_config.json and a
    tokenizer: `AutoModelForCausalLM.from_pretrained(OUT)` loads it. The model of a program of your
    own keeps the names of its parameters and buffers; add its config.json.

    dcp: `torch.distributed.checkpoint.load(model.state_dict(), checkpoint_id=OUT)` reads it into
    your model, plain or sharded.

    \b
    Examples:
      lowcomm export runs/demo demo-model
      lowcomm export runs/first/gpu1 model-dcp --format dcp
      lowcomm export runs/demo/alpha/checkpoints/round-000030 round-30
    """
    from lowcomm.exports.formats import new_directory, write_dcp, write_hf
    from lowcomm.exports.model_source import with_model

    def exported(source: "ModelSource") -> "ModelSource":
        if tokenizer is not None:
            source = source.with_tokenizer(tokenizer)
        with new_directory(out) as place:
            (write_hf if format_ is Format.HF else write_dcp)(source, place)
        return source

    source = with_model(directory, exported)
    print("\n".join(lines(source, out, format_)))  # noqa: T201


def lines(source: "ModelSource", out: Path, format_: Format) -> list[str]:
    """Lines for a person: the state that was exported, and how it is loaded."""
    from lowcomm.checkpoints.frozen_file import FROZEN
    from lowcomm.methods import RoundMethod

    anchor, run = source.cut.fragments[0], source.run
    unit = "step" if source.cut.arrays else "round"
    tensors = sum(map(len, source.layout))
    report = [f"passed over {why}" for why in source.skipped]
    report.append(
        f"{out}: {tensors} tensors of {unit} {anchor.version} of {source.node} (inner step "
        f"{anchor.inner_step:,}, {anchor.tokens:,} committed tokens)"
    )
    if run is not None and isinstance(run.method, RoundMethod) and not run.method.replicas_equal:
        report.append(f"each node of this run has its own model; this is that of {source.node}")
    if source.frozen is not None:
        report.append("with the tensors that the run does not train")
    elif source.missing:
        report.append(
            f"not complete: without {source.missing} tensors that the run does not train, since "
            f"their file ({FROZEN}) is not in the directory of {source.node}: take them from the "
            "model that the run began with"
        )
    if format_ is Format.DCP:
        report.append(
            "load it: torch.distributed.checkpoint.load(model.state_dict(), "
            f"checkpoint_id={str(out)!r})"
        )
    elif source.built_in is not None:
        report.append(f"load it: transformers.AutoModelForCausalLM.from_pretrained({str(out)!r})")
        if not source.tokens_are_bytes and source.tokenizer is None:
            report.append(
                "without a tokenizer: name that of the run's tokens with --tokenizer FILE"
            )
    else:
        report.append(
            "the model is not the built-in one: names of parameters and buffers are as in your "
            "program, a tied one has its first name only; for transformers add its config.json"
        )
    return report
