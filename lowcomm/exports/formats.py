"""Writes a model in the formats of other programs, into a directory that is complete or missing.

Must NOT choose a checkpoint (model_source.py).
"""

import json
import os
import shutil
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from lowcomm.checkpoints.checkpoint import MODEL
from lowcomm.exports.llama_files import byte_tokenizer, write_llama_files
from lowcomm.exports.model_source import ModelSource
from peers.storage import make_empty, sync
from protocols.types import ConfigError

INDEX = "model.safetensors.index.json"


@contextmanager
def new_directory(out: Path) -> Generator[Path]:
    """A hidden directory beside `out`, which becomes `out` at the end, synced; after an error it is
    gone. If `out` is a link, it stays, and its target is made. Raises ConfigError if `out` exists
    and is not empty, or cannot be replaced, and OSError."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty directory: give another name")
    place = out.resolve()
    if place == Path.cwd() or os.path.ismount(place):
        raise ConfigError(
            f"{out} is the working directory, or a disk is mounted there, so that no other can "
            f"take its place: give a new name, as in {out / 'model'}"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    hidden = place.with_name(f".{place.name}.writing")
    try:
        make_empty(hidden)
        yield hidden
        for path in (*hidden.iterdir(), hidden):
            sync(path)
        hidden.rename(place)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    sync(place.parent)


def write_hf(source: ModelSource, directory: Path) -> None:
    """Write safetensors files with the names that the model's parameters and buffers have; for the
    built-in model also its configuration and tokenizer. Raises OSError."""
    if source.built_in is not None:
        tokenizer = byte_tokenizer() if source.tokens_are_bytes else None
        if source.tokenizer is not None:
            tokenizer = json.loads(source.tokenizer.read_text(encoding="utf-8"))
        write_llama_files(source.built_in, directory, tokenizer)
    if len(source.files) == 1:
        shutil.copyfile(source.files[0], directory / MODEL)
        return
    where: dict[str, str] = {}
    total = 0
    for number, path in enumerate(source.files, 1):
        name = f"model-{number:05}-of-{len(source.files):05}.safetensors"
        shutil.copyfile(path, directory / name)
        names, size_bytes = _contents(directory / name)
        where |= dict.fromkeys(names, name)
        total += size_bytes
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_dcp(source: ModelSource, directory: Path) -> None:
    """Write a checkpoint of torch.distributed.checkpoint: `dcp.load` reads it into the `state_dict`
    of the model, sharded or not. Of a tied parameter of a user's own model only the first name is
    there. Raises OSError."""
    from safetensors import safe_open
    from torch import Tensor
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    tensors: dict[str, Tensor] = {}
    for path in source.files:
        # The files are mapped: no tensor is in memory before it is written.
        with cast(Any, safe_open)(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if source.built_in is not None and source.built_in.tied_embeddings:
        # A checkpoint has a tied parameter once, a state_dict has it under both names.
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # About the absence of other processes.
        try:
            cast(Any, checkpoint).save(tensors, checkpoint_id=directory, no_dist=True)
        except CheckpointException as error:  # A BaseException, around every other one.
            why = next(why for why, _ in error.failures.values())
            if isinstance(why, Exception) and not isinstance(why, OSError):
                # torch's writer raises RuntimeError if the disk refuses.
                raise OSError(f"cannot write {directory}: is the disk full? torch: {why}") from why
            raise why from None


def _contents(path: Path) -> tuple[list[str], int]:
    """Names of the tensors in a safetensors file, and the bytes of their values."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, object] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return list(header), path.stat().st_size - 8 - size
