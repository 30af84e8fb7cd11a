"""Builds the corpus of a run from files: training text, held-out text, and the digest of both.

Writes `train.bin`, `held_out.bin` and `manifest.json` into a directory of the node; two processes
must not build in the same directory. All peers must have equal digests. Must NOT import torch (the
daemon builds the corpus), nor divide the text into samples (batches.py).
"""

import hashlib
import json
import os
import stat
import sysconfig
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lowcomm.config.schema import DataConfig
from protocols.types import ConfigError

TRAIN = "train.bin"
HELD_OUT = "held_out.bin"
MANIFEST = "manifest.json"
STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
"""Directories that differ between installations of one Python version, or contain mostly tables."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file of the corpus."""

    path: str
    """Path relative to the folder of the corpus, with forward slashes."""
    size_bytes: int
    sha256: str
    """64 hex digits."""


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    status: os.stat_result


@dataclass(frozen=True, slots=True)
class Corpus:
    """A built corpus as memory maps: a page is read when a window touches it."""

    train: NDArray[np.uint8]
    """[train bytes], read-only."""
    held_out: NDArray[np.uint8]
    """[held-out bytes], read-only."""
    digest: str
    """64 hex digits of a hash of the manifest; equal digests mean equal bytes in equal order."""

    @classmethod
    def open(cls, directory: Path) -> "Corpus":
        """Map the corpus that `build_corpus` wrote into `directory`. Raises ConfigError if it is
        not complete."""
        recorded = _read_manifest(directory)
        if recorded is None:
            raise ConfigError(f"no complete corpus in {directory}: start the node to build it")
        return cls(
            np.memmap(directory / TRAIN, dtype=np.uint8, mode="r"),
            np.memmap(directory / HELD_OUT, dtype=np.uint8, mode="r"),
            recorded["digest"],
        )


def build_corpus(config: DataConfig, *, folder: str, directory: Path) -> Corpus:
    """Build the corpus in `directory`, or reuse the corpus there if no source file has changed.

    `folder` is `[node] corpus`; only the source "files" reads it. If the path, size or times of a
    file have changed, all files are read again, each whole into memory. Raises ConfigError if the
    folder is missing, unreadable, or has too little text.
    """
    root = _root(config, folder, directory)
    try:
        found = sorted(_walk(root, config), key=lambda one: one.path)
        seen = _seen_digest(root, config, found)
        recorded = _read_manifest(directory)
        if recorded is None or recorded["seen"] != seen:
            recorded = _write(root, found, config, directory=directory, seen=seen)
    except OSError as error:
        raise ConfigError(f"cannot build the corpus of {root} in {directory}: {error}") from error
    _check_length(recorded, config, root)
    return Corpus.open(directory)


def manifest_digest(files: Sequence[ManifestFile]) -> str:
    """Return 64 hex digits: SHA-256 of `[[path, size, sha256], ...]` as compact ASCII JSON."""
    rows = [[file.path, file.size_bytes, file.sha256] for file in files]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode("ascii")).hexdigest()


def is_held_out(sha256: str, held_out_below: int) -> bool:
    """True if a file with this SHA-256 (64 hex digits) is held out; only its bytes decide."""
    return int(sha256[:2], 16) < held_out_below


def _root(config: DataConfig, folder: str, directory: Path) -> Path:
    if config.source != "files":
        return Path(sysconfig.get_path("stdlib")).resolve()
    if not folder:
        raise ConfigError(
            'run.data.source is "files": set node.corpus to a folder of text files on this node'
        )
    root = Path(folder).resolve()
    if not root.is_dir():
        raise ConfigError(f"node.corpus: {root} is not a folder: set it to one with text files")
    if directory.resolve().is_relative_to(root):
        # The node would read its own files, and no two nodes would agree on the digest.
        raise ConfigError(
            f"node.corpus: {root} holds this node's own directory {directory}: "
            "set node.directory to a place outside"
        )
    return root


def _walk(root: Path, config: DataConfig) -> Iterator[_Found]:
    """Yield the regular files below `root`. Links are not followed: they may lead outside."""
    stdlib = config.source != "files"
    for folder, subfolders, names in os.walk(root, onerror=_reraise):
        if stdlib:
            subfolders[:] = [name for name in subfolders if name not in STDLIB_SKIPPED]
        for name in names:
            if stdlib and not name.endswith(".py"):
                continue
            path = Path(folder, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield _Found(path.relative_to(root).as_posix(), status)


def _reraise(error: OSError) -> None:
    raise error  # os.walk would skip an unreadable folder, and the digest would differ.


def _seen_digest(root: Path, config: DataConfig, found: Sequence[_Found]) -> str:
    """Return a digest that changes with the source, a rule, or the path, size or times of a file.
    To compute it, no file is read."""
    rows = [
        [one.path, one.status.st_size, one.status.st_mtime_ns, one.status.st_ctime_ns]
        for one in found
    ]
    text = json.dumps([str(root), config.source, config.held_out_below, rows])
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _write(
    root: Path, found: Sequence[_Found], config: DataConfig, *, directory: Path, seen: str
) -> dict[str, Any]:
    directory.mkdir(parents=True, exist_ok=True)
    # Removed first and written last: if there is a manifest, its bytes are complete.
    (directory / MANIFEST).unlink(missing_ok=True)
    files: list[ManifestFile] = []
    with _replacement(directory / TRAIN) as train, _replacement(directory / HELD_OUT) as held_out:
        for one in found:
            content = (root / one.path).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            files.append(ManifestFile(one.path, len(content), sha256))
            (held_out if is_held_out(sha256, config.held_out_below) else train).write(content)
        sizes = {"train_bytes": train.tell(), "held_out_bytes": held_out.tell()}
    manifest = {
        "digest": manifest_digest(files),
        "seen": seen,
        **sizes,
        "files": [[file.path, file.size_bytes, file.sha256] for file in files],
    }
    with _replacement(directory / MANIFEST) as out:
        out.write(json.dumps(manifest, indent=0).encode("ascii"))
    return manifest


def _check_length(recorded: dict[str, Any], config: DataConfig, root: Path) -> None:
    sample = config.window + 1  # The last token needs a target.
    if recorded["train_bytes"] < sample:
        raise ConfigError(
            f"{root} has {recorded['train_bytes']} bytes to train on in {len(recorded['files'])} "
            f"files, but one sample takes {sample}: name a folder with more text"
        )
    needed = config.eval_window + 1
    if recorded["held_out_bytes"] < needed:
        raise ConfigError(
            f"{root} has {recorded['held_out_bytes']} held-out bytes in {len(recorded['files'])} "
            f"files, but one evaluation window takes {needed}: add files or raise "
            f"run.data.held_out_below ({config.held_out_below} of 256)"
        )


@contextmanager
def _replacement(path: Path) -> Generator[BinaryIO, None, None]:
    """Write a file that gets its name once it is complete and on disk; a failure leaves none."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):  # It has been renamed.
            os.unlink(temporary)


def _read_manifest(directory: Path) -> dict[str, Any] | None:
    """Return the manifest, if it and the two files that it describes are complete; else None."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        recorded: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
        sizes = (recorded["train_bytes"], recorded["held_out_bytes"])
        on_disk = ((directory / TRAIN).stat().st_size, (directory / HELD_OUT).stat().st_size)
        whole = sizes == on_disk and min(sizes) > 0  # An empty file cannot be mapped.
        if whole and all(isinstance(recorded[key], str) for key in ("digest", "seen")):
            return recorded
    return None
