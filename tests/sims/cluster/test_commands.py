"""`lowcomm sim` and `lowcomm demo`: what they make of their arguments."""

import subprocess
import sys
from pathlib import Path

import pytest

from lowcomm.config.schema import load_config
from protocols.types.errors import ConfigError
from sims.cluster import demo
from sims.cluster.commands import NAMES, _ranks
from sims.cluster.launch import fresh_run_dir
from tests.marks import few

ROOT = Path(__file__).parents[3]
TOOLS = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for package in ("sims", "benchmarks")
    for path in (ROOT / package).rglob("*.py")
    if "run(main)" in path.read_text()
)


@pytest.mark.parametrize("module", few(TOOLS, count=12))
def test_each_tool_starts_by_itself_and_shows_examples(module: str) -> None:
    """Nothing else was imported before it."""
    command = [sys.executable, "-m", module, "--help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"python -m {module.removesuffix('.__main__')}" in shown.stdout


@pytest.mark.parametrize(
    ("text", "peers", "counts"),
    [("1", 3, [1, 1, 1]), ("2,1,1", 3, [2, 1, 1]), ("4", 1, [4]), (" 2, 1", 2, [2, 1])],
)
def test_ranks_of_each_node(text: str, peers: int, counts: list[int]) -> None:
    assert _ranks(text, peers) == counts


@pytest.mark.parametrize(
    ("text", "peers"), [("", 1), ("0", 1), ("1,", 2), ("-1", 1), ("x", 1), ("1,1", 3), ("1", 11)]
)
def test_ranks_that_cannot_be(text: str, peers: int) -> None:
    with pytest.raises(ConfigError, match="--ranks"):
        _ranks(text, peers)


def test_every_node_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_the_demo_lasts_until_after_its_kill_and_its_join() -> None:
    run = load_config(demo.DEMO).run
    assert run is not None
    assert demo.KILL_ROUNDS[1] + demo.ROUNDS_UNTIL_JOIN + 5 < run.outer_steps
    assert run.peers_min == 3  # Nobody is killed before all are in.


def test_an_older_run_moves_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age in range(3):
        run_dir = fresh_run_dir(None, "tiny")
        assert run_dir == Path("runs/tiny")
        assert list(run_dir.iterdir()) == []
        (run_dir / "age").write_text(str(age))
    ages = {path.name: (path / "age").read_text() for path in Path("runs").iterdir()}
    assert ages == {"tiny-1": "0", "tiny-2": "1", "tiny": "2"}


def test_a_given_directory_must_be_empty(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    assert fresh_run_dir(empty, "tiny") == empty
    assert fresh_run_dir(empty, "tiny") == empty
    (empty / "x").write_text("")
    with pytest.raises(ConfigError, match=r"empty is not empty: .*lowcomm resume"):
        fresh_run_dir(empty, "tiny")
    with pytest.raises(ConfigError, match="Not a directory; give another --directory"):
        fresh_run_dir(empty / "x" / "y", "tiny")
