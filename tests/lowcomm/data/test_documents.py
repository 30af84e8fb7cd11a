"""Texts of files: packed, one in a line, malformed."""

import gzip
import json
from pathlib import Path

import pytest

from lowcomm.data.documents import documents, is_plain, is_text
from protocols.types.errors import ConfigError


def texts(path: Path, key: str = "text") -> list[bytes]:
    return list(documents(path, text_key=key))


def test_a_line_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "one\n"}, {"text": "\u00e9\ud800", "url": 1}, {"text": ""}]
    path.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert texts(path) == [b"one\n", "\u00e9?".encode(), b""]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.txt", "jsonl"])
def test_any_other_file_is_one_document(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"{}\n\n{}")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"{}\n\n{}"))
    assert texts(tmp_path / name) == texts(tmp_path / f"{name}.gz") == [b"{}\n\n{}"]
    assert is_plain(tmp_path / name)
    assert not is_plain(tmp_path / f"{name}.gz")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"b": 1, "a": 2}', r"line 2 has no text under 'text': .*text_key.* \(a, b\)"),
        ('{"text": 3}', "line 2 has no text under 'text'"),
    ],
)
def test_a_malformed_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=rf"a\.ndjson, {message}"):
        texts(tmp_path / "a.ndjson")


@pytest.mark.parametrize("damage", [slice(0, 40), slice(3, None)])
def test_a_torn_archive_is_named(damage: slice, tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 10)[damage])
    message = r"a\.txt\.gz is not a whole gzip file .*: its texts cannot be read; copy .* elsewhere"
    with pytest.raises(ConfigError, match=message):
        texts(path)


def test_what_is_no_text(tmp_path: Path) -> None:
    def looks(content: bytes, name: str = "x") -> bool:
        (tmp_path / name).write_bytes(content)
        return is_text(tmp_path / name)

    assert looks(b"")
    assert looks("gr\u00fc\u00df".encode("latin-1"))
    assert looks(b"a" * 8192 + b"\0"), "only the head is read"
    assert not looks(b"a\0b")
    assert not looks(b"PK\x03\x04 without zero")
    assert not looks(gzip.compress(b"text"))
    assert looks(gzip.compress(b"text"), "x.gz")
    assert not looks(gzip.compress(b"te\0xt"), "x.gz")
