"""Stopped runs go on from their checkpoint: `lowcomm resume`, with real processes."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from safetensors import safe_open

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from lowcomm.reports.events import Commit, Evaluated, Finished, Member, RanksLost, Start
from lowcomm.startup.startup import own_rank_state
from tests.cluster.running import (
    Shell,
    alive,
    commits,
    commits_until,
    leaves,
    marked_processes,
    new_shell,
    of,
    record,
    slowness,
    token_of,
    until,
    write_config,
)

ROUNDS = 30
LEARNT = 0.9
"""Nats per byte of `write_words`, of a model that knows the words: 0.70 is usual, and one that
knows the letters only has 2.0."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with new_shell(tmp_path) as made:
        yield made


def intervals_max(by_round: dict[int, Commit]) -> int:
    """A round takes one. Who was slow and left out of some brings theirs along, if it kept them:
    whoever starts anew does not."""
    left_out = Counter[str]()
    total = 0
    for _, commit in sorted(by_round.items()):
        total += 1 + max(left_out[peer] for peer in commit.roster)
        for peer in {*left_out, *commit.roster}:
            left_out[peer] = 0 if peer in commit.roster else left_out[peer] + 1
    return total


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.deadline(240)
def test_an_interrupted_run_of_several_nodes_goes_on_to_its_end(
    shell: Shell, tmp_path: Path
) -> None:
    config = write_config(tmp_path, peers=2, rounds=ROUNDS, inner=10)
    run_dir = tmp_path / "runs" / "tiny"
    launcher = shell.start("sim", str(config), "--peers", "2", "--ranks", "2,1")
    commits_until(run_dir / "beta", 3)
    started = set(marked_processes())
    assert len(started) >= 8  # A launcher, two daemons, two zygotes, three ranks.
    began = time.monotonic()
    launcher.signal(signal.SIGINT)
    assert launcher.wait(within_s=8) == 130, launcher.err
    until(lambda: not alive(started), within_s=1, what="every process gone")
    assert time.monotonic() - began < 5
    assert "Traceback" not in launcher.err
    assert "goes on from round" in launcher.out

    kept: list[int] = []
    for name in ("alpha", "beta"):
        path, _ = newest_checkpoint(run_dir / name / "checkpoints")
        assert path is not None
        kept.append(read_checkpoint(path)[0].round)
    before = {name: len(commits(run_dir / name)) for name in ("alpha", "beta")}
    assert before["alpha"] < ROUNDS
    peers = {name: record(run_dir / name)["peer"] for name in before}

    again = shell.run("resume", str(run_dir), within_s=min(60 * slowness(), 180))
    assert again.popen.returncode == 0, again.err
    ends: list[Finished] = []
    began_at: list[int] = []
    for name, had in before.items():
        node = run_dir / name
        assert record(node)["peer"] == peers[name]  # The same peer, in its next life.
        rounds = commits(node)[had:]
        assert rounds == list(range(rounds[0], ROUNDS + 1))
        assert rounds[0] > max(kept)  # They go on from the newest of the two checkpoints.
        began_at.append(rounds[0])
        ends += of(Finished, node)
        starts = of(Start, node)
        assert [start.ranks for start in starts] == [2 if name == "alpha" else 1] * 2
    assert min(began_at) == max(kept) + 1
    assert len(ends) == 2
    assert len({end.state_digest for end in ends}) == 1
    by_round = {event.round: event for event in of(Commit, run_dir) if event.name == "alpha"}
    assert 10 * ROUNDS <= by_round[ROUNDS].inner_step <= 10 * intervals_max(by_round)
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    assert summary["finished"]
    assert summary["outer_steps"] == ROUNDS

    third = shell.run("resume", str(run_dir))
    assert third.popen.returncode == 0, third.err
    assert f"finished after {ROUNDS} outer steps: nothing to resume" in third.out
    assert len(third.out.splitlines()) == 1
    fourth = shell.run("resume", str(run_dir / "beta"))
    assert fourth.popen.returncode == 0, fourth.err
    assert f"beta finished after {ROUNDS} outer steps" in fourth.out
    assert len(of(Start, run_dir)) == 4  # Nothing was started by these two.


@pytest.mark.deadline(60)
@pytest.mark.long
def test_a_single_node_goes_on_in_its_own_directory(shell: Shell, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=1, rounds=60)
    alpha = tmp_path / "alpha"
    first = shell.peer("alpha", str(config), "--new")
    commits_until(alpha, 3)
    refused = shell.run("resume", str(alpha))
    assert refused.popen.returncode == 2
    assert "is in use by a running peer" in refused.err
    first.signal(signal.SIGTERM)
    assert first.wait(within_s=5) == 143
    had = commits(alpha)
    assert had[-1] < 60
    second = shell.run("resume", str(alpha))
    assert second.popen.returncode == 0, second.err
    assert commits(alpha) == list(range(1, 61))  # None is lost, none is made twice.
    assert all(len(event.lineage) == 16 for event in of(Commit, alpha))
    (end,) = of(Finished, alpha)
    assert end.outer_steps == 60


def write_words(corpus: Path) -> None:
    """A text that no model learns by heart: each of 32 words is followed by one of the same 16."""
    drawn = random.Random(7)
    words = ["".join(drawn.choices("abcdefghijklmnop", k=drawn.randint(2, 5))) for _ in range(32)]
    following = [drawn.choices(range(len(words)), k=16) for _ in words]
    for path in sorted(corpus.iterdir()):
        last, text = 0, list[str]()
        for number in range(25_000):
            last = drawn.choice(following[last])
            text += [words[last], "\n" if number % 8 == 7 else " "]
        path.write_text("".join(text), encoding="utf-8")


def stepped(rank_state: Path) -> int:
    """How often the optimizer of a node's only rank has stepped, as it wrote it there."""
    with cast(Any, safe_open(rank_state / "rank-0-of-1.safetensors", framework="np")) as file:
        keys: list[str] = file.keys()
        (steps,) = {int(file.get_tensor(key)) for key in keys if key.startswith("step:")}
    return steps


@pytest.mark.long
@pytest.mark.deadline(120)
def test_what_an_optimizer_kept_outlives_its_rank_and_its_daemon(
    shell: Shell, tmp_path: Path
) -> None:
    every, inner, rounds = 4, 5, 80
    config = write_config(tmp_path, peers=1, rounds=rounds, inner=inner)
    alpha = tmp_path / "alpha"
    states = alpha / "rank-state"

    def kept_after(round_: int) -> Path:
        """What it writes when it is due next, once it is whole."""
        place = states / f"round-{every * (round_ // every + 1):06d}"
        file = place / "rank-0-of-1.safetensors"
        until(file.exists, within_s=30, what=f"{place.name} written")
        return place

    due = f"node.checkpoint_every_rounds={every}"
    first = shell.peer("alpha", str(config), "--new", "--set", due)
    commits_until(alpha, every + 1)
    daemon = int(record(alpha)["pid"])
    (rank,) = leaves(daemon)
    os.kill(rank, signal.SIGKILL)
    lost = until(lambda: of(RanksLost, alpha), within_s=10, what="its loss noticed")[0]
    died = sum(event.t <= lost.t for event in of(Commit, alpha))
    place = kept_after(died)
    assert stepped(place) >= inner * (every + int(place.name[-6:]) - died), "it began anew"

    first.signal(signal.SIGTERM)
    assert first.wait(within_s=5) == 143
    path, _ = newest_checkpoint(alpha / "checkpoints")
    assert path is not None
    cut = read_checkpoint(path)[0]
    kept = own_rank_state(alpha)
    assert kept is not None
    before = stepped(kept)
    again = shell.start("resume", str(alpha))
    place = kept_after(cut.round)
    again.signal(signal.SIGTERM)
    assert again.wait(within_s=5) == 143, again.err
    assert stepped(place) == before + inner * (int(place.name[-6:]) - cut.round)


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(60)
def test_a_run_that_had_not_begun_goes_on_from_its_first_state(
    shell: Shell, tmp_path: Path
) -> None:
    config = write_config(tmp_path, peers=2, rounds=6)
    launcher = shell.start("sim", str(config), "--peers", "1")  # It waits for a second one.
    run_dir = tmp_path / "runs" / "tiny"
    until(lambda: of(Member, run_dir / "alpha"), within_s=20, what="alpha a member")
    launcher.signal(signal.SIGINT)
    assert launcher.wait(within_s=5) == 130, launcher.err
    alpha = shell.start("resume", str(run_dir / "alpha"))
    shell.peer("beta", str(config), "--join", token_of(run_dir / "alpha"))
    assert alpha.wait(within_s=40) == 0, alpha.err
    assert commits(run_dir / "alpha") == [1, 2, 3, 4, 5, 6]
    assert "Traceback" not in alpha.err


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(600)
def test_three_nodes_go_on_as_two_with_other_ranks_and_end_with_the_same_loss(
    shell: Shell, tmp_path: Path
) -> None:
    config = write_config(tmp_path, peers=3, rounds=60, inner=10)
    write_words(tmp_path / "text")
    keys = (
        *("run.data.batch=12", "run.data.eval_windows=64", "run.optimizer.lr=0.003"),
        "run.data.eval_window=64",  # As long as those of the training: positions extrapolate badly.
        "node.checkpoint_every_rounds=5",
    )
    sets = [word for key in keys for word in ("--set", key)]
    losses: dict[str, float] = {}
    for name in ("whole", "cut"):
        run_dir = tmp_path / "runs" / name
        where = ("--directory", str(run_dir))
        sim = ("sim", str(config), "--peers", "3", "--ranks", "2,1,1", *where, *sets)
        launcher = shell.start(*sim)
        if name == "cut":
            commits_until(run_dir / "alpha", 20, within_s=150)
            # All processes at once, as if the power failed.
            for pid in [int(record(run_dir / each)["pid"]) for each in ("alpha", "beta", "gamma")]:
                os.kill(pid, signal.SIGKILL)
            launcher.wait(within_s=30)
            wrong = shell.run("resume", str(run_dir), "--peers", "1")
            assert (wrong.popen.returncode, "1 of the run's 3 voters" in wrong.err) == (2, True)
            launcher = shell.start("resume", str(run_dir), "--ranks", "1,3")
        assert launcher.wait(within_s=250) == 0, launcher.err
        losses[name] = of(Evaluated, run_dir)[-1].loss
    starts = of(Start, run_dir)
    assert [(each.name, each.ranks) for each in starts[3:]] == [("alpha", 1), ("beta", 3)]
    assert losses["cut"] == pytest.approx(losses["whole"], rel=0.01)
    assert losses["whole"] < LEARNT, "a model that has learnt nothing proves nothing"
    cut_short = [each for each in of(Commit, run_dir) if each.t > starts[3].t]
    assert cut_short[0].round > 10, "they went on from a checkpoint"
