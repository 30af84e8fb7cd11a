"""Texts of Hugging Face datasets: in the order of their rows, the same from the Hub and a copy."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowcomm.config.schema import DataConfig
from lowcomm.data import streamed_rows
from lowcomm.data.corpus import Corpus, build_corpus
from lowcomm.data.manifest import difference, file_marks
from lowcomm.data.streamed_rows import StreamedRows
from protocols.types.errors import ConfigError

ROWS = [{"text": f"row {number}: some text that is longer than a window"} for number in range(90)]
FOLDER = DataConfig(source="datasets", window=8, eval_window=8, held_out_below=64)
HUB = replace(FOLDER, dataset="org/texts:small@v1", dataset_split="part")


class Library:
    """Stands in for the package: it has one dataset."""

    class BrokenError(Exception):
        """Its base of errors."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.exceptions = SimpleNamespace(DatasetsError=self.BrokenError)
        self.config = SimpleNamespace(TORCH_AVAILABLE=True)
        self.asked: list[dict[str, Any]] = []
        self._rows = rows

    def load_dataset(self, **asked: Any) -> "Library":
        self.asked.append(asked)
        return self

    def take(self, count: int) -> "Library":
        return Library(self._rows[:count])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for row in self._rows:
            if "broken" in row:
                raise row["broken"]
            yield row


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(ROWS)
    monkeypatch.setitem(sys.modules, "datasets", made)
    return made


def having(monkeypatch: pytest.MonkeyPatch, rows: Sequence[Mapping[str, Any]]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Library(rows))


def build(directory: Path, config: DataConfig = HUB, *, folder: str = "") -> Corpus:
    return build_corpus(config, folder=folder, directory=directory)


def lines(corpus: Corpus) -> list[str]:
    """All rows of both sides."""
    sides = [side[np.arange(len(side))].tobytes() for side in (corpus.train, corpus.held_out)]
    return b"".join(sides).decode().splitlines()


def test_what_is_read_is_what_the_run_names(library: Library, tmp_path: Path) -> None:
    corpus = build(tmp_path / "built")
    (asked,) = library.asked
    assert asked == {
        "path": "org/texts",
        "name": "small",
        "revision": "v1",
        "split": "part",
        "streaming": True,
    }
    assert sorted(lines(corpus)) == sorted(row["text"] for row in ROWS)
    assert 0 < len(corpus.held_out) < len(corpus.train)
    assert build(tmp_path / "built").digest == corpus.digest
    assert len(library.asked) == 1, "it is not read again"
    build(tmp_path / "built", replace(HUB, dataset_rows=60))
    assert len(library.asked) == 2
    assert library.config.TORCH_AVAILABLE, "other users of the library find it as it was"
    build(tmp_path / "other", replace(HUB, dataset="org/texts"))
    assert library.asked[2]["name"] is None
    assert "revision" not in library.asked[2]


def test_a_copy_on_the_node_has_the_digest_of_the_hubs(library: Library, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "rows.jsonl").write_text("{}", encoding="ascii")
    corpus = build(tmp_path / "built", folder=str(copy))
    assert library.asked == [{"path": str(copy), "split": "part", "streaming": True}]
    assert corpus.digest == build(tmp_path / "hub").digest
    (copy / "rows.jsonl").write_text('{"more": 1}', encoding="ascii")
    build(tmp_path / "built", folder=str(copy))
    assert len(library.asked) == 3, "a file has changed"
    with pytest.raises(ConfigError, match="set it to one with a copy of the dataset"):
        build(tmp_path / "built", folder=str(copy / "rows.jsonl"))
    with pytest.raises(ConfigError, match="holds this node's own directory"):
        build(copy / "built", folder=str(copy))


def test_a_copy_of_links_is_read_again_if_one_of_their_files_changes(
    library: Library, tmp_path: Path
) -> None:
    """The Hub's cache has each file as a link to its content."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "content").write_text("{}", encoding="ascii")
    (tmp_path / "copy" / "rows.jsonl").symlink_to(tmp_path / "content")
    (tmp_path / "copy" / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    for content, reads in (("{}", 1), ('{"more": 1}', 2)):
        (tmp_path / "content").write_text(content, encoding="ascii")
        build(tmp_path / "built", folder=str(tmp_path / "copy"))
        assert len(library.asked) == reads


def test_a_copy_may_be_below_the_home_directory(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "copy").mkdir()
    build(tmp_path / "built", folder="~/copy")
    assert library.asked[0]["path"] == str(tmp_path / "copy")


def test_other_rows_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(streamed_rows, "ROWS_MARKED", 40)
    having(monkeypatch, ROWS)
    one = build(tmp_path / "one")
    assert [file.path for file in one.files] == ["rows 0 to 39", "rows 40 to 79", "rows 80 to 89"]
    having(monkeypatch, [*ROWS[:50], {"text": "another"}, *ROWS[51:]])
    other = build(tmp_path / "other")
    assert other.digest != one.digest
    found = difference(other.files, file_marks(one.files))
    assert found.startswith("rows 40 to 79 (")
    assert found.endswith("another content in the run")
    having(monkeypatch, [*ROWS[:79], {"text": ROWS[79]["text"] + ROWS[80]["text"]}, *ROWS[81:]])
    assert build(tmp_path / "joined").digest != one.digest, "rows are not the same"


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"text": "a"}, {"content": "b", "id": 1}], r"row 1 of org.* under 'text': .*\(content, "),
        ([{"text": None}], r"row 0 .* has no text under 'text'"),
        ([{"broken": ValueError("no split\nmore")}], "cannot read the dataset org.*: no split$"),
        ([{"broken": Library.BrokenError()}], "cannot read the dataset org.*: BrokenError$"),
        ([{"text": "short"}], "org/texts.* has .* bytes to train on"),
        ([], "org/texts.* has 0 bytes to train on"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_told(
    rows: list[dict[str, Any]], complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    having(monkeypatch, rows)
    with pytest.raises(ConfigError, match=complaint):
        build(tmp_path / "built")


def test_what_is_missing_is_told(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"set run\.data\.dataset .* or node\.corpus"):
        StreamedRows(FOLDER, "")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'lowcomm\[datasets\]'"):
        StreamedRows(HUB, "")


REAL = """
import sys
from pathlib import Path
from lowcomm.config.schema import DataConfig
from lowcomm.data.corpus import build_corpus

config = DataConfig(source="datasets", window=8, eval_window=8, held_out_below=64)
corpus = build_corpus(config, folder=sys.argv[1], directory=Path(sys.argv[2]))
print(corpus.digest, "torch" in sys.modules)
"""


@pytest.mark.long  # Needs the package datasets.
def test_files_of_any_form_are_read_without_torch(tmp_path: Path) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    texts = [row["text"] for row in ROWS]
    for form in ("jsonl", "parquet"):
        (tmp_path / form).mkdir()
        for part, first in enumerate((0, 30, 60)):
            some, file = texts[first : first + 30], tmp_path / form / f"{part}.{form}"
            if form == "jsonl":
                file.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
            else:
                parquet.write_table(arrow.table({"text": some}), file)
    found = set[str]()
    for form in ("jsonl", "parquet"):
        argv = [sys.executable, "-c", REAL, str(tmp_path / form), str(tmp_path / f"built {form}")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    (said,) = found
    assert said.endswith(" False\n")
    assert sorted(lines(Corpus.open(tmp_path / "built parquet"))) == sorted(texts)
