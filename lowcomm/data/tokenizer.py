"""Tokenizers in the format of Hugging Face (`tokenizer.json`): encode, decode, and train one.

They need the package `tokenizers`, the extra of the same name, which is imported when a tokenizer
is used. Must NOT import torch, nor know which documents belong to a corpus (corpus.py).
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lowcomm.data.build_progress import BuildProgress
from protocols.types import ConfigError

END = "<|endoftext|>"
ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[SEP]")
"""Tokens that end a document: the first of them that a tokenizer has follows each one."""
PIECE_CHARS = 1 << 16
"""A document is encoded in pieces of about so many characters, which end with a line."""
BATCH_CHARS = 1 << 20
"""Pieces of about so many characters are encoded at a time, on all cores."""
BYTE_TOKENS = 256
"""Tokens of single bytes, which every tokenizer of `train_bpe` has beside END."""


class Tokenizer:
    """A tokenizer.json. All nodes of a run need an equal one."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError if the file cannot be read, or the package is missing."""
        library: Any = _library()
        try:
            content = Path(os.path.expanduser(path)).read_bytes()
            self.fingerprint = fingerprint_of(content)
            """64 hex digits."""
        except (OSError, ValueError) as error:
            raise ConfigError(f"node.tokenizer: cannot read {path}: {error}") from error
        made = _loaded(library, content, path)
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = True  # Those that a text spells are no special ones.
        self._made = made
        self.vocab_size = 1 + max(made.get_vocab().values(), default=-1)
        """Number of token values."""
        self.end = next((x for x in map(made.token_to_id, ENDS) if x is not None), None)
        """The token that ends a document, if there is one."""
        if not self.vocab_size:
            raise ConfigError(f"node.tokenizer: {path} has no tokens")

    @property
    def type(self) -> str:
        """The smaller one of numpy's types uint16 and uint32 that holds its tokens."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text. If a text spells a special token ("<|endoftext|>" in an article
        about models), it is divided as any other word."""
        encoded = self._made.encode_batch(texts, add_special_tokens=False)
        return [each.ids for each in encoded]

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of these tokens."""
        return self._made.decode(tokens, skip_special_tokens=False)


def fingerprint_of(content: bytes) -> str:
    """64 hex digits of a hash of a tokenizer.json, whatever its indentation and the order of its
    keys. Raises ValueError if it is no JSON."""
    canonical = json.dumps(json.loads(content), sort_keys=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


class TokenWriter:
    """Writes documents into a file: as their bytes, or as tokens."""

    def __init__(
        self, file: BinaryIO, tokenizer: Tokenizer | None, progress: BuildProgress
    ) -> None:
        self._file = file
        self._tokenizer = tokenizer
        self._progress = progress
        self._hash = hashlib.sha256()
        self._waiting: list[tuple[str, bool]] = []
        """Pieces to encode, and whether a document ends with each one."""
        self._chars = 0

    def append(self, document: bytes, *, end: bytes) -> None:
        """Append a document. `end` follows its bytes; its tokens are followed by the token that
        ends documents, if the tokenizer has one. Raises BuildStoppedError."""
        if self._tokenizer is None:
            self._file.write(document + end)
            return
        text = document.decode("utf-8", "replace")
        for piece in pieces(text):
            self._waiting.append((piece, False))
            self._chars += len(piece)
            if self._chars >= BATCH_CHARS:
                self.flush()
        self._waiting.append(("", True))

    def flush(self) -> None:
        """Write what waits to be encoded. Raises BuildStoppedError."""
        self._progress.raise_if_stopped()
        if self._tokenizer is None or not self._waiting:
            return
        end = [] if self._tokenizer.end is None else [self._tokenizer.end]
        kind = np.dtype(self._tokenizer.type).newbyteorder("<")
        encoded = self._tokenizer.encode([text for text, _ in self._waiting])
        for tokens, (_, ends) in zip(encoded, self._waiting, strict=True):
            row = np.array(tokens + end if ends else tokens, kind).tobytes()
            self._hash.update(row)
            self._file.write(row)
        self._waiting, self._chars = [], 0

    @property
    def digest(self) -> str:
        """64 hex digits of a hash of the tokens that are written."""
        return self._hash.hexdigest()


def pieces(text: str) -> Iterator[str]:
    """Divide a text after line feeds, into pieces of about PIECE_CHARS."""
    start = 0
    while start < len(text):
        feed = text.find("\n", start + PIECE_CHARS)
        stop = len(text) if feed < 0 else feed + 1
        yield text[start:stop]
        start = stop


def train_bpe(texts: Iterable[str], *, vocab_size: int, out: Path) -> Tokenizer:
    """Train byte-level BPE (as GPT-2) on these texts, and write its tokenizer.json. Shows progress
    on a terminal. Raises ConfigError and OSError."""
    if vocab_size <= BYTE_TOKENS:
        raise ConfigError(
            f"--vocab is {vocab_size}: it takes at least {BYTE_TOKENS + 1}, of which {BYTE_TOKENS} "
            f"are single bytes and one is {END}"
        )
    if out.is_dir():  # The training may take hours, and its result would have no place.
        file = out / "tokenizer.json"
        raise ConfigError(f"--out {out} is a directory: give a file, as in {file}")
    library: Any = _library()
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    made.train_from_iterator(texts, trainer)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.new")
    try:
        beside.write_text(made.to_str(), encoding="utf-8")
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
    return Tokenizer(str(out))


def _loaded(library: Any, content: bytes, path: str) -> Any:
    """The tokenizer of the package. Raises ConfigError for whatever the package raises."""
    made = None
    try:
        made = library.Tokenizer.from_buffer(content)
    finally:  # It raises plain Exceptions.
        error = sys.exception()
        if made is None and isinstance(error, Exception):
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigError(f"node.tokenizer: {path} is no tokenizer: {why}") from error
    return made


def _library() -> Any:
    try:
        return import_module("tokenizers")
    except ImportError:
        raise ConfigError(
            "tokenizers of the format tokenizer.json need the package tokenizers, which is not "
            "installed: pip install 'lowcomm[tokenizers]'"
        ) from None
