"""A directory with modules of our names: no process of ours imports them, a user's program may."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, RanksReady
from tests.cluster.running import Shell, commits_until, new_shell, of, until, write_config

HOSTILE = ("peers", "lowcomm", "protocols", "sims", "benchmarks")
SHADOWS = ("numpy", "random", "torch", "zmq", "json")
CLEAN = "import sys\nsys.path.remove('')"
"""As the program `lowcomm` begins, whose first place of the path is its own."""
TRAIN = """
import os, sys
import helper
sys.path.remove(os.path.dirname(__file__))
from sims.paced.rank import main
sys.exit(main(["--step-s", "0.005", "--elements", "4096"]))
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    write_config(tmp_path, peers=1, rounds=100_000)
    poison = "raise SystemExit(f'{__file__} was imported')\n"
    for name in HOSTILE:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(poison, encoding="ascii")
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(poison, encoding="ascii")
    with new_shell(tmp_path) as made:
        yield made


def test_a_users_program_has_its_own_path_and_its_node_none_of_it(
    shell: Shell, tmp_path: Path
) -> None:
    program = tmp_path / "own" / "train.py"
    program.parent.mkdir()
    program.write_text(TRAIN, encoding="utf-8")
    (program.parent / "helper.py").write_text("", encoding="ascii")
    where = ("--set", 'node.directory="alpha"', "--set", "node.name=alpha")
    command = ("--", sys.executable, str(program))
    node = shell.start("peer", "run.toml", "--new", *where, *command, before=CLEAN)
    alpha = tmp_path / "alpha"
    until(lambda: of(Commit, alpha) or node.popen.poll(), within_s=20, what="a round")
    assert of(Commit, alpha), node.err
    assert "was imported" not in node.err


@pytest.mark.long
@pytest.mark.deadline(60)
def test_lowcomms_own_ranks_and_a_whole_run_see_none_of_it(shell: Shell, tmp_path: Path) -> None:
    launcher = shell.start("sim", "run.toml", "--peers", "1", before=CLEAN)
    alpha = tmp_path / "runs" / "tiny" / "alpha"
    until(lambda: of(RanksReady, alpha) or launcher.popen.poll(), within_s=40, what="ranks")
    assert of(RanksReady, alpha), launcher.out + launcher.err
    commits_until(alpha, 1)
    assert "was imported" not in (alpha / "daemon.log").read_text(encoding="utf-8")
