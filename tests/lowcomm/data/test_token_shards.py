"""Shards of tokens: formats, which are held out, fingerprints, and errors that name the file."""

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowcomm.data import token_shards
from lowcomm.data.build_progress import BuildProgress
from lowcomm.data.token_shards import (
    ShardedTokens,
    TokenFile,
    divide,
    find_shards,
    fingerprint,
    read_shard,
)
from protocols.types.errors import ConfigError


def headed(path: Path, tokens: "np.ndarray[Any, Any]", *, magic: int, version: int) -> Path:
    """As llm.c and modded-nanogpt write it."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


def read(path: Path, plain_type: str = "uint16") -> list[int]:
    return read_shard(path, plain_type=plain_type).map().tolist()


def test_formats(tmp_path: Path) -> None:
    tokens = [7, 50256, 0, 65535]
    small, large = np.array(tokens, "<u2"), np.array([*tokens, 128255], "<u4")
    path = tmp_path / "x.bin"
    small.tofile(path)
    assert read(path) == tokens
    large.tofile(path)
    assert read(path, "uint32") == [*tokens, 128255]
    assert read(headed(path, small, magic=20240520, version=1), "uint32") == tokens
    assert read(headed(path, large, magic=20240801, version=7)) == [*tokens, 128255]
    path.write_bytes(b"ab")
    assert read(path) == [ord("a") + 256 * ord("b")]


def test_a_size_that_does_not_fit_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"abc")
    with pytest.raises(ConfigError, match=r"x\.bin has 3 bytes, .* uint16 \(run\.data\.shard_type"):
        read(path)
    headed(path, np.zeros(9, "<u2"), magic=20240520, version=1)
    for cut in (path.read_bytes()[:-2], path.read_bytes() + b"xx", path.read_bytes()[:500]):
        path.write_bytes(cut)
        with pytest.raises(ConfigError, match=r"x\.bin has .* do not fit 9 tokens of uint16: copy"):
            read(path)


def test_a_file_a_folder_and_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.bin", "a.bin", "deep/c.bin", "deep/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link.bin").symlink_to(tmp_path / "deep" / "c.bin")

    def names(where: str) -> list[str]:
        root, files = find_shards(where)
        return [file.relative_to(root).as_posix() for file in files]

    assert names(str(tmp_path)) == ["a.bin", "b.bin", "deep/c.bin", "link.bin"]
    assert names(str(tmp_path / "b.bin")) == ["b.bin"]
    assert names(str(tmp_path / "[ab]*")) == ["a.bin", "b.bin"]
    assert names(str(tmp_path / "**" / "c.bin")) == ["c.bin"]
    monkeypatch.chdir(tmp_path)
    assert names("d*/*.bin") == ["c.bin"]
    assert names("**/[bc].bin") == ["b.bin", "deep/c.bin"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("~/[ab]*.bin") == ["a.bin", "b.bin"]
    for nothing in ("", "deep/x.bin", "x*.bin"):
        with pytest.raises(ConfigError, match=r"names no \.bin files"):
            names(nothing)


def file(name: str, tokens: int, first_byte: int = 0) -> TokenFile:
    return TokenFile(name, "uint16", first_byte, tokens)


@pytest.mark.parametrize(
    "name",
    [
        "val/000.bin",
        "x/eval/1/a.bin",
        "val.bin",
        "fineweb_val_000000.bin",
        "tiny-validation.bin",
        "x.test.bin",
        "VAL_1.bin",
    ],
)
def test_names_say_what_is_held_out(name: str) -> None:
    files = [file("/data/train.bin", 9), file(f"/data/{name}", 5)]
    assert divide(files, Path("/data"), held_out_below=8) == (files[:1], files[1:])


def test_otherwise_it_is_the_end() -> None:
    files = [file("/val/interval.bin", 100, 1024), file("/val/latest.bin", 28)]
    assert divide(files, Path("/val"), held_out_below=128) == (
        [file("/val/interval.bin", 64, 1024)],
        [file("/val/interval.bin", 36, 1024 + 128), file("/val/latest.bin", 28)],
    )
    assert divide(files, Path("/val"), held_out_below=1) == (files, [])  # Half a token: none.


@pytest.mark.parametrize("sizes", [[7], [3, 1, 5], [2] * 9])
def test_several_files_are_one_array(sizes: list[int], tmp_path: Path) -> None:
    whole = np.arange(100, dtype="<u2")
    whole.tofile(tmp_path / "x")
    starts = np.cumsum([11, *sizes])
    tokens = ShardedTokens(
        [
            file(str(tmp_path / "x"), size, 2 * start)
            for size, start in zip(sizes, starts, strict=False)
        ]
    )
    places = np.arange(len(tokens))[::-1].reshape(1, -1)
    np.testing.assert_array_equal(tokens[places], whole[11 : starts[-1]][None, ::-1])
    assert tokens[places].dtype == np.int64
    assert tokens.largest(BuildProgress()) == starts[-1] - 1


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    files: list[TokenFile] = []
    for number in range(200):
        np.array([number], "<u2").tofile(tmp_path / f"{number}.bin")
        files.append(file(str(tmp_path / f"{number}.bin"), 1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    tokens = [ShardedTokens(files), ShardedTokens(files)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 2 * token_shards.MAPPED_MAX + 20, hard))
    try:
        for each in tokens:
            assert each[np.arange(200)].tolist() == [*range(200)]
            assert each[np.arange(200)[::-1]].tolist() == [*range(200)][::-1]
            assert each.largest(BuildProgress()) == 199
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_has_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"abcd")
    tokens = ShardedTokens([file(str(tmp_path / "x.bin"), 3)])
    with pytest.raises(ConfigError, match=r"cannot read the tokens of .*x\.bin: mmap length"):
        tokens[np.array([0])]
    (tmp_path / "x.bin").unlink()
    with pytest.raises(ConfigError, match=r"cannot read the tokens of .*x\.bin: .*No such file"):
        tokens[np.array([0])]


def test_a_token_outside_the_vocabulary_names_its_file(tmp_path: Path) -> None:
    files: list[TokenFile] = []
    for name, top in (("a", 9), ("b", 300)):
        np.array([0, top], "<u2").tofile(tmp_path / name)
        files.append(read_shard(tmp_path / name, plain_type="uint16"))
    tokens = ShardedTokens(files, vocab_size=300)
    assert tokens[np.array([0, 1, 2])].tolist() == [0, 9, 0]
    with pytest.raises(
        ConfigError, match=r"/b has the token 300, but run\.model\.vocab_size is 300"
    ):
        tokens[np.array([0, 3])]
    assert ShardedTokens(files, vocab_size=301)[np.array([3])].tolist() == [300]
    assert tokens.largest(BuildProgress()) == 300


def test_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.bin"

    def print_of(content: bytes) -> str:
        path.write_bytes(content)
        return fingerprint(path)

    content = bytes(5000)
    whole = print_of(content)
    assert whole == print_of(content)
    assert len({whole, print_of(content[1:]), print_of(content[1:] + b"x"), print_of(b"")}) == 4
    # Of a large file, samples: its first and last bytes are among them.
    monkeypatch.setattr(token_shards, "WHOLE_BYTES_MAX", 4999)
    monkeypatch.setattr(token_shards, "SAMPLED_BYTES", 16)
    monkeypatch.setattr(token_shards, "SAMPLED_BLOCKS", 8)
    sampled = print_of(content)
    for place in (0, 4999):
        assert print_of(content[:place] + b"x" + content[place + 1 :]) != sampled
    assert print_of(content[:100] + b"x" + content[101:]) == sampled
