"""The buffers of a model with BatchNorm, between real daemons: averaged, given, exported."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import Tensor

from lowcomm.reports.events import Commit, RanksLost
from tests.cluster import batchnorm_train
from tests.cluster.running import (
    Command,
    Shell,
    commits_until,
    new_shell,
    of,
    token_of,
    write_config,
)

Tensors = dict[str, Tensor]
PYTHONPATH = str(Path(__file__).parents[2])
METHODS = {
    "diloco": "inner_steps = 5",
    "streaming_diloco": "inner_steps = 5\nfragments = 2",
    "decoupled_diloco": "inner_steps = 5\nfragments = 4",
    "eager_diloco": "inner_steps = 5",
    "sparseloco": "inner_steps = 5",
    "local_sgd": 'inner_steps = 5\naggregate = "trimmed_mean"',
}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    with new_shell(tmp_path) as made:
        yield made


def node(shell: Shell, name: str, *arguments: str, shift: float, ranks: int = 1) -> Command:
    where = ["--set", f"node.name={name}", "--set", f'node.directory="{name}"']
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    program = (sys.executable, *launch, batchnorm_train.__file__, str(shift))
    count = ("--set", f"node.ranks={ranks}")
    return shell.start("peer", "run.toml", *where, *count, *arguments, "--", *program)


def read(path: Path) -> Tensors:
    return cast(Any, safetensors.torch).load_file(path)


def digests(directory: Path) -> dict[tuple[int, int], str]:
    return {(each.fragment, each.round): each.state_digest for each in of(Commit, directory)}


@pytest.mark.long
@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name == "diloco" else pytest.mark.nightly) for name in METHODS],
)
def test_all_nodes_evaluate_alike_a_joiner_gets_the_buffers_and_the_export_has_them(
    shell: Shell, tmp_path: Path, method: str
) -> None:
    """alpha has two ranks under FSDP2; each node has samples of another mean."""
    rounds = 80
    write_config(tmp_path, peers=2, rounds=rounds, method=f'name = "{method}"\n{METHODS[method]}')
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    nodes = [node(shell, "alpha", "--new", shift=0, ranks=2)]
    token = token_of(alpha)
    nodes.append(node(shell, "beta", "--join", token, shift=3))
    commits_until(alpha, 3, within_s=50)
    nodes.append(node(shell, "gamma", "--join", token, shift=-2))
    for each in nodes:
        assert each.wait(within_s=80) == 0, each.err
    assert not of(RanksLost, alpha)
    assert not of(RanksLost, beta)
    names = ("alpha-0", "alpha-1", "beta-0", "gamma-0")
    buffers, *others = (read(tmp_path / f"{name}.safetensors") for name in names)
    for each in others:
        assert all(torch.equal(tensor, each[name]) for name, tensor in buffers.items())
    began = read(tmp_path / "gamma-0-began.safetensors")
    assert began["0.1.num_batches_tracked"] > 0
    assert began["0.1.running_mean"].abs().max() > 0
    check_export(alpha, buffers)
    agreed, compared = digests(alpha), digests(beta)
    common = agreed.keys() & compared.keys()
    assert len(common) > rounds
    assert all(agreed[key] == compared[key] for key in common)


@pytest.mark.long
def test_the_two_nodes_of_a_pair_evaluate_alike(shell: Shell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=2, rounds=12, method='name = "noloco"\ninner_steps = 5')
    nodes = [node(shell, "alpha", "--new", shift=0)]
    nodes.append(node(shell, "beta", "--join", token_of(tmp_path / "alpha"), shift=3))
    for each in nodes:
        assert each.wait(within_s=40) == 0, each.err
    one, other = (read(tmp_path / f"{name}-0.safetensors") for name in ("alpha", "beta"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.long
def test_with_local_buffers_each_node_keeps_its_own(shell: Shell, tmp_path: Path) -> None:
    path = write_config(tmp_path, peers=2, rounds=6)
    path.write_text(path.read_text().replace("[run]", '[run]\nbuffers = "local"'))
    nodes = [node(shell, "alpha", "--new", shift=0)]
    nodes.append(node(shell, "beta", "--join", token_of(tmp_path / "alpha"), shift=3))
    for each in nodes:
        assert each.wait(within_s=40) == 0, each.err
    one, other = (read(tmp_path / f"{name}-0.safetensors") for name in ("alpha", "beta"))
    assert not torch.equal(one["0.1.running_mean"], other["0.1.running_mean"])


def check_export(directory: Path, buffers: Tensors) -> None:
    """A checkpoint's file fills a model, and has the last buffers."""
    newest = max((directory / "checkpoints").glob("round-*")) / "model.safetensors"
    model = batchnorm_train.make_model()
    model.load_state_dict(read(newest), strict=True)
    assert all(
        torch.equal(each, buffers[name]) for name, each in model.named_buffers() if name in buffers
    )
