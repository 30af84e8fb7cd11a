"""Which files make a corpus, when it is built again, and how it fails."""

import errno
import hashlib
import json
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from lowcomm.config.schema import DataConfig
from lowcomm.data.corpus import (
    HELD_OUT,
    MANIFEST,
    TRAIN,
    Corpus,
    ManifestFile,
    build_corpus,
    is_held_out,
    manifest_digest,
)
from protocols.types.errors import ConfigError

FILES = DataConfig(source="files", window=8, held_out_below=64)


def text(number: int) -> bytes:
    return f"file {number}: some text that is longer than a window\n".encode()


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
    assert corpus.train.tobytes() == b"".join(train)
    assert corpus.held_out.tobytes() == b"".join(held_out)
    assert corpus.train.dtype == np.uint8
    assert not corpus.train.flags.writeable
    assert isinstance(corpus.train, np.memmap)
    assert isinstance(corpus.held_out, np.memmap)


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


def test_the_digest_is_over_a_canonical_text() -> None:
    files = [ManifestFile("a/b.txt", 3, "ab" * 32), ManifestFile('\u00e9"\n', 0, "cd" * 32)]
    canonical = f'[["a/b.txt",3,"{"ab" * 32}"],["\\u00e9\\"\\n",0,"{"cd" * 32}"]]'
    assert manifest_digest(files) == hashlib.sha256(canonical.encode("ascii")).hexdigest()


def test_the_digest_does_not_depend_on_the_place(folder: Path, tmp_path: Path) -> None:
    first = build(folder)
    elsewhere = folder.rename(tmp_path / "moved")
    second = build_corpus(FILES, folder=str(elsewhere), directory=tmp_path / "other")
    assert first.digest == second.digest
    assert first.train.tobytes() == second.train.tobytes()


def test_one_changed_byte_changes_the_digest_and_the_corpus(folder: Path) -> None:
    before = build(folder)
    changed = text(3).replace(b"some", b"Some")
    (folder / "b" / "03.txt").write_bytes(changed)
    after = build(folder)
    assert after.digest != before.digest
    assert changed in after.train.tobytes() + after.held_out.tobytes()
    assert changed not in before.train.tobytes() + before.held_out.tobytes()  # Still mapped.


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
    assert Corpus.open(directory).train.tobytes() == after.train.tobytes()


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
    assert b"\r\n" in corpus.train.tobytes()  # Bytes as they are.


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
