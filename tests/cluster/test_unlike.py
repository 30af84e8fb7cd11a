"""One model in several frameworks, sharded in several ways: the nodes of one run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, Metrics, RanksLost, RanksReady
from tests.cluster import unlike_titan, unlike_train
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

TOP = Path(__file__).parents[2]
TITAN_PATH = os.pathsep.join(
    str(path)
    for path in (
        TOP / "build" / "titan",
        TOP / "examples" / "torchtitan",
        Path(__file__).parent,
        TOP,
    )
)
ROUNDS, FRAGMENTS = 10, 2
STREAMING = (
    f'name = "streaming_diloco"\ninner_steps = 6\nfragments = {FRAGMENTS}\noverlap_steps = 2'
)
WITHIN_S = 150.0


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torchrun leaves a directory of logs there.
    write_config(tmp_path, peers=3, rounds=10_000, method=STREAMING)
    with new_shell(tmp_path) as made:
        yield made


def node(
    shell: Shell,
    name: str,
    *arguments: str,
    ranks: int = 1,
    program: Sequence[str] = (),
    path: str = str(TOP),
) -> Command:
    """`program`: what Python runs on so many ranks, with torchtitan if `path` leads to it; by
    default the built-in trainer."""
    settings = {
        "run.model.kv_heads": unlike_titan.SIZES.kv_heads,
        "run.data.batch": 6,
        "node.name": name,
        "node.directory": f'"{name}"',
        "node.ranks": ranks,
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    command = ("--", "env", f"PYTHONPATH={path}", sys.executable, *(launcher if ranks > 1 else ()))
    own = (*command, *program) if program else ()
    return shell.start("peer", "run.toml", *sets, *arguments, *own)


def counted(directory: Path) -> int:
    """Commits in which this node's own contribution was counted."""
    return sum(each.counted for each in of(Commit, directory))


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(400)
def test_unlike_nodes_train_one_model_while_others_join_and_leave(
    shell: Shell, tmp_path: Path
) -> None:
    alpha, beta, gamma, delta, epsilon = (
        tmp_path / name for name in ("alpha", "beta", "gamma", "delta", "epsilon")
    )
    titan = (
        str(TOP / "examples" / "torchtitan" / "on_cpu.py"),
        *("--module", "lowcomm.integrations.torchtitan", "--config", "unlike_titan.job"),
    )
    loop = unlike_train.__file__
    nodes = [node(shell, "alpha", "--new", ranks=2, program=titan, path=TITAN_PATH)]
    token = token_of(alpha)
    nodes.append(node(shell, "beta", "--join", token, ranks=3))
    nodes.append(node(shell, "gamma", "--join", token, program=(loop, "whole")))
    commits_until(alpha, 2, within_s=WITHIN_S)
    # The run waits for those that begin slowly.
    assert shell.run("pause", str(alpha)).popen.returncode == 0
    guests = [
        node(shell, "delta", "--join", token, ranks=4, program=(loop, "tensors")),
        node(shell, "epsilon", "--join", token, ranks=2, program=(loop, "stages")),
    ]
    until(
        lambda: of(RanksReady, delta) and of(RanksReady, epsilon),
        within_s=WITHIN_S,
        what="the guests' ranks ready",
    )
    assert shell.run("continue", str(alpha)).popen.returncode == 0
    until(
        lambda: min(counted(delta), counted(epsilon)) > 1,
        within_s=WITHIN_S,
        what="the guests counted",
    )
    for each in guests:
        each.signal(signal.SIGTERM)
    for each in guests:
        each.wait(within_s=60)
    commits_until(alpha, max(ROUNDS, commits(alpha)[-1]) + 1, within_s=WITHIN_S)
    for each in nodes:
        each.signal(signal.SIGTERM)
    for each in nodes:
        each.wait(within_s=60)
    losses = [each.loss for each in of(Metrics, alpha) if each.loss == each.loss]
    assert losses[-1] < 0.5 * losses[0]
    everyone = (alpha, beta, gamma, delta, epsilon)
    assert not any(of(RanksLost, each) for each in everyone)
    expected = digests_of(alpha)
    rounds = {(fragment, round_) for fragment, round_ in expected if round_ <= ROUNDS}
    assert len(rounds) == FRAGMENTS * ROUNDS
    for other in (beta, gamma):
        assert counted(other) >= ROUNDS
        assert digests_of(other).keys() >= rounds
    for other in everyone:
        found = digests_of(other)
        common = found.keys() & expected.keys()
        assert len(common) >= 2
        assert all(found[key] == expected[key] for key in common)


@pytest.mark.long
@pytest.mark.deadline(200)
def test_torchtitan_computes_as_the_built_in_model_from_its_values_under_its_names() -> None:
    """Fused matrices, other names, another order of the rows that are rotated."""
    program = [sys.executable, unlike_titan.__file__]
    environment = {**os.environ, "PYTHONPATH": TITAN_PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=environment, capture_output=True, check=True, timeout=180)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["names"]
    assert found["same_layout"]
    assert found["difference"] < 1e-4 < 1 < found["largest"]
