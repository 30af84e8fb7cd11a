"""The built-in trainer: nodes that compute differently, and runs that are trained on."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from lowcomm.reports.events import Commit, Evaluated, Finished, RanksLost, RanksReady
from tests.cluster.running import (
    Shell,
    commits,
    commits_until,
    leaves,
    new_shell,
    of,
    token_of,
    until,
    write_config,
)
from tests.marks import LONG, NIGHTLY

ROUNDS = 6
FRUGAL = ("node.ranks=2", 'node.compute="bf16"', "node.micro_batch=1")
RECOMPUTED = (*FRUGAL, "node.activation_checkpointing=true")
SHARED = ("run.data.eval_every_rounds=2", "run.protocol.round_grace_s=300.0")
"""Of all nodes. Compiling a step takes minutes on a busy machine: the rounds wait for it."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with new_shell(tmp_path) as made:
        yield made


def keys(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def finish(shell: Shell, config: Path, *, within_s: float, beta: tuple[str, ...]) -> None:
    """Alpha computes as ever, beta in another way; to the end of the run."""
    alpha = config.parent / "alpha"
    first = shell.peer("alpha", str(config), "--new", *keys(*SHARED))
    join = ("--join", token_of(alpha))
    second = shell.peer("beta", str(config), *join, *keys(*SHARED, *beta))
    for command in (first, second):
        assert command.wait(within_s=within_s) == 0, command.err


@pytest.mark.deadline(420)
@pytest.mark.parametrize(
    ("beta", "within_s"),
    [
        pytest.param(RECOMPUTED, 60, marks=LONG),
        pytest.param((*RECOMPUTED, "node.compile=true"), 400, marks=NIGHTLY),
    ],
    ids=["bf16", "compiled"],
)
def test_nodes_that_compute_in_different_ways_hold_the_same_state(
    beta: tuple[str, ...], within_s: float, shell: Shell, tmp_path: Path
) -> None:
    config = write_config(tmp_path, peers=2, rounds=ROUNDS)
    finish(shell, config, within_s=within_s, beta=beta)
    digests: dict[int, list[str]] = {}
    for commit in of(Commit, tmp_path):
        assert len(commit.roster) == 2
        digests.setdefault(commit.round, []).append(commit.state_digest)
    assert sorted(digests) == list(range(1, ROUNDS + 1))
    assert all(len(each) == 2 and len(set(each)) == 1 for each in digests.values())
    assert of(RanksLost, tmp_path) == []
    found = of(Evaluated, tmp_path)
    assert [each.round for each in found] == [2, 4, 6]
    assert found[0].loss > found[1].loss > found[2].loss
    assert [bool(each.sample) for each in found] == [False, False, True]


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(240)
def test_a_finished_run_is_trained_on_by_all_its_nodes(shell: Shell, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=2, rounds=ROUNDS)
    finish(shell, config, within_s=60, beta=())
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    for setting, words in (
        ("run.outer_steps=6", "the run has 6 outer steps already"),
        ("run.seed=2", "only run.outer_steps=N can change"),
    ):
        refused = shell.run("resume", str(alpha), "--set", setting)
        assert refused.popen.returncode == 2
        assert words in refused.err

    first = shell.start("resume", str(alpha), "--set", "run.outer_steps=4000")
    commits_until(alpha, ROUNDS + 3)
    assert "trains on, up to outer step 4000" in first.out
    assert commits(alpha)[: ROUNDS + 3] == list(range(1, ROUNDS + 4))
    before = {commit.lineage for commit in of(Commit, alpha) if commit.round <= ROUNDS}
    after = {commit.lineage for commit in of(Commit, alpha) if commit.round > ROUNDS}
    assert (len(before), len(after), len(before & after)) == (1, 1, 0)

    shell.start("resume", str(beta), "--join", token_of(alpha))
    until(lambda: together(alpha), within_s=40, what="a round of both")
    ends_at = commits(alpha)[-1] + 100
    asked = shell.run("set", str(alpha), f"run.outer_steps={ends_at}")
    assert asked.popen.returncode == 0, asked.err
    assert first.wait(within_s=60) == 0, first.err
    ends = until(lambda: of(Finished, beta)[1:], within_s=20, what="the end at beta")
    assert {ends[-1].outer_steps, of(Finished, alpha)[-1].outer_steps} == {ends_at}
    assert ends[-1].state_digest == of(Finished, alpha)[-1].state_digest
    third = shell.run("resume", str(alpha))
    assert f"finished after {ends_at} outer steps: nothing to resume" in third.out


def together(directory: Path) -> bool:
    return any(len(each.roster) == 2 for each in of(Commit, directory) if each.round > ROUNDS)


@pytest.mark.long
@pytest.mark.deadline(300)
def test_a_run_of_several_nodes_is_trained_on_by_one_command(shell: Shell, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=2, rounds=ROUNDS)
    run_dir = tmp_path / "runs" / "tiny"
    first = shell.run("sim", str(config), "--peers", "2", within_s=80)
    assert first.popen.returncode == 0, first.err
    more = f"run.outer_steps={ROUNDS + 100}"
    again = shell.run("resume", str(run_dir), "--set", more, within_s=200)
    assert again.popen.returncode == 0, again.err
    assert together(run_dir)
    assert {end.outer_steps for end in of(Finished, run_dir)[2:]} == {ROUNDS + 100}
    third = shell.run("resume", str(run_dir))
    assert "nothing to resume" in third.out


@pytest.mark.long
@pytest.mark.deadline(100)
def test_a_new_run_begins_with_the_parameters_of_a_finished_one(
    shell: Shell, tmp_path: Path
) -> None:
    config = write_config(tmp_path, peers=1, rounds=ROUNDS)
    first = shell.peer("alpha", str(config), "--new")
    assert first.wait(within_s=60) == 0, first.err
    path, _ = newest_checkpoint(tmp_path / "alpha" / "checkpoints")
    assert path is not None
    _, _, ended = read_checkpoint(path)

    begins = f'run.model.init_from="{tmp_path / "alpha"}"'
    other = shell.peer("gamma", str(config), "--new", *keys(begins, "run.peers_min=2"))
    start = tmp_path / "gamma" / "checkpoints" / "round-000000"
    until((start / "cut.json").exists, within_s=30, what="the initial state on disk")
    _, _, begun = read_checkpoint(start)
    assert [x.outer.tobytes() for x in begun] == [x.outer.tobytes() for x in ended]
    other.signal(signal.SIGTERM)
    other.wait(within_s=10)

    wrong = shell.peer("delta", str(config), "--new", *keys(begins, "run.model.layers=3"))
    assert wrong.wait(within_s=30) == 2
    assert "it has no model.layers.2.self_attn.q_proj.weight, which run.model has" in wrong.err


LARGE = (
    *("run.model.hidden_size=768", "run.model.intermediate_size=2048", "run.model.layers=14"),
    *("run.model.heads=12", "run.model.kv_heads=12"),
)
"""99.5 million parameters."""


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(400)
def test_no_rank_holds_the_whole_model(shell: Shell, tmp_path: Path) -> None:
    """Memory beyond that of a rank with next to no model."""
    config = write_config(tmp_path, peers=1, rounds=1000, inner=2)
    idle = peak_bytes(shell, config, "idle")
    alone = peak_bytes(shell, config, "alone", *LARGE) - idle
    shared = peak_bytes(shell, config, "shared", *LARGE, "node.ranks=2") - idle
    assert alone > 4 * 4 * 99.5e6  # Parameters, gradients, two moments.
    assert shared < 0.6 * alone, (idle, alone, shared)


def peak_bytes(shell: Shell, config: Path, name: str, *settings: str) -> int:
    """The largest resident set that a rank of a node has had after two rounds."""
    node = config.parent / name
    command = shell.peer(name, str(config), "--new", *keys(*settings))
    until(lambda: of(RanksReady, node), within_s=120, what="ranks")
    ranks = leaves(command.pid)
    commits_until(node, 2, within_s=150)
    lines = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in ranks]
    command.signal(signal.SIGTERM)
    command.wait(within_s=30)
    return max(int(x.split()[1]) << 10 for each in lines for x in each if x.startswith("VmHWM:"))
