"""Adapters beside a frozen base, between real daemons: what is sent, compared and exported."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lowcomm.reports.events import Commit, Layout, Traffic
from tests.cluster import adapters_train
from tests.cluster.adapters_train import RANK, WIDTH
from tests.cluster.running import (
    Command,
    Shell,
    commits_until,
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
    write_config(tmp_path, peers=2, rounds=ROUNDS, inner=3)
    with new_shell(tmp_path) as made:
        yield made


def node(shell: Shell, name: str, *arguments: str, program: tuple[str, ...] = ()) -> Command:
    where = ["--set", f"node.name={name}", "--set", f'node.directory="{name}"']
    return shell.start("peer", "run.toml", *where, *arguments, "--", *PROGRAM, *program)


@pytest.mark.deadline(100)
def test_only_adapters_are_sent_and_a_node_with_another_base_is_refused_by_the_tensors_name(
    shell: Shell, tmp_path: Path
) -> None:
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    nodes = [node(shell, "alpha", "--new")]
    token = token_of(alpha)
    other = node(shell, "gamma", "--join", token, program=("2",))
    assert other.wait(within_s=40) != 0
    (line,) = [each for each in other.err.splitlines() if "another model" in each][:1]
    assert "frozen parameter 0.base has another content here" in line
    nodes.append(node(shell, "beta", "--join", token, program=("1",)))
    commits_until(alpha, ROUNDS, within_s=50)
    for each in nodes:
        assert each.wait(within_s=20) == 0, each.err
    assert [event.params for event in of(Layout, alpha)] == [ADAPTERS]
    for directory in (alpha, beta):
        sent = sum(of(Traffic, directory)[-1].payload_sent_bytes)
        # fp32 both ways, in halves; one round at most began before the first commit.
        assert sent == pytest.approx(4 * ADAPTERS * ROUNDS, rel=0.02)
    digests = [{each.round: each.state_digest for each in of(Commit, d)} for d in (alpha, beta)]
    assert digests[0] == digests[1]
    check_export(alpha)
    check_export(beta)


def check_export(directory: Path) -> None:
    """The two files fill a model without wrappers."""
    from safetensors.torch import load_file

    newest = max((directory / "checkpoints").glob("round-*"))
    trained = load_file(newest / "model.safetensors")
    frozen = load_file(directory / "frozen.safetensors")
    generator = torch.Generator().manual_seed(1)
    blocks = (adapters_train.Adapted(generator, torch.float32) for _ in range(2))
    model = torch.nn.Sequential(*blocks)
    expected = {name: each.clone() for name, each in model.state_dict().items() if "base" in name}
    model.load_state_dict(trained | frozen, strict=True)
    assert all(torch.equal(each, frozen[name]) for name, each in expected.items())
    assert not any((each == 0).all() for name, each in trained.items() if "up" in name)
