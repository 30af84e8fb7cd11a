"""The checkpoint from which a model is taken, and what is known of the model.

Must NOT import torch, nor change a file.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    CUT,
    LOG,
    MODEL,
    CheckpointCut,
    inspect_checkpoint,
    newest_checkpoint,
    read_cut,
    read_log,
)
from lowcomm.checkpoints.frozen_file import FROZEN
from lowcomm.checkpoints.tensor_files import CheckpointError, Layout
from lowcomm.config.schema import ModelConfig, RunConfig, run_from_json
from lowcomm.data.tokenizer import fingerprint_of
from lowcomm.models.shapes import llama_shapes
from lowcomm.startup.identity import NodeRecord, node_directories, read_record, recorded_config
from protocols.messages import Run
from protocols.types import ConfigError
from protocols.wire import decode_image, split_layout, unpack_frozen

TRIES = 3
"""Checkpoints that `with_model` takes, one after the other."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A complete checkpoint, and its model."""

    path: Path
    cut: CheckpointCut
    layout: Layout
    run: RunConfig | None
    """None: it is neither in the checkpoint nor in the node's directory."""
    node: str
    """Name of the node that wrote the checkpoint."""
    frozen: Path | None
    """The file of the tensors that no node trains, if the node has one."""
    built_in: ModelConfig | None
    """Configuration of the built-in model; None: the model of a user's own program."""
    missing: int = 0
    """Number of tensors that no node trains and of which there is no file: the ranks had no room
    for it, or the checkpoint is a copy without it. The model is not complete."""
    tokenizer: Path | None = None
    """The tokenizer.json of the run, if its tokens are not bytes and the file is known."""
    skipped: tuple[str, ...] = ()
    """One line about each newer checkpoint that is not complete."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The safetensors files with all tensors of the model."""
        weights = self.path / MODEL
        return (weights,) if self.frozen is None else (weights, self.frozen)

    @property
    def tokens_are_bytes(self) -> bool:
        run = self.run
        return run is None or run.data.tokens_are_bytes

    def with_tokenizer(self, path: Path) -> "ModelSource":
        """With this tokenizer.json. Raises ConfigError if it cannot be read, or is not that of the
        run's text."""
        if why := self.tokenizer_misfit(path):
            raise ConfigError(f"--tokenizer: {why}")
        return replace(self, tokenizer=path)

    def tokenizer_misfit(self, path: Path) -> str:
        """The reason why this tokenizer.json cannot be that of the run's tokens; empty: it can."""
        try:
            found = fingerprint_of(path.read_bytes())
        except (OSError, ValueError) as error:
            return f"cannot read {path}: {error}"
        data = self.run.data if self.run is not None else None
        wanted = data.tokenizer if data is not None else ""
        if self.tokens_are_bytes:
            return f"{path} is not the run's tokenizer, which has none: its tokens are bytes"
        if wanted not in ("", found):
            return f"{path} is not the run's tokenizer, which has another one"
        return ""


def find_model(directory: Path) -> ModelSource:
    """The model of the checkpoint in `directory`; or of the newest complete one of a node; or, in
    the directory of a run, of the one with most committed tokens. Reads every byte of it.

    Raises ConfigError if there is none, and CheckpointError if the given one is not complete.
    """
    if (directory / CUT).exists():
        return _described(directory, ())
    found: list[Path] = []
    skipped: list[str] = []
    nodes = node_directories(directory)
    for node in nodes:
        path, reasons = newest_checkpoint(node / CHECKPOINTS)
        skipped += [f"{node.name}: {why}" for why in reasons]
        found += [path] if path is not None else []
    if not found:
        why = f" ({'; '.join(skipped)})" if skipped else ""
        raise ConfigError(
            f"{directory} has no complete checkpoint{why}: if the node runs, let it write one with "
            f"`lowcomm checkpoint {nodes[0]}`"
        )
    return _described(max(found, key=_progress), tuple(skipped))


def with_model(directory: Path, use: Callable[[ModelSource], T]) -> T:
    """The result of `use` on the model of `find_model`. While a node runs, a checkpoint that is
    being read may become too old and be deleted: then `use` is called again, with the next one.
    Raises as both do."""
    for left in reversed(range(TRIES)):
        try:
            return use(find_model(directory))
        except (FileNotFoundError, CheckpointError):
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _progress(path: Path) -> tuple[int, int]:
    """Committed tokens and round of a checkpoint. Of branches the one with more tokens stays."""
    cut = read_cut(path)
    return cut.fragments[0].tokens, cut.round


def _described(path: Path, skipped: tuple[str, ...]) -> ModelSource:
    cut, layout = inspect_checkpoint(path)
    node = path.absolute().parent.parent
    record = read_record(node)
    logged = _logged_run(path)
    run = _run_of(logged, node, record)
    frozen = node / FROZEN
    found = ModelSource(
        path=path,
        cut=cut,
        layout=layout,
        run=run,
        node=record.name if record is not None else cut.own.peer.partition(".")[0],
        frozen=frozen if frozen.exists() else None,
        missing=0 if frozen.exists() or logged is None else _frozen_tensors(logged),
        built_in=_built_in(layout, run, record),
        skipped=skipped,
    )
    configured = recorded_config(node).node.tokenizer if record is not None else ""
    own = Path(os.path.expanduser(configured))
    # The file may have changed since: then it is not known, and --tokenizer may name another.
    if configured and not found.tokenizer_misfit(own):
        return replace(found, tokenizer=own)
    return found


def _logged_run(path: Path) -> Run | None:
    """The entry of the run in the log of the checkpoint, if it has one."""
    if not (path / LOG).exists():
        return None
    snapshot, _ = read_log(path)
    return decode_image(snapshot.image).run


def _frozen_tensors(logged: Run) -> int:
    _, frozen = split_layout(logged.layout)
    return len(unpack_frozen(frozen))


def _run_of(logged: Run | None, node: Path, record: NodeRecord | None) -> RunConfig | None:
    """The `[run]` that is in the log of the checkpoint, else that of the node's own file."""
    if logged is not None:
        return run_from_json(logged.run_json)
    return recorded_config(node).run if record is not None else None


def _built_in(
    layout: Layout, run: RunConfig | None, record: NodeRecord | None
) -> ModelConfig | None:
    """The built-in model's configuration. A program of a user's own may train a model with tensors
    of the same names and shapes, which is another one all the same."""
    if run is None or not run.data.has_corpus or (record is not None and record.command):
        return None
    shapes = {name: shape for entries in layout for name, shape, _ in entries}
    return run.model if shapes == llama_shapes(run.model) else None
