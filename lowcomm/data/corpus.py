"""Builds the corpus of a run from files: tokens to train on, held-out tokens, their digest.

Text goes into `train.bin` and `held_out.bin` in a directory of the node, as bytes or as tokens.
Shards of tokens stay where they are. `manifest.json` in that directory says where all tokens are;
two processes must not build in the same directory. All peers must have equal digests. Must NOT
import torch (the daemon builds the corpus), nor divide tokens into samples (batches.py).
"""

import hashlib
import json
import os
import stat
import sysconfig
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from lowcomm.config.schema import BYTE_VALUES, DataConfig
from lowcomm.data.build_progress import BuildProgress
from lowcomm.data.documents import documents, is_lines, is_plain, is_text
from lowcomm.data.manifest import ManifestFile, manifest_digest
from lowcomm.data.streamed_rows import StreamedRows
from lowcomm.data.token_shards import (
    ShardedTokens,
    TokenArray,
    TokenFile,
    divide,
    find_shards,
    fingerprint,
    is_named_held_out,
    read_shard,
)
from lowcomm.data.tokenizer import Tokenizer, TokenWriter, pieces
from protocols.types import ConfigError

TRAIN = "train.bin"
HELD_OUT = "held_out.bin"
MANIFEST = "manifest.json"
FILES = (TRAIN, HELD_OUT, MANIFEST)
BYTES = "uint8"
"""Type of the tokens of a text without a tokenizer."""
ENCODED = "output of the package tokenizers"
"""Stands in the list of files for the tokens that were made of them: another version of the package
may make other ones."""
STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
"""Directories that differ between installations of one Python version, or contain mostly tables."""
VOCAB_MULTIPLE = 64
"""The number of token values of shards is a multiple of it: matrices of such sizes are fast."""
HASHED_BYTES = 1 << 24
"""Bytes of a file that are hashed at a time."""


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    """Relative to the folder of the corpus, with forward slashes."""
    status: os.stat_result


@dataclass(frozen=True, slots=True)
class _Place:
    root: Path
    """What paths are relative to; of a dataset of the Hub its name."""
    folder: Path | None
    """The node's own directory must not be in it."""
    find: Callable[[], list[_Found]]
    """Look at all files. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A built corpus as memory maps: a page is read when a window touches it."""

    train: TokenArray
    """Read-only. If tokens are bytes, a uint8 array."""
    held_out: TokenArray
    digest: str
    """64 hex digits of a hash of the manifest; equal digests mean equal tokens in equal order (of
    large shards: equal samples of them)."""
    files: tuple[ManifestFile, ...] = ()
    skipped: int = 0
    """Number of files in the folder that are no text."""

    @classmethod
    def open(cls, directory: Path, *, vocab_size: int = 0) -> "Corpus":
        """Map the corpus that `build_corpus` wrote into `directory`. A token of at least
        `vocab_size` is an error when it is read; 0: none is. Raises ConfigError if the corpus is
        not complete."""
        recorded = _read_manifest(directory)
        if recorded is None:
            raise ConfigError(f"no complete corpus in {directory}: start the node to build it")

        def tokens(files: Sequence[TokenFile]) -> TokenArray:
            if files[0].type == BYTES:
                return files[0].map()
            return ShardedTokens(files, vocab_size=vocab_size)

        return cls(
            tokens(recorded.train),
            tokens(recorded.held_out),
            recorded.digest,
            files=tuple(recorded.files),
            skipped=recorded.skipped,
        )

    def vocab_size(self, progress: BuildProgress) -> int:
        """The number of token values: 256 if tokens are bytes, otherwise the number up to the
        largest token, rounded up to a multiple of VOCAB_MULTIPLE; then it reads all tokens. Raises
        BuildStoppedError."""
        sides = [side for side in (self.train, self.held_out) if isinstance(side, ShardedTokens)]
        if not sides:
            return BYTE_VALUES
        values = 1 + max(side.largest(progress) for side in sides)
        return -(-values // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """The content of manifest.json."""

    digest: str
    seen: str = ""
    files: Sequence[ManifestFile]
    train: Sequence[TokenFile]
    held_out: Sequence[TokenFile]
    skipped: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of tokens to train on, and of held-out ones."""
        return sum(x.tokens for x in self.train), sum(x.tokens for x in self.held_out)

    def write(self, path: Path) -> None:
        record = {
            "digest": self.digest,
            "seen": self.seen,
            "skipped": self.skipped,
            "train": [astuple(file) for file in self.train],
            "held_out": [astuple(file) for file in self.held_out],
            "files": [astuple(file) for file in self.files],
        }
        with _replacement(path) as out:
            out.write(json.dumps(record, indent=0).encode("ascii"))


def build_corpus(
    config: DataConfig,
    *,
    folder: str,
    directory: Path,
    tokenizer: Tokenizer | None = None,
    progress: BuildProgress | None = None,
) -> Corpus:
    """Build the corpus in `directory`, or reuse the corpus there if no source file has changed.

    `folder` is `[node] corpus`; the source "stdlib" does not read it. If the path, size or times of
    a file have changed, all files are read again: each text whole into memory, JSON lines line by
    line. A dataset of the Hub is read again only if the configuration names another one. Raises
    ConfigError if the folder is missing, unreadable, or has too few tokens, and BuildStoppedError.
    """
    progress = progress or BuildProgress()
    rows = StreamedRows(config, folder) if config.source == "datasets" else None
    place = _place(config, folder)
    root = place.root
    if place.folder is not None:
        _check_apart(place.folder, directory)
    try:
        found = place.find()
        seen = _seen_digest(root, config, found)
        recorded = _read_manifest(directory)
        if recorded is None or recorded.seen != seen:
            directory.mkdir(parents=True, exist_ok=True)
            # Removed first and written last: if there is a manifest, its tokens are complete.
            (directory / MANIFEST).unlink(missing_ok=True)
            for left in (x for name in FILES for x in directory.glob(f".{name}.*")):
                left.unlink()  # Of a build that was killed; no other one is under way.
            if config.source == "tokens":
                recorded = _read_shards(root, found, config, progress)
            else:
                read = (
                    _FileTexts(root, found, config, progress) if rows is None else _RowTexts(rows)
                )
                recorded = _write_text(
                    read, config, directory=directory, tokenizer=tokenizer, progress=progress
                )
            replace(recorded, seen=seen).write(directory / MANIFEST)
    except OSError as error:
        raise ConfigError(f"cannot build the corpus of {root} in {directory}: {error}") from error
    _check_length(recorded, config, root)
    return Corpus.open(directory)


def read_texts(places: Sequence[Path], *, text_key: str) -> Iterator[str]:
    """Yield the texts of these files, and of folders as in a corpus. Raises ConfigError, also if
    one of these files is no text or if there is none at all, and OSError."""
    config, any_text = DataConfig(source="files"), False
    for place in places:
        files = [place]
        if place.is_dir():
            files = [place / one.path for one in _in_order(_walk(place, config))]
        for file in files:
            if is_text(file):
                for document in documents(file, text_key=text_key):
                    any_text = any_text or bool(document)
                    yield from pieces(document.decode("utf-8", "replace"))
            elif file is place:
                raise ConfigError(f"{file} is no text: name text files, JSON lines or folders")
    if not any_text:
        names = ", ".join(map(str, places))
        raise ConfigError(f"no text in {names}: name text files, JSON lines or folders")


def is_held_out(sha256: str, held_out_below: int) -> bool:
    """True if a document with this SHA-256 (64 hex digits) is held out; only its bytes decide."""
    return int(sha256[:2], 16) < held_out_below


def _place(config: DataConfig, folder: str) -> _Place:
    if config.source == "tokens":
        root, paths = find_shards(folder)
        place = Path(os.path.expanduser(folder))
        return _Place(
            root,
            place if place.is_dir() else None,
            lambda: [_Found(path.relative_to(root).as_posix(), path.stat()) for path in paths],
        )
    if config.source == "datasets" and not folder:
        return _Place(Path(config.dataset), None, list)
    root = _root(config, folder)
    return _Place(root, root, lambda: _in_order(_walk(root, config)))


def _root(config: DataConfig, folder: str) -> Path:
    if config.source not in ("files", "datasets"):
        return Path(sysconfig.get_path("stdlib")).resolve()
    if not folder:
        raise ConfigError(
            'run.data.source is "files": set node.corpus to a folder of text files on this node'
        )
    root = Path(os.path.expanduser(folder)).resolve()
    if not root.is_dir():
        holds = "text files" if config.source == "files" else "a copy of the dataset"
        raise ConfigError(f"node.corpus: {root} is not a folder: set it to one with {holds}")
    return root


def _check_apart(root: Path, directory: Path) -> None:
    if directory.resolve().is_relative_to(root.resolve()):
        # The node would read its own files, and no two nodes would agree on the digest.
        raise ConfigError(
            f"node.corpus: {root} holds this node's own directory {directory}: "
            "set node.directory to a place outside"
        )


def _walk(root: Path, config: DataConfig) -> Iterator[_Found]:
    """Yield the regular files below `root`, in a folder of a person without hidden ones. Links are
    not followed: they may lead outside. Of a copy of a dataset, in which the Hub's cache has links
    only, those to files are, as its library does."""
    stdlib = config.source not in ("files", "datasets")
    for folder, subfolders, names in os.walk(root, onerror=_reraise):
        if stdlib:
            subfolders[:] = [name for name in subfolders if name not in STDLIB_SKIPPED]
        else:
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            if not name.endswith(".py") if stdlib else name.startswith("."):
                continue
            path = Path(folder, name)
            follows = config.source == "datasets" and path.exists()
            status = path.stat() if follows else path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield _Found(path.relative_to(root).as_posix(), status)


def _links_in(root: Path) -> int:
    return sum(
        Path(folder, name).is_symlink()
        for folder, subfolders, names in os.walk(root)
        for name in (*subfolders, *names)
    )


def _in_order(found: Iterator[_Found]) -> list[_Found]:
    return sorted(found, key=lambda one: one.path)


def _reraise(error: OSError) -> None:
    raise error  # os.walk would skip an unreadable folder, and the digest would differ.


def _seen_digest(root: Path, config: DataConfig, found: Sequence[_Found]) -> str:
    """Return a digest that changes with the source, a rule, or the path, size or times of a file.
    To compute it, no file is read."""
    rows = [
        [one.path, one.status.st_size, one.status.st_mtime_ns, one.status.st_ctime_ns]
        for one in found
    ]
    rules = [config.held_out_below, config.text_key, config.shard_type, config.tokenizer]
    rules += [config.dataset, config.dataset_split, config.dataset_rows]
    text = json.dumps([str(root), config.source, rules, rows])
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _read_shards(
    root: Path, found: Sequence[_Found], config: DataConfig, progress: BuildProgress
) -> _Manifest:
    files: list[ManifestFile] = []
    shards: list[TokenFile] = []
    for one in found:
        progress.raise_if_stopped()
        shards.append(read_shard(root / one.path, plain_type=config.shard_type))
        files.append(ManifestFile(one.path, one.status.st_size, fingerprint(root / one.path)))
    train, held_out = divide(
        [shard for shard in shards if shard.tokens],
        root.absolute(),
        held_out_below=config.held_out_below,
    )
    return _Manifest(digest=manifest_digest(files), files=files, train=train, held_out=held_out)


def _sha256(path: Path, progress: BuildProgress) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(HASHED_BYTES):
            progress.raise_if_stopped()
            digest.update(block)
    return digest.hexdigest()


class _FileTexts:
    """The texts of files, as (SHA-256 that decides on the side, text, bytes that end it)."""

    def __init__(
        self, root: Path, found: Sequence[_Found], config: DataConfig, progress: BuildProgress
    ) -> None:
        self.files: list[ManifestFile] = []
        """Those that have been read."""
        self.skipped = 0
        self._root, self._found, self._config = root, found, config
        self._progress = progress

    def __iter__(self) -> Iterator[tuple[str, bytes, bytes]]:
        config = self._config
        for one in self._found:
            path = self._root / one.path
            if config.source == "files" and not is_text(path):
                self.skipped += 1
                continue
            sha256 = _sha256(path, self._progress)
            self.files.append(ManifestFile(one.path, one.status.st_size, sha256))
            end = b"\n" if is_lines(path) else b""
            for document in documents(path, text_key=config.text_key):
                own = sha256 if is_plain(path) else hashlib.sha256(document).hexdigest()
                yield own, document, end


class _RowTexts:
    """The texts of rows, in the same form."""

    skipped = 0

    def __init__(self, rows: StreamedRows) -> None:
        self.files = rows.files
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[str, bytes, bytes]]:
        for document in self._rows:
            yield hashlib.sha256(document).hexdigest(), document, b"\n"


def _write_text(
    texts: _FileTexts | _RowTexts,
    config: DataConfig,
    *,
    directory: Path,
    tokenizer: Tokenizer | None,
    progress: BuildProgress,
) -> _Manifest:
    with _replacement(directory / TRAIN) as train, _replacement(directory / HELD_OUT) as held_out:
        writers = [TokenWriter(file, tokenizer, progress) for file in (train, held_out)]
        for sha256, document, end in texts:
            writers[is_held_out(sha256, config.held_out_below)].append(document, end=end)
            progress.count(len(document))
        for writer in writers:
            writer.flush()
        sizes = (train.tell(), held_out.tell())
    kind, files = BYTES if tokenizer is None else tokenizer.type, [*texts.files]
    if tokenizer is not None:
        digest = hashlib.sha256("".join(writer.digest for writer in writers).encode()).hexdigest()
        files.append(ManifestFile(ENCODED, sum(sizes), digest))
    return _Manifest(
        digest=manifest_digest(files),
        files=files,
        train=[TokenFile.whole(TRAIN, kind, sizes[0])],
        held_out=[TokenFile.whole(HELD_OUT, kind, sizes[1])],
        skipped=texts.skipped,
    )


def _check_length(recorded: _Manifest, config: DataConfig, root: Path) -> None:
    files, unit = len(recorded.files), "bytes"
    if config.source == "tokens" or config.tokenizer:
        unit = "tokens"
    named = config.source == "tokens" and any(
        is_named_held_out(file, root.absolute()) for file in recorded.held_out
    )
    train, held_out = recorded.sizes
    if train <= config.window:  # The last token needs a target.
        cure = "name a folder with more text"
        if config.source == "files" and (links := _links_in(root)):
            cure = f"{links} symbolic links there are not followed: copy the files that they name"
        if named:
            cure = "add shards without val or test in their names, which are held out"
        raise ConfigError(
            f"{root} has {train} {unit} to train on in {files} files, but one sample takes "
            f"{config.window + 1}: {cure}"
        )
    if held_out <= config.eval_window:
        cure = f"add files or raise run.data.held_out_below ({config.held_out_below} of 256)"
        if named:
            cure = "add a longer val*.bin"
        raise ConfigError(
            f"{root} has {held_out} held-out {unit} in {files} files, but one evaluation window "
            f"takes {config.eval_window + 1}: {cure}"
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


def _read_manifest(directory: Path) -> _Manifest | None:
    """Return the manifest, if it and the files with the tokens are complete; else None."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
        sides = [
            [TokenFile(str(directory / path), *rest) for path, *rest in record[side]]
            for side in ("train", "held_out")
        ]
        recorded = _Manifest(
            digest=record["digest"],
            seen=record["seen"],
            files=[ManifestFile(*row) for row in record["files"]],
            train=sides[0],
            held_out=sides[1],
            skipped=record["skipped"],
        )
        on_disk = all(
            Path(file.path).stat().st_size >= file.end and file.tokens
            for file in (*sides[0], *sides[1])
        )
        if on_disk and min(recorded.sizes) > 0:
            return recorded
    return None
