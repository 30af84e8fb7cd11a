"""Shards of tokens: `.bin` files of uint16 or uint32, as nanoGPT, llm.c and modded-nanogpt write.

They are mapped where they are. Must NOT copy a shard, nor import torch.
"""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from lowcomm.data.build_progress import BuildProgress
from protocols.types import ConfigError

HEADER_BYTES = 1024
"""A header is 256 numbers, int32: a magic number, a version, the number of tokens, and zeros."""
HEADERS = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Types of the tokens by magic number and version, as in llm.c, dev/data/data_common.py."""
WHOLE_BYTES_MAX = 64 << 20
"""A file up to this size is hashed whole."""
SAMPLED_BLOCKS, SAMPLED_BYTES = 256, 64 << 10
"""Of a larger one so many blocks, of so many bytes each, are hashed."""
SCANNED_TOKENS = 1 << 24
"""Tokens that a search for the largest one reads at a time."""
MAPPED_MAX = 128
"""Files that are mapped at a time: each map keeps a file descriptor, of which a process has 1024 by
default."""
_HELD_OUT = re.compile(r"(^|[._-])(val|valid|validation|test|eval|held[_-]?out)([._-]|$)", re.I)


class TokenArray(Protocol):
    """Tokens in order: an array of one dimension, or several files as one."""

    def __len__(self) -> int: ...
    def __getitem__(self, places: NDArray[np.int64], /) -> NDArray[Any]:
        """The tokens at these places, in an array of the same shape."""
        ...


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Successive tokens in a file."""

    path: str
    type: str
    """Type of a token: "uint8", "uint16" or "uint32"; little-endian."""
    first_byte: int
    tokens: int

    @classmethod
    def whole(cls, path: str, kind: str, size: int, *, first_byte: int = 0) -> "TokenFile":
        """All tokens of a file of `size` bytes."""
        return cls(path, kind, first_byte, (size - first_byte) // np.dtype(kind).itemsize)

    @property
    def end(self) -> int:
        """The first byte after these tokens."""
        return self.first_byte + self.tokens * np.dtype(self.type).itemsize

    def divided(self, count: int) -> "tuple[TokenFile, TokenFile]":
        """The first `count` of these tokens, and the others."""
        first = replace(self, tokens=count)
        return first, replace(self, first_byte=first.end, tokens=self.tokens - count)

    def map(self) -> NDArray[Any]:
        """These tokens, read-only: a page is read when it is touched. Raises ConfigError if the
        file has gone or is shorter."""
        kind = np.dtype(self.type).newbyteorder("<")
        try:
            return np.memmap(self.path, kind, "r", offset=self.first_byte, shape=(self.tokens,))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read the tokens of {self.path}: {error}") from error


class ShardedTokens:
    """The tokens of several files as one array, without a copy."""

    def __init__(self, files: Sequence[TokenFile], *, vocab_size: int = 0) -> None:
        """A token of at least `vocab_size` is an error when it is read; 0: none is."""

        def mapped(number: int) -> NDArray[Any]:
            return files[number].map()

        self._files = files
        self._map = lru_cache(MAPPED_MAX)(mapped)
        ends = list(accumulate(file.tokens for file in files))
        self._starts = [0, *ends]
        self._ends = np.array(ends, np.int64)
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, places: NDArray[np.int64], /) -> NDArray[np.int64]:
        """The tokens at these places, each in [0, len): int64 of the same shape. Raises
        ConfigError, which names the file, for a token outside the vocabulary, and for a file that
        cannot be read."""
        found = np.empty(places.shape, np.int64)
        numbers = np.searchsorted(self._ends, places, side="right")
        for number in map(int, np.flatnonzero(np.bincount(numbers.ravel()))):
            here = numbers == number
            found[here] = self._map(number)[places[here] - self._starts[number]]
        if self._vocab_size and (outside := found >= self._vocab_size).any():
            file = self._files[int(numbers[outside][0])]
            raise ConfigError(
                f"{file.path} has the token {found[outside][0]}, but run.model.vocab_size is "
                f"{self._vocab_size}: found the run with a larger one, or with 0, which takes the "
                "largest token in the files"
            )
        return found

    def largest(self, progress: BuildProgress) -> int:
        """The largest token; reads all, about 2 GB in a second if they are in memory. Raises
        BuildStoppedError."""
        found = 0
        for file in self._files:
            tokens = file.map()
            for start in range(0, len(tokens), SCANNED_TOKENS):
                progress.raise_if_stopped()
                found = max(found, int(tokens[start : start + SCANNED_TOKENS].max()))
        return found


def find_shards(where: str) -> tuple[Path, list[Path]]:
    """(the folder that all are in, files in the order of their names) of a `.bin` file, a folder or
    a glob. Raises ConfigError if there is none."""
    where = os.path.expanduser(where)
    path = Path(where)
    if path.is_file():
        found = [path]
    elif path.is_dir() and where:
        found = list(path.rglob("*.bin"))
    else:
        found = [Path(name) for name in glob.glob(where, recursive=True)]
    found = [each for each in found if each.is_file()]
    if not found:
        raise ConfigError(
            f"node.corpus: {where or '(empty)'} names no .bin files of tokens: give a file, a "
            'folder or a pattern such as "data/fineweb_*.bin"'
        )
    root = Path(os.path.commonpath([each.parent for each in found]))
    return root, sorted(found, key=lambda each: each.relative_to(root).as_posix())


def read_shard(path: Path, *, plain_type: str) -> TokenFile:
    """The tokens of a file: as its header says or, without a header, of `plain_type` to its end.
    Raises ConfigError if its size does not fit, and OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = np.frombuffer(file.read(12).ljust(12, b"\0"), dtype="<i4")
    kind = HEADERS.get((int(head[0]), int(head[1])))
    begins = 0 if kind is None else HEADER_BYTES
    shard = TokenFile.whole(str(path.absolute()), kind or plain_type, size, first_byte=begins)
    if shard.end != size or (kind and shard.tokens != head[2]):
        wanted = f"{head[2]} tokens of {kind}" if kind else f"{plain_type} (run.data.shard_type)"
        raise ConfigError(f"{path} has {size} bytes, which do not fit {wanted}: copy it again")
    return shard


def divide(
    files: Sequence[TokenFile], root: Path, *, held_out_below: int
) -> tuple[list[TokenFile], list[TokenFile]]:
    """(files to train on, files held out). Files that `is_named_held_out` are held out; if there is
    none, `held_out_below` of 256 parts of all tokens, at the end."""
    held_out = [file for file in files if is_named_held_out(file, root)]
    if held_out:
        return [file for file in files if file not in held_out], held_out
    total = sum(file.tokens for file in files)
    left = total - total * held_out_below // 256
    train: list[TokenFile] = []
    for file in files:
        first, rest = file.divided(min(left, file.tokens))
        left -= first.tokens
        train.append(first)
        held_out.append(rest)
    return [file for file in train if file.tokens], [file for file in held_out if file.tokens]


def is_named_held_out(file: TokenFile, root: Path) -> bool:
    """True if the name of this file, or of its folder below `root`, is one such as "val",
    "val.bin" or "fineweb_val_000.bin"."""
    return any(_HELD_OUT.search(part) for part in Path(file.path).relative_to(root).parts)


def fingerprint(path: Path) -> str:
    """64 hex digits: a hash of the file or, if it is large, of its ends and of blocks between them.
    A copy that differs in few bytes of a large file may have the same one."""
    size, digest = path.stat().st_size, blake3()
    with path.open("rb") as file:
        for start, length in _hashed(size):
            file.seek(start)
            digest.update(file.read(length))
    return digest.hexdigest()


def _hashed(size: int) -> Iterator[tuple[int, int]]:
    """(first byte, length) of each block of a file that is hashed."""
    if size <= WHOLE_BYTES_MAX:
        yield from ((start, 1 << 20) for start in range(0, size, 1 << 20))
        return
    for number in range(SAMPLED_BLOCKS):
        yield number * (size - SAMPLED_BYTES) // (SAMPLED_BLOCKS - 1), SAMPLED_BYTES
