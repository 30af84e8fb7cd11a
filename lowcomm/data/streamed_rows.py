"""Reads the texts of a Hugging Face dataset as a stream: no copy of the dataset itself is kept.

It needs the package `datasets`, the extra of the same name, which is imported when a dataset is
read. Must NOT import torch, nor decide which texts are held out (corpus.py).
"""

import hashlib
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

from lowcomm.config.schema import DataConfig
from lowcomm.data.manifest import ManifestFile
from protocols.types import ConfigError

ROWS_MARKED = 10_000
"""Rows that have one line in the corpus's list of files, so that a difference can be named."""


class StreamedRows:
    """The texts of the rows of one split, in the dataset's order: iterate over it once."""

    def __init__(self, config: DataConfig, folder: str) -> None:
        """`folder`: a copy of the dataset, in place of the Hub's; "": the Hub's. Raises ConfigError
        if neither is named, or the package is missing."""
        if not (config.dataset or folder):
            raise ConfigError(
                'run.data.source is "datasets": set run.data.dataset to a name on the Hugging Face '
                "Hub, or node.corpus to a folder with a copy of the dataset"
            )
        self.place = folder or config.dataset
        """The dataset, for people."""
        self.files: list[ManifestFile] = []
        """The rows so far, in groups of ROWS_MARKED, as files of a corpus."""
        self._config = config
        self._folder = os.path.expanduser(folder)
        self._library = _library()

    def __iter__(self) -> Iterator[bytes]:
        """Raises ConfigError if the dataset cannot be read, or a row has no text."""
        with _without_torch(self._library):
            read = self._rows()
            while (text := self._next_of(read)) is not None:
                yield text

    def _next_of(self, texts: Iterator[bytes]) -> bytes | None:
        """The next text; None at the end. Errors of the library name the dataset."""
        errors = self._library.exceptions
        try:
            return next(texts, None)
        except (OSError, ValueError, LookupError, errors.DatasetsError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"cannot read the dataset {self.place}: {said}") from error

    def _rows(self) -> Iterator[bytes]:
        key, group, size, first = self._config.text_key, hashlib.sha256(), 0, 0
        number = -1
        for number, row in enumerate(self._opened()):
            text = row.get(key)
            if not isinstance(text, str):
                known = ", ".join(sorted(row)[:9])
                raise ConfigError(
                    f"row {number} of {self.place} has no text under {key!r}: set "
                    f"run.data.text_key to one of its columns ({known})"
                )
            document = text.encode("utf-8", "replace")
            group.update(len(document).to_bytes(8, "little") + document)
            size += len(document)
            yield document
            if number + 1 - first == ROWS_MARKED:
                self._mark(first, number, size, group.hexdigest())
                group, size, first = hashlib.sha256(), 0, number + 1
        if number >= first:
            self._mark(first, number, size, group.hexdigest())

    def _mark(self, first: int, last: int, size: int, digest: str) -> None:
        self.files.append(ManifestFile(f"rows {first} to {last}", size, digest))

    def _opened(self) -> Iterable[Mapping[str, object]]:
        config = self._config
        named, _, revision = config.dataset.partition("@")
        name, _, part = named.partition(":")
        where = {"path": self._folder} if self._folder else {"path": name, "name": part or None}
        more = {"revision": revision} if revision and not self._folder else {}
        rows: Any = self._library.load_dataset(
            **where, **more, split=config.dataset_split, streaming=True
        )
        if config.dataset_rows:
            rows = rows.take(config.dataset_rows)
        return cast("Iterable[Mapping[str, object]]", rows)


@contextmanager
def _without_torch(library: Any) -> Generator[None]:
    """The library imports torch for each stream if it is installed; a daemon has no use for it."""
    before = library.config.TORCH_AVAILABLE
    library.config.TORCH_AVAILABLE = before and "torch" in sys.modules
    try:
        yield
    finally:
        library.config.TORCH_AVAILABLE = before


def _library() -> Any:
    try:
        return import_module("datasets")
    except ImportError:
        raise ConfigError(
            'run.data.source is "datasets", which needs the package datasets: '
            "pip install 'lowcomm[datasets]'"
        ) from None
