"""The programs of examples/: as they are, few lines more make a node; nodes of them come and go.

Their packages come with `make test-long`.
"""

import difflib
import json
import math
import os
import re
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lowcomm.reports.events import Commit, Layout, Metrics, RanksReady, Traffic
from tests.cluster import kept_trainer
from tests.cluster.kept_trainer import DECAY, RATE
from tests.cluster.running import (
    Command,
    Shell,
    commits_until,
    leaves,
    marked_processes,
    new_shell,
    of,
    record,
    token_of,
    until,
    write_config,
)
from tests.marks import NIGHTLY

EXAMPLES = Path(__file__).parents[2] / "examples"
TITAN_PACKAGES = EXAMPLES.parent / "build" / "titan"
"""They come with `make test-long`, and cannot be where those of the other examples are."""
ADDED_MAX = 10
WITHIN_S = 100.0
WIDTH, INNER_WIDTH, LAYERS, RANK = 64, 172, 2, 8
ADAPTERS = LAYERS * RANK * (4 * 2 * WIDTH + 3 * (WIDTH + INNER_WIDTH))
"""Elements that examples/peft_lora trains: beside four square matrices and three others."""

KEPT_ROUNDS, KILLED_AT = 8, 23


@dataclass(frozen=True)
class Example:
    """An example, and the rounds of its run: enough for a kill and a join."""

    name: str
    rounds: int
    added: int
    """Lines of node.py that stock.py does not have, as docs/own-loop.md says."""
    inner: int = 10
    """Inner steps in a round."""


NANOGPT = Example("nanogpt", 30, 10, inner=6)
TRAINER = Example("hf_trainer", 24, 3, inner=5)
LORA = Example("peft_lora", 50, 3, inner=3)  # An attempt that the kill ends is 1 % of its bytes.
LIGHTNING = Example("lightning", 60, 5)
ACCELERATE = Example("accelerate", 30, 8, inner=6)
ALL = (NANOGPT, TRAINER, LORA, LIGHTNING, ACCELERATE)
PRINTING = (NANOGPT, ACCELERATE)
"""Their programs only print their losses."""
TITAN = Example("torchtitan", 10, 0, inner=4)
TENSORS, STAGES, SCHEDULE = (
    f"--parallelism.{option}"
    for option in (
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "pipeline_parallel_schedule",
    )
)
TITAN_OPTIONS = {
    "fsdp": (),
    "tensors": (TENSORS, "2"),
    "stages": (STAGES, "2", SCHEDULE, "1F1B"),
    "interleaved": (STAGES, "2", SCHEDULE, "Interleaved1F1B"),
}
"""How two ranks share the model."""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    write_config(tmp_path, peers=2, rounds=1)  # For the text that a run needs.
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with new_shell(tmp_path) as made:
        yield made


def node(
    shell: Shell, name: str, example: Example, *arguments: str, program: Sequence[str] = ()
) -> Command:
    """`program`: by default its node.py."""
    run = {
        "run.peers_min": 2,
        "run.outer_steps": example.rounds,
        "run.method.inner_steps": example.inner,
        "run.data.source": "files",
        "run.data.held_out_below": 64,
        "node.corpus": f'"{shell.directory / "text"}"',
        "node.directory": f'"{shell.directory / name}"',
        "node.name": name,
    }
    sets = [word for key, value in run.items() for word in ("--set", f"{key}={value}")]
    program = program or (sys.executable, str(EXAMPLES / example.name / "node.py"))
    file = str(EXAMPLES / "run.toml")
    return shell.start("peer", file, *sets, *arguments, "--", *program)


def titan_node(shell: Shell, name: str, *arguments: str, options: Sequence[str] = ()) -> Command:
    """A node that trains the job of examples/torchtitan, with more `options` of torchtitan's."""
    program = [
        *(sys.executable, "-m", "torch.distributed.run"),
        str(EXAMPLES / "torchtitan" / "on_cpu.py"),
        *("--module", "lowcomm.integrations.torchtitan", "--config", "small.debugmodel"),
        *("--metrics.log_freq", "2"),
        *options,
    ]
    run = ("--set", "run.method.name=streaming_diloco", "--set", "run.data.batch=4")
    return node(shell, name, TITAN, *run, *arguments, program=program)


@pytest.mark.parametrize("example", ALL, ids=lambda each: each.name)
def test_few_lines_make_a_node(example: Example) -> None:
    stock, changed = (
        (EXAMPLES / example.name / file).read_text("utf-8").splitlines()
        for file in ("stock.py", "node.py")
    )
    added = [line for line in difflib.ndiff(stock, changed) if line.startswith("+ ")]
    assert len(added) == example.added <= ADDED_MAX
    removed = [line for line in difflib.ndiff(stock, changed) if line.startswith("- ")]
    assert len(removed) <= 2


@pytest.mark.long
@pytest.mark.deadline(200)
@pytest.mark.parametrize("example", ALL, ids=lambda each: each.name)
def test_nodes_of_an_example_train_together_though_one_joins_and_one_is_killed(
    shell: Shell, tmp_path: Path, example: Example
) -> None:
    alpha, beta, gamma = (tmp_path / name for name in ("alpha", "beta", "gamma"))
    nodes = [node(shell, "alpha", example, "--new")]
    token = token_of(alpha)
    node(shell, "beta", example, "--join", token)
    commits_until(alpha, 3, within_s=WITHIN_S)
    # The run waits for gamma, which begins slowly: large packages are imported.
    assert shell.run("pause", str(alpha)).popen.returncode == 0
    nodes.append(node(shell, "gamma", example, "--join", token))
    until(lambda: of(RanksReady, gamma), within_s=WITHIN_S, what="gamma's ranks ready")
    assert shell.run("continue", str(alpha)).popen.returncode == 0
    until(
        lambda: any(each.counted for each in of(Commit, gamma)), within_s=WITHIN_S, what="gamma in"
    )
    shell.kill(beta)
    assert max(commit.round for commit in of(Commit, alpha)) < example.rounds, "too late"
    for each in nodes:
        assert each.wait(within_s=WITHIN_S) == 0, each.err
    check_digests(alpha, beta, gamma)
    assert max(commit.round for commit in of(Commit, gamma)) == example.rounds
    if example in PRINTING:
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", nodes[0].out)]
    else:
        losses = losses_of(alpha)
    # Lightning's are of single batches, and its first one comes late: a model that knows nothing
    # gives each of the 256 bytes one chance.
    first = math.log(256) if example is LIGHTNING else losses[0]
    assert statistics.median(losses[len(losses) // 2 :]) < 0.8 * first
    if example is LORA:
        check_traffic(gamma)


@pytest.mark.long
@pytest.mark.deadline(240)
@pytest.mark.parametrize(
    "shape",
    [pytest.param(each, marks=() if each == "fsdp" else NIGHTLY) for each in TITAN_OPTIONS],
)
def test_nodes_of_torchtitan_train_together_though_one_joins_and_a_rank_is_killed(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """The stock debug model of torchtitan; one of the nodes has two ranks."""
    monkeypatch.setenv("PYTHONPATH", str(TITAN_PACKAGES), prepend=os.pathsep)
    alpha, beta, gamma = (tmp_path / name for name in ("alpha", "beta", "gamma"))
    two = ("--new", "--set", "node.ranks=2")
    nodes = [titan_node(shell, "alpha", *two, options=TITAN_OPTIONS[shape])]
    token = token_of(alpha)
    nodes.append(titan_node(shell, "beta", "--join", token))
    commits_until(alpha, 2, within_s=WITHIN_S)
    # The run waits for gamma, which begins slowly, and for the ranks that start again.
    assert shell.run("pause", str(alpha)).popen.returncode == 0
    nodes.append(titan_node(shell, "gamma", "--join", token))
    until(lambda: of(RanksReady, gamma), within_s=WITHIN_S, what="gamma's ranks ready")
    _, rank = leaves(int(record(alpha)["pid"]))
    assert "on_cpu.py" in marked_processes()[rank]
    os.kill(rank, signal.SIGKILL)
    until(lambda: len(of(RanksReady, alpha)) == 2, within_s=WITHIN_S, what="alpha's ranks again")
    assert shell.run("continue", str(alpha)).popen.returncode == 0
    for each in nodes:
        assert each.wait(within_s=WITHIN_S) == 0, each.err
    check_digests(alpha, beta, gamma)
    for directory in alpha, beta, gamma:
        assert any(each.counted for each in of(Commit, directory))
    losses = losses_of(alpha)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--training.seq_len", "32"), "training.seq_len is 32, but run.data.window, the number"),
        (("--training.global_batch_size", "8"), "has 8 items (batches of 2, 4 accumulated, 1"),
    ],
)
def test_a_job_of_torchtitan_that_does_not_fit_the_run_ends_its_node_at_once(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str], why: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TITAN_PACKAGES), prepend=os.pathsep)
    command = titan_node(shell, "alpha", "--new", options=options)
    assert command.wait(within_s=WITHIN_S) == 2, command.err
    assert why in " ".join(command.err.split())


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(200)
@pytest.mark.parametrize("trainer", ["hf", "lightning"])
def test_a_killed_trainer_ends_with_the_same_bits(
    shell: Shell, tmp_path: Path, trainer: str
) -> None:
    """Accumulated gradients, dropout and a scheduler, on a node alone."""
    found: list[dict[str, Any]] = []
    for name, dies_at in (("undisturbed", -1), ("killed", KILLED_AT)):
        (tmp_path / name).mkdir()
        write_config(tmp_path / name, peers=1, rounds=KEPT_ROUNDS)
        out = tmp_path / name / "found.json"
        directory = f'"{tmp_path / name / "alpha"}"'
        options = [
            "--set",
            f"node.directory={directory}",
            "--set",
            "node.checkpoint_every_rounds=1",
        ]
        program = [sys.executable, kept_trainer.__file__, trainer, str(out), str(dies_at)]
        run = str(tmp_path / name / "run.toml")
        command = shell.start("peer", run, "--new", *options, "--", *program)
        assert command.wait(within_s=WITHIN_S) == 0, command.err
        found.append(json.loads(out.read_text(encoding="utf-8")))
    undisturbed, killed = found
    assert undisturbed["rate"] == pytest.approx(RATE * DECAY ** (5 * KEPT_ROUNDS))
    assert undisturbed["first"] == 0 < killed["first"]
    assert {**killed, "first": 0} == undisturbed


def losses_of(directory: Path) -> list[float]:
    """Those that a node reported, by time."""
    return [each.loss for each in of(Metrics, directory) if each.loss == each.loss]


def check_digests(*directories: Path) -> None:
    """All that committed a round have the same state then."""
    digests = [{each.round: each.state_digest for each in of(Commit, d)} for d in directories]
    for one in digests[1:]:
        shared = digests[0].keys() & one.keys()
        assert len(shared) >= 3
        assert all(digests[0][round_] == one[round_] for round_ in shared)


def check_traffic(directory: Path) -> None:
    """Of each round a peer sends, in fp32, all parts of its contribution but its own, and its own
    part of the result to all others."""
    (layout,) = of(Layout, directory)
    assert layout.params == ADAPTERS
    others = [len(each.roster) - 1 for each in of(Commit, directory) if each.counted]
    expected = sum(2 * 4 * ADAPTERS * number / (number + 1) for number in others)
    sent = sum(of(Traffic, directory)[-1].payload_sent_bytes)
    assert sent == pytest.approx(expected, rel=0.02)
