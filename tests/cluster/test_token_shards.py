"""The built-in program on shards of tokens: copies of files train together, other ones do not."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowcomm.reports.events import Evaluated, Finished, RanksLost
from tests.cluster.running import (
    Command,
    Shell,
    commits_until,
    digests_of,
    new_shell,
    of,
    token_of,
    write_config,
)

ROUNDS = 6
TOKENS = ("--set", "run.data.source=tokens", "--set", "run.data.eval_window=64")
LARGEST = 299


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    random = np.random.default_rng(0)
    for name in ("train_000", "train_001", "val_000"):
        tokens = random.integers(0, LARGEST + 1, 40_000).astype("<u2")
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(tokens)
        path = tmp_path / "here" / f"shard_{name}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(header.tobytes() + tokens.tobytes())
    with new_shell(tmp_path) as made:
        yield made


def node(shell: Shell, name: str, corpus: str, *arguments: str) -> Command:
    where = ("--set", f'node.corpus="{shell.directory / corpus}"')
    return shell.peer(name, *arguments, *where)


@pytest.mark.long
@pytest.mark.deadline(100)
def test_copies_of_shards_train_together_and_another_shard_is_refused_by_name(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=2, rounds=ROUNDS)
    shutil.copytree(tmp_path / "here", tmp_path / "there" / "deep")
    shutil.copytree(tmp_path / "here", tmp_path / "other")
    changed = tmp_path / "other" / "shard_train_001.bin"
    content = bytearray(changed.read_bytes())
    content[50_000] ^= 1
    changed.write_bytes(content)
    alpha = node(shell, "alpha", "here", "run.toml", "--new", *TOKENS)
    token = token_of(tmp_path / "alpha")
    gamma = node(shell, "gamma", "other", "--join", token)
    assert gamma.wait(within_s=40) == 3
    (line,) = [line for line in gamma.err.splitlines() if line.startswith("lowcomm: ")]
    assert "on gamma shard_train_001.bin (81024 bytes) has another content in the run" in line
    beta = node(shell, "beta", "there/*/shard_*.bin", "--join", token)
    for each in (alpha, beta):
        assert each.wait(within_s=60) == 0, each.err
    assert not of(RanksLost, tmp_path)
    digests = digests_of(tmp_path / "alpha")
    assert digests == digests_of(tmp_path / "beta")
    assert len(digests) == ROUNDS
    assert len({event.state_digest for event in of(Finished, tmp_path)}) == 1
    evaluated = of(Evaluated, tmp_path)
    assert 5 < evaluated[-1].loss < 8  # log(320) is 5.8.
    assert {event.sample for event in evaluated} == {""}


@pytest.mark.long
@pytest.mark.deadline(60)
def test_a_token_outside_the_vocabulary_ends_the_node_with_the_name_of_the_file(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=1, rounds=100_000)
    small = ("--set", f"run.model.vocab_size={LARGEST}")
    alpha = node(shell, "alpha", "here", "run.toml", "--new", *TOKENS, *small)
    assert alpha.wait(within_s=40) == 2
    (line,) = [line for line in alpha.err.splitlines() if line.startswith("lowcomm: ")]
    assert f"has the token {LARGEST}, but run.model.vocab_size is {LARGEST}" in line
    assert "/shard_" in line


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(150)
def test_json_lines_and_a_tokenizer(shell: Shell, tmp_path: Path) -> None:
    """All nodes need an equal tokenizer; a text is made tokens once."""
    write_config(tmp_path, peers=2, rounds=ROUNDS)
    made = shell.run("tokenizer", "train", "text", "--vocab", "300", "--out", "t.json")
    assert made.popen.returncode == 0, made.err
    other = shell.run("tokenizer", "train", "text", "--vocab", "299", "--out", "other.json")
    assert other.popen.returncode == 0, other.err
    with_tokens = ("--set", "run.data.eval_window=64", "--set", f"node.tokenizer={tmp_path}/t.json")
    alpha = node(shell, "alpha", "text", "run.toml", "--new", *with_tokens)
    token = token_of(tmp_path / "alpha")
    for name, options, words in (
        ("gamma", (), "on gamma node.tokenizer is not set"),
        ("delta", ("--set", f"node.tokenizer={tmp_path}/other.json"), "other.json has "),
    ):
        refused = node(shell, name, "text", "--join", token, *options)
        assert refused.wait(within_s=40) == 3
        assert words in refused.err
    beta = node(shell, "beta", "text", "--join", token, *with_tokens[2:])
    for each in (alpha, beta):
        assert each.wait(within_s=60) == 0, each.err
    assert not of(RanksLost, tmp_path)
    assert len({event.state_digest for event in of(Finished, tmp_path)}) == 1
    assert of(Evaluated, tmp_path)[-1].sample.startswith("def")


@pytest.mark.long
@pytest.mark.deadline(100)
def test_shards_are_mapped_again_after_a_restart(shell: Shell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=1, rounds=100_000)
    alpha = node(shell, "alpha", "here", "run.toml", "--new", *TOKENS)
    commits_until(tmp_path / "alpha", 3)
    before = (tmp_path / "alpha" / "corpus" / "manifest.json").stat().st_ino
    shell.kill(tmp_path / "alpha")
    alpha.wait(within_s=10)
    shell.start("resume", "alpha")
    commits_until(tmp_path / "alpha", 30, within_s=60)
    assert (tmp_path / "alpha" / "corpus" / "manifest.json").stat().st_ino == before
