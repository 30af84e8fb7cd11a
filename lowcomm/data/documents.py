"""Reads the texts of files as people have them: plain or gzip, one text or one JSON object a line.

Must NOT decide which files belong to a corpus, nor which texts are held out (corpus.py).
"""

import gzip
import json
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from protocols.types import ConfigError

HEAD_BYTES = 8192
LINES = (".jsonl", ".ndjson")
GZIP = ".gz"
NOT_TEXT = (b"%PDF-", b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"(\xb5/\xfd")
"""How files begin that may have no zero byte in their head, and are no text: PDF, archives."""

_CURE, _AWAY = "its texts cannot be read;", "move the file elsewhere"


def is_text(path: Path) -> bool:
    """True if the head of this file, unpacked, looks like text: it has no zero byte, and does not
    begin like an archive. Raises ConfigError and OSError."""
    with _opened(path) as file:
        head = file.read(HEAD_BYTES)
    return b"\0" not in head and not head.startswith(NOT_TEXT)


def is_lines(path: Path) -> bool:
    """True if each line of this file is a document of its own."""
    return path.name.removesuffix(GZIP).endswith(LINES)


def is_plain(path: Path) -> bool:
    """True if the bytes of this file are one document."""
    return not is_lines(path) and not path.name.endswith(GZIP)


def documents(path: Path, *, text_key: str) -> Iterator[bytes]:
    """Yield the texts of a file. Of a file of JSON lines, each is the value of `text_key`. Raises
    ConfigError, which names file and line, and OSError."""
    with _opened(path) as file:
        if not is_lines(path):
            yield file.read()
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _text_of(line, text_key, where=f"{path}, line {number}")


def _text_of(line: bytes, key: str, *, where: str) -> bytes:
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where} is not JSON: {_CURE} correct the line, or {_AWAY}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{where} is not a JSON object: {_CURE} correct the line, or {_AWAY}")
    fields = cast("dict[str, object]", record)
    text = fields.get(key)
    if not isinstance(text, str):
        known = ", ".join(sorted(fields)[:9])
        raise ConfigError(
            f"{where} has no text under {key!r}: set run.data.text_key to one of its keys ({known})"
        )
    return text.encode("utf-8", "replace")


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    try:
        with gzip.open(path) if path.name.endswith(GZIP) else path.open("rb") as file:
            yield cast("IO[bytes]", file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(
            f"{path} is not a whole gzip file ({error}): {_CURE} copy it again, or {_AWAY}"
        ) from error
