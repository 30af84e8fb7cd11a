"""The list of a corpus's files, and its forms in the log: a digest, and a mark of each file.

All peers must have equal digests. Marks only serve to name a file that differs. Must NOT read a
file of a corpus.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from protocols.types import CORPUS_FILES_MAX

PATH_BYTES = 4
MARK_BYTES = 8
"""Of a file: PATH_BYTES of a hash of its path, then as many of its size and content."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file of the corpus."""

    path: str
    """Path relative to the folder of the corpus, with forward slashes."""
    size_bytes: int
    sha256: str
    """64 hex digits; of a shard of tokens its fingerprint (token_shards.py)."""


def manifest_digest(files: Sequence[ManifestFile]) -> str:
    """Return 64 hex digits: SHA-256 of `[[path, size, sha256], ...]` as compact ASCII JSON."""
    rows = [[file.path, file.size_bytes, file.sha256] for file in files]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode("ascii")).hexdigest()


def file_marks(files: Sequence[ManifestFile]) -> bytes:
    """Return the marks of the first CORPUS_FILES_MAX files, for the log's first entry."""
    return b"".join(_mark(file) for file in files[:CORPUS_FILES_MAX])


def difference(files: Sequence[ManifestFile], marks: bytes) -> str:
    """Describe the first file of this node that differs from the run's, of which these are the
    marks."""
    starts = range(0, len(marks), MARK_BYTES)
    run = {marks[at : at + PATH_BYTES]: marks[at : at + MARK_BYTES] for at in starts}
    mine = {(mark := _mark(file))[:PATH_BYTES]: (mark, file) for file in files}
    for path, (mark, file) in mine.items():
        if run.get(path, mark) != mark:
            return f"{file.path} ({file.size_bytes} bytes) has another content in the run"
    if missing := len(run.keys() - mine.keys()):
        return f"{missing} of {len(run)} files of the run are not here"
    more = [file.path for path, (_, file) in mine.items() if path not in run]
    if more and len(run) < CORPUS_FILES_MAX:
        return f"{more[0]} is not in the run"
    return f"all of the first {len(run)} files are equal, but a later one is not"


def _mark(file: ManifestFile) -> bytes:
    content = f"{file.size_bytes} {file.sha256}"
    return b"".join(
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:PATH_BYTES]
        for text in (file.path, content)
    )
