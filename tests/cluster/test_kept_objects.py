"""A loop's scheduler, averaged model and random generators go on where they were when its rank was
killed, bit by bit as if nothing had happened."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lowcomm.reports.events import RanksLost
from tests.cluster.kept_loop import DECAY, NEVER, RATE
from tests.cluster.running import new_shell, of, write_config
from tests.marks import LONG, NIGHTLY

ROUNDS, INNER = 8, 5
LOOP = Path(__file__).parent / "kept_loop.py"


def trained(directory: Path, *, dies_at: int) -> dict[str, Any]:
    """What the loop of a node alone left at the end of its run."""
    directory.mkdir()
    write_config(directory, peers=1, rounds=ROUNDS, inner=INNER)
    out = directory / "found.json"
    options = ["--set", 'node.directory="alpha"', "--set", "node.checkpoint_every_rounds=1"]
    loop = [sys.executable, str(LOOP), str(out), str(dies_at)]
    with new_shell(directory) as shell:
        command = shell.start("peer", "run.toml", "--new", *options, "--", *loop)
        assert command.wait(within_s=120) == 0, command.err
    assert len(of(RanksLost, directory / "alpha")) == (dies_at != NEVER)
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("undisturbed") / "run", dies_at=NEVER)


@pytest.mark.parametrize("dies_at", [pytest.param(23, marks=LONG), pytest.param(31, marks=NIGHTLY)])
def test_a_killed_loop_ends_with_the_same_bits(
    undisturbed: dict[str, Any], tmp_path: Path, dies_at: int
) -> None:
    assert undisturbed["steps"] == ROUNDS * INNER
    assert undisturbed["rate"] == pytest.approx(RATE * DECAY ** (ROUNDS * INNER))
    found = trained(tmp_path / "run", dies_at=dies_at)
    assert found["first"] > 0, "it began with a saved state"
    assert {**found, "first": 0} == {**undisturbed, "first": 0}
