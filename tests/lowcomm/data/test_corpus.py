"""Which files make a corpus, when it is built again, and how it fails."""

import errno
import gzip
import hashlib
import json
import os
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowcomm.config.schema import DataConfig
from lowcomm.data.build_progress import BuildProgress, BuildStoppedError
from lowcomm.data.corpus import (
    HELD_OUT,
    MANIFEST,
    TRAIN,
    Corpus,
    build_corpus,
    is_held_out,
    read_texts,
)
from lowcomm.data.manifest import ManifestFile, manifest_digest
from lowcomm.data.token_shards import TokenArray
from protocols.types.errors import ConfigError

FILES = DataConfig(source="files", window=8, held_out_below=64)
TOKENS = DataConfig(source="tokens", window=8, eval_window=8)


def text(number: int) -> bytes:
    return f"file {number}: some text that is longer than a window\n".encode()


def shard(path: Path, tokens: range, kind: str = "<u2") -> None:
    np.array(tokens, kind).tofile(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty small files in two directories; about a quarter of them is held out."""
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    for number in range(40):
        where = folder / "b" if number % 2 else folder
        (where / f"{number:02}.txt").write_bytes(text(number))
    return folder


def build(folder: Path, config: DataConfig = FILES) -> Corpus:
    return build_corpus(config, folder=str(folder), directory=folder.parent / "built")


def content(tokens: TokenArray) -> bytes:
    return tokens[np.arange(len(tokens))].tobytes()


def identity(directory: Path) -> list[int]:
    """Inode numbers: other ones after a new build, even of equal bytes."""
    return [(directory / name).stat().st_ino for name in (TRAIN, HELD_OUT, MANIFEST)]


def test_every_byte_goes_to_one_side_by_its_files_hash_in_path_order(folder: Path) -> None:
    corpus = build(folder)
    # "00.txt" < "b/01.txt": digits sort before letters, so the even files come first.
    contents = [text(number) for number in [*range(0, 40, 2), *range(1, 40, 2)]]
    held_out = [content for content in contents if hashlib.sha256(content).digest()[0] < 64]
    train = [content for content in contents if hashlib.sha256(content).digest()[0] >= 64]
    assert held_out
    assert content(corpus.train) == b"".join(train)
    assert content(corpus.held_out) == b"".join(held_out)
    assert isinstance(corpus.train, np.memmap)
    assert isinstance(corpus.held_out, np.memmap)
    assert corpus.train.dtype == np.uint8
    assert not corpus.train.flags.writeable


def test_the_first_byte_of_the_hash_decides() -> None:
    assert is_held_out("07" + "f" * 62, 8)
    assert not is_held_out("08" + "0" * 62, 8)
    assert not is_held_out("00" + "0" * 62, 0)
    assert is_held_out("f" * 64, 256)


def test_the_manifest_lists_path_size_and_hash(folder: Path) -> None:
    corpus = build(folder)
    manifest = json.loads((folder.parent / "built" / MANIFEST).read_bytes())
    rows = [ManifestFile(*row) for row in manifest["files"]]
    assert [row.path for row in rows][:2] == ["00.txt", "02.txt"]
    assert rows[-1] == ManifestFile("b/39.txt", len(text(39)), hashlib.sha256(text(39)).hexdigest())
    assert corpus.digest == manifest["digest"] == manifest_digest(rows)


def test_the_digest_does_not_depend_on_the_place(folder: Path, tmp_path: Path) -> None:
    first = build(folder)
    elsewhere = folder.rename(tmp_path / "moved")
    second = build_corpus(FILES, folder=str(elsewhere), directory=tmp_path / "other")
    assert first.digest == second.digest
    assert content(first.train) == content(second.train)


def test_one_changed_byte_changes_the_digest_and_the_corpus(folder: Path) -> None:
    before = build(folder)
    changed = text(3).replace(b"some", b"Some")
    (folder / "b" / "03.txt").write_bytes(changed)
    after = build(folder)
    assert after.digest != before.digest
    assert changed in content(after.train) + content(after.held_out)
    assert changed not in content(before.train) + content(before.held_out)  # Still mapped.


def test_a_renamed_file_changes_the_digest(folder: Path) -> None:
    before = build(folder)
    (folder / "00.txt").rename(folder / "00.md")
    assert build(folder).digest != before.digest


def test_an_unchanged_corpus_is_reused(folder: Path) -> None:
    before = build(folder)
    inodes = identity(folder.parent / "built")
    after = build(folder)
    assert identity(folder.parent / "built") == inodes
    assert after.digest == before.digest


@pytest.mark.parametrize("broken", [TRAIN, HELD_OUT, MANIFEST])
def test_a_torn_corpus_is_not_opened_but_built_again(folder: Path, broken: str) -> None:
    before = build(folder)
    directory = folder.parent / "built"
    with (directory / broken).open("r+b") as file:
        file.truncate(20)
    with pytest.raises(ConfigError, match="no complete corpus"):
        Corpus.open(directory)
    after = build(folder)
    assert after.digest == before.digest
    assert content(Corpus.open(directory).train) == content(after.train)


def test_a_build_cut_off_leaves_nothing_that_could_be_taken_for_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(folder)
    directory = folder.parent / "built"
    content = (folder / "00.txt").read_bytes()
    (folder / "00.txt").write_bytes(content.replace(b"some", b"more"))  # Of equal length.
    rename = os.replace

    def fails_at_the_manifest(source: str, target: Path) -> None:
        if target.name == MANIFEST:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    with monkeypatch.context() as full:
        full.setattr(os, "replace", fails_at_the_manifest)
        with pytest.raises(ConfigError, match="No space left"):
            build(folder)
    with pytest.raises(ConfigError, match="no complete corpus"):
        Corpus.open(directory)
    build(folder)
    assert len(list(directory.iterdir())) == 3  # No temporary file is left.


@pytest.mark.parametrize("name", ["00.txt", "all.jsonl", "shard"])
def test_a_build_can_be_stopped_at_each_part(folder: Path, name: str) -> None:
    """At each file, and at each document and large block of a file."""
    config, checks = FILES, list[int]()
    if name == "all.jsonl":
        (folder / name).write_text('{"text": "a text"}\n' * 1000)
    elif name == "shard":
        config = TOKENS
        for number in range(40):
            shard(folder / f"{number}.bin", range(1000))

    class Stopping(BuildProgress):
        def raise_if_stopped(self) -> None:
            checks.append(1)
            if len(checks) == 30:
                self.request_stop()
            super().raise_if_stopped()

    progress = Stopping()
    with pytest.raises(BuildStoppedError):
        build_corpus(
            config, folder=str(folder), directory=folder.parent / "built", progress=progress
        )
    assert len(checks) == 30
    assert list((folder.parent / "built").iterdir()) == []


def test_another_rule_for_what_is_held_out_builds_again(folder: Path) -> None:
    before = build(folder)
    after = build(folder, DataConfig(source="files", window=8, held_out_below=128))
    assert len(after.held_out) > len(before.held_out)
    assert after.digest == before.digest  # The files are the same; the rule is in [run].


def test_nothing_is_left_lying_about(folder: Path) -> None:
    build(folder)
    assert {path.name for path in (folder.parent / "built").iterdir()} == {
        TRAIN,
        HELD_OUT,
        MANIFEST,
    }


def test_the_files_of_a_build_that_was_killed_are_removed(folder: Path) -> None:
    directory = folder.parent / "built"
    directory.mkdir()
    for name in (f".{TRAIN}.x1y2z3", f".{TRAIN}.a4b5c6", f".{HELD_OUT}.x", f".{MANIFEST}.x"):
        (directory / name).write_bytes(b"half a corpus")
    (directory / "expected.json").write_bytes(b"{}")
    build(folder)
    names = {path.name for path in directory.iterdir()}
    assert names == {TRAIN, HELD_OUT, MANIFEST, "expected.json"}


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    before = build(folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(b"not part of the corpus")
    (folder / "directory").symlink_to(outside)
    (folder / "file.txt").symlink_to(outside / "secret.txt")
    assert build(folder).digest == before.digest


def test_the_standard_library_without_tests_and_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib"
    for name in (
        *(f"module{number}.py" for number in range(40)),
        "json/decoder.py",
        "test/test_json.py",
        "json/tests/test_decoder.py",
        "idlelib/idle_test/test_x.py",
        "site-packages/numpy/core.py",
        "dist-packages/apt.py",
        "LICENSE.txt",
        "json/decoder.pyc",
    ):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(f"# {name} and some more of it\r\n", newline="")

    def get_path(name: str) -> str:
        return {"stdlib": str(library)}[name]

    monkeypatch.setattr(sysconfig, "get_path", get_path)
    config = DataConfig(source="stdlib", window=8, held_out_below=64)
    corpus = build_corpus(config, folder="", directory=tmp_path / "built")
    manifest = json.loads((tmp_path / "built" / MANIFEST).read_bytes())
    paths = [row[0] for row in manifest["files"]]
    assert paths == ["json/decoder.py", *sorted(f"module{number}.py" for number in range(40))]
    assert b"\r\n" in content(corpus.train)  # Bytes as they are.


def test_errors_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    def fails(where: str, *, config: DataConfig = FILES, directory: str = "built") -> str:
        with pytest.raises(ConfigError) as caught:
            build_corpus(config, folder=where, directory=tmp_path / directory)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "set node.corpus to a folder" in fails("")
    assert "is not a folder" in fails(str(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    assert "0 bytes to train on in 0 files" in fails(str(tmp_path / "empty"))
    (tmp_path / "links").mkdir()
    for name in ("file.txt", "folder"):
        (tmp_path / "links" / name).symlink_to(folder)
    assert "2 symbolic links there are not followed" in fails(str(tmp_path / "links"))
    long = DataConfig(source="files", window=5000, held_out_below=64)
    assert "one sample takes 5001" in fails(str(folder), config=long)
    none = DataConfig(source="files", window=8, held_out_below=1)
    assert "raise run.data.held_out_below" in fails(str(folder), config=none)
    assert "outside" in fails(str(folder), directory="texts/run")
    (tmp_path / "file").write_bytes(b"")
    assert "cannot build the corpus" in fails(str(folder), directory="file/below")


def test_a_window_too_long_for_a_corpus_that_is_reused_is_refused_too(folder: Path) -> None:
    build(folder)
    with pytest.raises(ConfigError, match="one sample takes 5001"):
        build(folder, DataConfig(source="files", window=5000, held_out_below=64))


def test_folders_as_people_have_them(folder: Path) -> None:
    """Nested, some packed; hidden files are passed over, and others that are no text counted."""
    before = build(folder)
    deep = folder / "b" / "deep"
    deep.mkdir()
    (deep / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    (deep / "book.pdf").write_bytes(b"%PDF-1.7 in letters only")
    (deep / "tree.tar.gz").write_bytes(gzip.compress(b"name" + bytes(100)))
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_bytes(b"ref: refs/heads/main")
    (folder / ".DS_Store").write_bytes(b"not part of it")
    after = build(folder)
    assert (after.skipped, before.skipped) == (3, 0)
    assert after.digest == before.digest
    packed = gzip.compress(b"a packed text, which is read as if it were not\n")
    (deep / "more.txt.gz").write_bytes(packed)
    corpus = build(folder)
    assert b"a packed text" in content(corpus.train) + content(corpus.held_out)
    assert corpus.files[-1].path == "b/deep/more.txt.gz"
    assert corpus.files[-1].size_bytes == len(packed)


def test_documents_of_json_lines_are_held_out_one_by_one(tmp_path: Path) -> None:
    texts = [f"document {number}, long enough" for number in range(60)]
    source = tmp_path / "texts"
    source.mkdir()
    lines = [json.dumps({"id": number, "body": text}) for number, text in enumerate(texts)]
    (source / "all.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    config = replace(FILES, text_key="body", eval_window=8)
    corpus = build(source, config)
    held_out = [text for text in texts if hashlib.sha256(text.encode()).digest()[0] < 64]
    train = [text for text in texts if text not in held_out]
    assert content(corpus.train).decode() == "".join(f"{text}\n" for text in train)
    assert content(corpus.held_out).decode() == "".join(f"{text}\n" for text in held_out)
    (source / "all.jsonl").unlink()
    with gzip.open(source / "all.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    assert content(build(source, config).train) == content(corpus.train)


def test_shards_are_not_copied(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    shard(shards / "train_1.bin", range(1000, 1500))
    shard(shards / "train_0.bin", range(1000))
    shard(shards / "val.bin", range(30))
    corpus = build(shards, TOKENS)
    assert [path.name for path in (tmp_path / "built").iterdir()] == [MANIFEST]
    places = np.array([[0, 999, 1000], [1499, 500, 1]])
    np.testing.assert_array_equal(corpus.train[places], places)
    assert (len(corpus.train), len(corpus.held_out)) == (1500, 30)
    assert corpus.vocab_size(BuildProgress()) == 1536  # A multiple of 64 above 1499.
    assert [file.path for file in corpus.files] == ["train_0.bin", "train_1.bin", "val.bin"]


def test_copies_of_shards_have_one_digest(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shard(tmp_path / name / "x.bin", range(20000))
    first, second = (
        build_corpus(TOKENS, folder=where, directory=tmp_path / f"built{number}")
        for number, where in enumerate((str(tmp_path / "a"), str(tmp_path / "b" / "*.bin")))
    )
    assert first.digest == second.digest
    assert len(first.held_out) == 20000 * 8 // 256
    shard(tmp_path / "b" / "x.bin", range(1, 20001))
    changed = build_corpus(TOKENS, folder=str(tmp_path / "b"), directory=tmp_path / "built1")
    assert changed.digest != first.digest


def test_too_few_tokens_are_refused(tmp_path: Path) -> None:
    shard(tmp_path / "val.bin", range(30))
    message = r"has 0 tokens to train on in 1 files, .*: add shards without val or test in their"
    with pytest.raises(ConfigError, match=message):
        build_corpus(TOKENS, folder=str(tmp_path / "val.bin"), directory=tmp_path / "built")
    (tmp_path / "shards" / "val").mkdir(parents=True)
    shard(tmp_path / "shards" / "train.bin", range(1000))
    with pytest.raises(ConfigError, match=r"to train on.*: name a folder with more text"):
        build(tmp_path / "shards", replace(TOKENS, window=1000))
    shard(tmp_path / "shards" / "val" / "0.bin", range(8))
    with pytest.raises(ConfigError, match=r"8 held-out tokens in 2 files.*: add a longer val\*"):
        build(tmp_path / "shards", TOKENS)
    with pytest.raises(ConfigError, match="outside"):
        build_corpus(TOKENS, folder=str(tmp_path), directory=tmp_path / "built")


def test_a_folder_of_texts_for_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"text": "one\\ntwo"}\n{"text": "three"}\n')
    texts = list(read_texts([folder, tmp_path / "one.jsonl"], text_key="text"))
    assert texts[:2] == [text(0).decode(), text(2).decode()]
    assert texts[-2:] == ["one\ntwo", "three"]
    assert len(texts) == 42


def test_nothing_is_no_text_for_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x.txt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no text in .*empty: name text files, JSON lines or"):
        list(read_texts([tmp_path / "empty"], text_key="text"))
    pdf = tmp_path / "a.pdf"
    pdf.write_bytes(b"%PDF-1.7 in letters only")
    (tmp_path / "b.txt").write_bytes(b"a text")
    with pytest.raises(ConfigError, match=r"a\.pdf is no text: name text files, JSON lines or"):
        list(read_texts([tmp_path / "b.txt", pdf], text_key="text"))
    assert list(read_texts([tmp_path], text_key="text")) == ["a text"]


def test_a_folder_in_the_home_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    one = build_corpus(FILES, folder=f"~/{folder.name}", directory=folder.parent / "one")
    assert one.digest == build(folder).digest
    for number in range(2):
        shard(folder / f"{number}.bin", range(1000))
    with pytest.raises(ConfigError, match="outside"):
        build_corpus(TOKENS, folder=f"~/{folder.name}", directory=folder / "node")


@pytest.mark.parametrize("rule", [{"text_key": "b"}, {"tokenizer": "c" * 64}])
def test_another_rule_reads_the_files_again(rule: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    lines = [json.dumps({"text": f"first {n}, long", "b": f"other {n}, long"}) for n in range(60)]
    (source / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    config = replace(FILES, eval_window=8)
    before = build(source, config)
    inodes = identity(tmp_path / "built")
    after = build(source, replace(config, **rule))
    assert identity(tmp_path / "built") != inodes
    assert after.digest == before.digest, "the rules are in [run]"
