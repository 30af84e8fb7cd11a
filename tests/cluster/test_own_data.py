"""Loops with data of their own, between real daemons: each sample once, and its tokens counted."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, RanksLost
from tests.cluster import own_data_train
from tests.cluster.running import (
    Command,
    Shell,
    commits_until,
    new_shell,
    of,
    token_of,
    write_config,
)

ROUNDS, INNER, BATCH, WINDOW = 6, 5, 4, 64
PYTHONPATH = str(Path(__file__).parents[2])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    with new_shell(tmp_path) as made:
        yield made


def node(shell: Shell, name: str, *arguments: str, program: tuple[object, ...]) -> Command:
    out = str(shell.directory / f"{name}.jsonl")
    where = ["--set", f"node.name={name}", "--set", f'node.directory="{name}"']
    loop = (sys.executable, own_data_train.__file__, out, *map(str, program))
    return shell.start("peer", "run.toml", *where, *arguments, "--", *loop)


def trained(directory: Path, name: str) -> list[list[int]]:
    """The items of each step of a node."""
    lines = (directory / f"{name}.jsonl").read_text(encoding="ascii").splitlines()
    return [json.loads(line)[2] for line in lines]


@pytest.mark.deadline(100)
def test_nodes_that_accumulate_other_numbers_of_batches_train_each_item_once(
    shell: Shell, tmp_path: Path
) -> None:
    """alpha steps once in 12 batches, which two processes load: more than a lease of usual size
    would last for. beta is an ordinary node."""
    write_config(tmp_path, peers=2, rounds=ROUNDS, inner=INNER)
    alpha = tmp_path / "alpha"
    nodes = [node(shell, "alpha", "--new", program=("items", 12, 2))]
    nodes.append(node(shell, "beta", "--join", token_of(alpha), program=("items",)))
    for each in nodes:
        assert each.wait(within_s=80) == 0, each.err
    assert not of(RanksLost, tmp_path)
    items = [trained(tmp_path, name) for name in ("alpha", "beta")]
    assert [len(steps) for steps in items] == [ROUNDS * INNER] * 2
    assert {len(step) for step in items[0]} == {12 * BATCH}
    every = [item for steps in items for step in steps for item in step]
    assert len(set(every)) == len(every) == ROUNDS * INNER * 13 * BATCH
    tokens = [commit.tokens for commit in of(Commit, alpha)]
    assert tokens == [INNER * 13 * BATCH * WINDOW] * ROUNDS


@pytest.mark.deadline(60)
def test_a_loop_that_accumulates_without_a_word_is_told_how_to_say_it(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=1, rounds=10_000, inner=INNER)
    command = node(shell, "alpha", "--new", program=("undeclared", 4))
    assert command.wait(within_s=40) == 2, command.err
    (line,) = [line for line in command.err.splitlines() if line.startswith("lowcomm: ")]
    assert "peer.batches(..., accumulate=K)" in line
    assert len(of(RanksLost, tmp_path / "alpha")) <= 1
    commits_until(tmp_path / "alpha", 1)


@pytest.mark.deadline(60)
def test_a_loop_that_draws_no_batches_is_refused_at_its_second_step(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=1, rounds=ROUNDS, inner=INNER)
    command = node(shell, "alpha", "--new", program=("loader",))
    assert command.wait(within_s=40) == 2, command.err
    (line,) = [line for line in command.err.splitlines() if line.startswith("lowcomm: ")]
    for words in ("draws no batches of the run", "peer.batches(dataset)", '"private"'):
        assert words in line
    assert len(trained(tmp_path, "alpha")) == 2
    assert not of(RanksLost, tmp_path / "alpha")


@pytest.mark.deadline(100)
def test_nodes_with_private_data_share_only_numbers_of_tokens(shell: Shell, tmp_path: Path) -> None:
    """The joiner has no file of the run, and no text."""
    method = f'name = "streaming_diloco"\ninner_steps = {INNER}\nfragments = 2\noverlap_steps = 1'
    write_config(tmp_path, peers=2, rounds=ROUNDS, method=method)
    private = ("--set", 'run.data.source="private"')
    alpha = tmp_path / "alpha"
    nodes = [node(shell, "alpha", "--new", *private, program=("loader",))]
    token = token_of(alpha)
    other = shell.peer("gamma", "--join", token)
    assert other.wait(within_s=30) != 0
    assert "this run has no text for the built-in program" in other.err
    nodes.append(node(shell, "beta", *private, "--join", token, program=("loader",)))
    for each in nodes:
        assert each.wait(within_s=60) == 0, each.err
    commits = [of(Commit, tmp_path / name) for name in ("alpha", "beta")]
    digests = [{(x.fragment, x.round): x.state_digest for x in each} for each in commits]
    assert digests[0] == digests[1]
    assert len(digests[0]) >= ROUNDS
    assert all(commit.counted for commit in commits[1][2:])
    assert not of(RanksLost, tmp_path)
    assert not [*tmp_path.glob("*/corpus")]


@pytest.mark.deadline(60)
def test_a_run_of_programs_with_their_own_dataset_has_no_text(shell: Shell, tmp_path: Path) -> None:
    """So no difference between two texts that they do not use can refuse a node."""
    write_config(tmp_path, peers=2, rounds=2, inner=INNER)
    unnamed = ("--set", 'run.data.source=""')
    alpha = tmp_path / "alpha"
    nodes = [node(shell, "alpha", "--new", *unnamed, program=("items",))]
    nodes.append(node(shell, "beta", "--join", token_of(alpha), *unnamed, program=("items",)))
    for each in nodes:
        assert each.wait(within_s=40) == 0, each.err
    assert not [*tmp_path.glob("*/corpus")]
