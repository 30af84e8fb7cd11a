"""Tokenizers, of the package that `make test-long` installs; and without it."""

import errno
import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from lowcomm.config.schema import DataConfig
from lowcomm.data import tokenizer as room
from lowcomm.data.build_progress import BuildProgress
from lowcomm.data.corpus import ENCODED, HELD_OUT, TRAIN, Corpus, build_corpus
from lowcomm.data.tokenizer import END, Tokenizer, TokenWriter, pieces, train_bpe
from protocols.types.errors import ConfigError

TEXTS = [f"def f{number}(x):\n    return x * {number}\n" for number in range(200)]


@pytest.fixture
def trained(tmp_path: Path) -> Tokenizer:
    return train_bpe(TEXTS, vocab_size=300, out=tmp_path / "new" / "tokenizer.json")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install 'lowcomm\[tokenizers\]'"):
        Tokenizer("tokenizer.json")


def test_a_long_text_is_divided_after_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PIECE_CHARS", 4)
    assert list(pieces("ab\ncd\nefghij\n\nk")) == ["ab\ncd\n", "efghij\n", "\nk"]
    assert list(pieces("")) == []
    assert list(pieces("abcdef")) == ["abcdef"]


def test_without_a_tokenizer_bytes_are_written() -> None:
    file = BytesIO()
    writer = TokenWriter(file, None, BuildProgress())
    writer.append(b"a\xff", end=b"")
    writer.append(b"c", end=b"\n")
    writer.flush()
    assert file.getvalue() == b"a\xffc\n"


class Package:
    """The package, which raises `error` for each file."""

    def __init__(self, error: BaseException) -> None:
        self.Tokenizer = self
        self._error = error

    def from_buffer(self, content: bytes) -> None:
        raise self._error


def test_errors_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are plain Exceptions, also without a text; what ends the program is none of them."""
    path = tmp_path / "x.json"
    path.write_text("{}")
    for error, why in ((Exception("first\nsecond"), "first"), (Exception(), "Exception")):
        monkeypatch.setattr(room, "_library", lambda error=error: Package(error))
        with pytest.raises(ConfigError, match=rf"x\.json is no tokenizer: {why}$"):
            Tokenizer(str(path))
    monkeypatch.setattr(room, "_library", lambda: Package(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        Tokenizer(str(path))


def test_a_folder_is_no_place_for_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a directory: give a file, as in .*tokenizer\.json"):
        train_bpe((pytest.fail("it reads all") for _ in "x"), vocab_size=300, out=tmp_path)


@pytest.mark.long
def test_a_full_disk_leaves_the_old_tokenizer(
    trained: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "tokenizer.json"

    def full(self: Path, *_: object, **__: object) -> None:
        self.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            train_bpe(TEXTS, vocab_size=280, out=path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Tokenizer("~/new/tokenizer.json").fingerprint == trained.fingerprint
    assert [each.name for each in path.parent.iterdir()] == ["tokenizer.json"]


@pytest.mark.long
def test_a_trained_tokenizer_gives_every_text_back(trained: Tokenizer) -> None:
    assert trained.vocab_size == 300
    assert trained.type == "uint16"
    text = "return \u00e9 \U0001f600 f17(x)\t\n"
    (tokens,) = trained.encode([text])
    assert trained.text_of(tokens) == text
    assert len(tokens) < len(text.encode())
    assert trained.end is not None
    assert trained.text_of([trained.end]) == END
    (tokens,) = trained.encode([f"a{END}b"])
    assert trained.end not in tokens, "no document ends where a text spells its end"
    assert trained.text_of(tokens) == f"a{END}b"


@pytest.mark.long
def test_the_digest_is_of_the_content(trained: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "new" / "tokenizer.json"
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps(content, sort_keys=True))
    assert Tokenizer(str(path)).fingerprint == trained.fingerprint
    content["added_tokens"][0]["content"] = "<eos>"
    path.write_text(json.dumps(content))
    assert Tokenizer(str(path)).fingerprint != trained.fingerprint


@pytest.mark.long
def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    empty = b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}'
    for content in (b"{", b"{}", b"\xff", empty):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"node\.tokenizer: .*x\.json"):
            Tokenizer(str(tmp_path / "x.json"))
    with pytest.raises(ConfigError, match="cannot read nowhere"):
        Tokenizer("nowhere")
    with pytest.raises(ConfigError, match="--vocab is 256: it takes at least 257"):
        train_bpe(TEXTS, vocab_size=256, out=tmp_path / "y")


@pytest.mark.long
def test_a_document_ends_with_a_token(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PIECE_CHARS", 9)
    monkeypatch.setattr(room, "BATCH_CHARS", 50)
    file = BytesIO()
    writer = TokenWriter(file, trained, BuildProgress())
    for text in TEXTS:
        writer.append(text.encode(), end=b"\n")
    writer.flush()
    tokens = np.frombuffer(file.getvalue(), "<u2").tolist()
    assert trained.text_of(tokens) == "".join(f"{text}{END}" for text in TEXTS)
    assert len(writer.digest) == 64


@pytest.mark.long
def test_a_text_is_made_tokens_once(
    trained: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number, text in enumerate(TEXTS):
        (source / f"{number:03}.py").write_text(text)
    config = DataConfig(
        source="files", window=8, eval_window=8, held_out_below=64, tokenizer=trained.fingerprint
    )

    def build() -> Corpus:
        return build_corpus(
            config, folder=str(source), directory=tmp_path / "built", tokenizer=trained
        )

    corpus = build()
    sides = (corpus.train, corpus.held_out)
    texts = [trained.text_of(side[np.arange(len(side))].tolist()) for side in sides]
    assert sorted("".join(texts).split(END)) == sorted(["", *TEXTS])
    assert texts[0].startswith("def f")
    assert texts[1]
    assert corpus.files[-1].path == ENCODED
    inodes = [(tmp_path / "built" / name).stat().st_ino for name in (TRAIN, HELD_OUT)]
    monkeypatch.setattr(Tokenizer, "encode", None)
    assert build().digest == corpus.digest
    assert [(tmp_path / "built" / name).stat().st_ino for name in (TRAIN, HELD_OUT)] == inodes


@pytest.mark.long
def test_the_command_trains_one(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number}.py").write_text(text)
    command = [sys.executable, "-m", "lowcomm.cli.main", "tokenizer", "train", "texts"]
    done = subprocess.run(
        [*command, "--vocab", "280", "--out", "t.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    made = Tokenizer(str(tmp_path / "t.json"))
    assert done.stdout == f"t.json: 280 tokens, digest {made.fingerprint[:8]}\n"
    (tmp_path / "texts" / "scan.pdf").write_bytes(b"%PDF-1.7")
    command[-1] = "texts/scan.pdf"
    done = subprocess.run(
        [*command, "--vocab", "280", "--out", "u.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    assert done.returncode == 2
    assert "texts/scan.pdf is no text: name text files" in done.stderr
    assert not (tmp_path / "u.json").exists()
