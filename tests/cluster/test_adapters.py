"""Adapters beside a frozen base, between real daemons: what is sent, compared and exported."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch

from lowcomm.reports.events import Commit, Layout, RanksLost, Traffic
from tests.cluster import adapters_train
from tests.cluster.adapters_train import RANK, WIDTH
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

ADAPTERS = 2 * 2 * RANK * WIDTH
"""Elements that are trained."""
ROUNDS = 8
PROGRAM = (sys.executable, adapters_train.__file__)
PYTHONPATH = str(Path(__file__).parents[2])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    with new_shell(tmp_path) as made:
        yield made


def node(shell: Shell, name: str, *arguments: str, program: tuple[str, ...] = ()) -> Command:
    where = ["--set", f"node.name={name}", "--set", f'node.directory="{name}"']
    return shell.start("peer", "run.toml", *where, *arguments, "--", *PROGRAM, *program)


@pytest.mark.long
@pytest.mark.deadline(100)
def test_only_adapters_are_sent_and_a_node_with_another_base_is_refused_by_the_tensors_name(
    shell: Shell, tmp_path: Path
) -> None:
    """beta trains in bf16, under activation checkpointing."""
    write_config(tmp_path, peers=2, rounds=ROUNDS, inner=3)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    nodes = [node(shell, "alpha", "--new")]
    token = token_of(alpha)
    other = node(shell, "gamma", "--join", token, program=("2",))
    assert other.wait(within_s=40) != 0
    line = next(each for each in other.err.splitlines() if "another model" in each)
    assert "frozen parameter 0.base has another content here" in line
    nodes.append(node(shell, "beta", "--join", token, program=("1", "bfloat16")))
    commits_until(alpha, ROUNDS, within_s=50)
    for each in nodes:
        assert each.wait(within_s=20) == 0, each.err
    assert [event.params for event in of(Layout, alpha)] == [ADAPTERS]
    for directory in (alpha, beta):
        sent = sum(of(Traffic, directory)[-1].payload_sent_bytes)
        assert sent == pytest.approx(4 * ADAPTERS * ROUNDS, rel=0.02)  # Two halves in fp32.
        assert sum(commit.counted for commit in of(Commit, directory)) == ROUNDS
        check_export(directory)
    assert digests_of(alpha) == digests_of(beta)


@pytest.mark.long
@pytest.mark.deadline(100)
def test_nodes_that_make_every_step_together_may_have_parameters_of_different_types(
    shell: Shell, tmp_path: Path
) -> None:
    method = 'name = "allreduce"\ncommit_every_steps = 4\nsnapshot_every_steps = 8'
    write_config(tmp_path, peers=2, rounds=24, method=method)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    nodes = [node(shell, "alpha", "--new")]
    nodes.append(node(shell, "beta", "--join", token_of(alpha), program=("1", "bfloat16")))
    for each in nodes:
        assert each.wait(within_s=60) == 0, each.err
    cuts = [max((d / "checkpoints").glob("round-*")) / "model.safetensors" for d in (alpha, beta)]
    assert cuts[0].read_bytes() == cuts[1].read_bytes()
    assert not of(RanksLost, beta)
    check_export(beta)


def check_export(directory: Path) -> None:
    """The two files fill a model without wrappers."""
    newest = max((directory / "checkpoints").glob("round-*"))
    files = newest / "model.safetensors", directory / "frozen.safetensors"
    trained, frozen = (cast(Any, safetensors.torch).load_file(file) for file in files)
    generator = torch.Generator().manual_seed(1)
    blocks = (adapters_train.Adapted(generator, torch.float32) for _ in range(2))
    model = torch.nn.Sequential(*blocks)
    expected = {name: each.clone() for name, each in model.state_dict().items() if "base" in name}
    model.load_state_dict(trained | frozen, strict=True)
    assert all(torch.equal(each, frozen[name]) for name, each in expected.items())
    assert not any((each == 0).all() for name, each in trained.items() if "up" in name)
