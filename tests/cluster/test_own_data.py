"""Loops with data of their own, between real daemons: each sample once, and its tokens counted."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, RanksLost
from lowcomm.startup.startup import open_log
from protocols.messages import log_entries as e
from protocols.types import Samples
from tests.cluster import own_data_train
from tests.cluster.running import (
    Command,
    Shell,
    commits,
    commits_until,
    digests_of,
    new_shell,
    of,
    token_of,
    until,
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
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    python = torchrun if "node.ranks=2" in arguments else (sys.executable,)
    loop = (*python, own_data_train.__file__, out, *map(str, program))
    return shell.start("peer", "run.toml", *where, *arguments, "--", *loop)


def trained(directory: Path, name: str) -> list[list[int]]:
    """The items of each step of each rank of a node."""
    files = directory.glob(f"{name}.jsonl*")
    lines = [line for file in files for line in file.read_text(encoding="ascii").splitlines()]
    return [json.loads(line)[2] for line in lines]


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(90)
def test_ranks_share_the_batches_of_a_step_that_accumulates(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torchrun leaves a directory of logs there.
    write_config(tmp_path, peers=1, rounds=3, inner=INNER)
    command = node(shell, "alpha", "--new", "--set", "node.ranks=2", program=("items", 12, 1))
    assert command.wait(within_s=80) == 0, command.err
    assert not of(RanksLost, tmp_path)
    steps = trained(tmp_path, "alpha")
    assert [len(step) for step in steps] == [12 * BATCH // 2] * 2 * 3 * INNER
    assert len({item for step in steps for item in step}) == 12 * BATCH * 3 * INNER


@pytest.mark.long
@pytest.mark.deadline(80)
def test_a_sampler_brings_the_runs_samples_to_a_loader_of_the_program(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=2, rounds=ROUNDS, inner=INNER)
    nodes = [node(shell, "alpha", "--new", program=("sampler", 1, 2))]
    token = token_of(tmp_path / "alpha")
    # The run's file names a text. The programs do not use it, so no joiner needs an equal one.
    other = ("--set", "node.corpus=nowhere")
    nodes.append(node(shell, "beta", "--join", token, *other, program=("sampler",)))
    for each in nodes:
        assert each.wait(within_s=60) == 0, each.err
    assert not (tmp_path / "beta" / "corpus" / "manifest.json").exists()
    assert not of(RanksLost, tmp_path)
    steps = [step for name in ("alpha", "beta") for step in trained(tmp_path, name)]
    assert [len(step) for step in steps] == [BATCH] * 2 * ROUNDS * INNER
    assert len({item for step in steps for item in step}) == len(steps) * BATCH


def committed(directory: Path) -> dict[str, list[Samples]]:
    """By the name of a node, the samples of its committed contributions, from a log."""
    wal, saved = open_log(directory)
    wal.close()
    assert saved is not None
    assert saved.snapshot is None, "the log is whole"
    found: dict[str, list[Samples]] = {}
    for entry in saved.entries:
        if isinstance(entry.body, e.Commit) and entry.body.fragment == 0:
            for contributor, samples in zip(
                entry.body.contributors, entry.body.samples, strict=True
            ):
                found.setdefault(contributor.peer.partition(".")[0], []).append(samples)
    return found


@pytest.mark.long
@pytest.mark.deadline(120)
def test_items_of_a_stream_are_trained_once_under_kills_and_a_join(
    shell: Shell, tmp_path: Path
) -> None:
    """alpha's ranks are killed, gamma joins, and beta is killed as a whole. Two processes load the
    items of each node."""
    method = f'name = "streaming_diloco"\ninner_steps = {INNER}\nfragments = 2\noverlap_steps = 1'
    write_config(tmp_path, peers=2, rounds=10_000, method=method)
    alpha, beta, gamma = (tmp_path / name for name in ("alpha", "beta", "gamma"))
    stream = ("stream", 1, 2)
    nodes = [node(shell, "alpha", "--new", program=(*stream, 13))]
    token = token_of(alpha)
    nodes += [node(shell, name, "--join", token, program=stream) for name in ("beta", "gamma")]
    until(lambda: of(RanksLost, alpha), within_s=40, what="alpha losing its ranks")
    for name in (beta, gamma):
        until(
            lambda name=name: sum(x.counted for x in of(Commit, name)) >= 6,
            within_s=40,
            what=f"contributions of {name.name}",
        )
    shell.kill(beta)
    commits_until(gamma, commits(gamma)[-1] + 30, within_s=60)
    for each in (nodes[0], nodes[2]):
        each.signal(signal.SIGTERM)
        each.wait(within_s=30)
    found = committed(alpha)
    assert found.keys() == {"alpha", "beta", "gamma"}
    ranges = [each for counted in found.values() for samples in counted for each in samples]
    items = {item for each in ranges for item in range(each.start, each.stop)}
    assert len(items) == sum(each.stop - each.start for each in ranges), "none is counted twice"
    for name, counted in found.items():
        used = {item for step in trained(tmp_path, name) for item in step}
        counts = {n for samples in counted for x in samples for n in range(x.start, x.stop)}
        assert counts <= used, f"{name} has trained what is counted for it"
    lost = {item for step in trained(tmp_path, "beta") for item in step}
    assert lost <= items, "the other nodes have trained what beta did not finish"


@pytest.mark.long
@pytest.mark.deadline(90)
def test_items_of_a_stream_are_trained_in_steps_that_all_nodes_make_together(
    shell: Shell, tmp_path: Path
) -> None:
    """The ranks of alpha are killed, and its next ones train on its batch of that step."""
    steps = 60
    method = 'name = "flexdemo"\nstep = "sgd"\ncommit_every_steps = 4\nsnapshot_every_steps = 8'
    write_config(tmp_path, peers=2, rounds=steps, method=method)
    nodes = [node(shell, "alpha", "--new", program=("stream", 1, 2, 13))]
    token = token_of(tmp_path / "alpha")
    nodes.append(node(shell, "beta", "--join", token, program=("stream", 1, 2)))
    for each in nodes:
        assert each.wait(within_s=70) == 0, each.err
    items = [
        item for name in ("alpha", "beta") for step in trained(tmp_path, name) for item in step
    ]
    assert set(items) == set(range(max(items) + 1)), "there is no gap"
    again = len(items) - len(set(items))
    assert again <= 2 * BATCH, "only a step that was lost is made again"
    assert len(set(items)) >= 2 * steps * BATCH - steps * BATCH


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


@pytest.mark.long
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
    digests = digests_of(tmp_path / "alpha")
    assert digests == digests_of(tmp_path / "beta")
    assert len(digests) >= ROUNDS
    assert all(commit.counted for commit in of(Commit, tmp_path / "beta")[2:])
    assert not of(RanksLost, tmp_path)
    assert not [*tmp_path.glob("*/corpus")]


@pytest.mark.long
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
