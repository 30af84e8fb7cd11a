"""Ranks share the model in different ways on the nodes of a run: one layout for all."""

import json
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch

from lowcomm.reports.events import Commit, Member, Metrics, RanksLost
from tests.cluster import layouts_train
from tests.cluster.running import (
    Command,
    Shell,
    commits,
    commits_until,
    new_shell,
    of,
    token_of,
    until,
    write_config,
)

PYTHONPATH = str(Path(__file__).parents[2])
RANKS = {"whole": 1, "tensors": 4, "stages": 2, "interleaved": 2}
STREAMING = 'name = "streaming_diloco"\ninner_steps = 6\nfragments = 2\noverlap_steps = 2'


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torchrun leaves a directory of logs there.
    with new_shell(tmp_path) as made:
        yield made


def node(shell: Shell, name: str, *arguments: str, shape: str, dies_at: int = 0) -> Command:
    where = ["--set", f"node.name={name}", "--set", f'node.directory="{name}"']
    ranks = RANKS[shape]
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    python = (sys.executable, *(torchrun if ranks > 1 else ()))
    loop = (*python, layouts_train.__file__, shape, str(dies_at))
    count = ("--set", f"node.ranks={ranks}")
    return shell.start("peer", "run.toml", *where, *count, *arguments, "--", *loop)


def counted(directory: Path) -> int:
    """Commits in which this node's own contribution was counted."""
    return sum(each.counted for each in of(Commit, directory))


def check_digests(*directories: Path) -> None:
    found = [
        {(each.fragment, each.round): each.state_digest for each in of(Commit, directory)}
        for directory in directories
    ]
    for other in found[1:]:
        common = found[0].keys() & other.keys()
        assert len(common) >= 6
        assert all(found[0][key] == other[key] for key in common)


def check_checkpoint(directory: Path) -> None:
    """It fills a whole model."""
    newest = max((directory / "checkpoints").glob("round-*")) / "model.safetensors"
    model = layouts_train.Stage(range(3), last=True)
    tensors = cast(Any, safetensors.torch).load_file(newest)
    assert model.state_dict().keys() - tensors.keys() == {"layers.0.up.bias"}, "it is frozen"
    model.load_state_dict(tensors, strict=False)
    assert not tensors.keys() - model.state_dict().keys()


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(240)
def test_tensor_parallelism_below_fsdp_trains_together_with_one_plain_rank(
    shell: Shell, tmp_path: Path
) -> None:
    """The four ranks found the run; one of them is killed, and they go on with their optimizer's
    state."""
    write_config(tmp_path, peers=2, rounds=10_000, method=STREAMING)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    every = ("--set", "node.checkpoint_every_rounds=2")
    nodes = [node(shell, "alpha", "--new", *every, shape="tensors", dies_at=40)]
    nodes.append(node(shell, "beta", "--join", token_of(alpha), shape="whole"))
    until(lambda: of(RanksLost, alpha), within_s=100, what="alpha losing its ranks")
    had = counted(alpha)
    until(lambda: counted(alpha) > had + 3, within_s=100, what="alpha contributing again")
    for each in nodes:
        each.signal(signal.SIGTERM)
        each.wait(within_s=30)
    assert counted(beta) > 6
    assert not of(RanksLost, beta)
    check_digests(alpha, beta)
    check_checkpoint(alpha)
    ranks = [json.loads((tmp_path / f"alpha-{rank}.json").read_text()) for rank in range(4)]
    assert len({rank["began"] for rank in ranks}) == 1
    assert ranks[0]["began"] > 0


@pytest.mark.long
@pytest.mark.deadline(150)
def test_a_pipeline_joins_a_plain_node_and_leaves(shell: Shell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=1, rounds=10_000, method=STREAMING)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    nodes = [node(shell, "alpha", "--new", shape="whole")]
    commits_until(alpha, 2, within_s=40)
    nodes.append(node(shell, "beta", "--join", token_of(alpha), shape="stages"))
    until(lambda: counted(beta) >= 6, within_s=80, what="contributions of the pipeline")
    nodes[1].signal(signal.SIGTERM)
    nodes[1].wait(within_s=30)
    assert "beta left (SIGTERM)" in nodes[1].err
    commits_until(alpha, commits(alpha)[-1] + 2, within_s=30)
    nodes[0].signal(signal.SIGTERM)
    nodes[0].wait(within_s=30)
    assert not [*of(RanksLost, alpha), *of(RanksLost, beta)]
    assert math.isfinite(of(Metrics, beta)[-1].loss), "only its second rank has a loss"
    assert {each.member_name for each in of(Member, alpha)} >= {"alpha", "beta"}
    check_digests(alpha, beta)
    check_checkpoint(alpha)


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(240)
@pytest.mark.parametrize(
    ("method", "shape", "other"),
    [
        (STREAMING, "stages", "whole"),
        (STREAMING, "interleaved", "whole"),
        ("", "stages", "tensors"),
        ('name = "decoupled_diloco"\nfragments = 4', "stages", "tensors"),
    ],
)
def test_a_pipeline_founds_a_run_for_the_others_and_loses_a_rank(
    shell: Shell, tmp_path: Path, method: str, shape: str, other: str
) -> None:
    write_config(tmp_path, peers=2, rounds=10_000, method=method)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    nodes = [node(shell, "alpha", "--new", shape=shape, dies_at=30)]
    nodes.append(node(shell, "beta", "--join", token_of(alpha), shape=other))
    until(lambda: of(RanksLost, alpha), within_s=100, what="alpha losing its ranks")
    had = counted(alpha)
    until(lambda: counted(alpha) > had + 3, within_s=100, what="alpha contributing again")
    for each in nodes:
        each.signal(signal.SIGTERM)
        each.wait(within_s=30)
    check_digests(alpha, beta)
    check_checkpoint(beta)
