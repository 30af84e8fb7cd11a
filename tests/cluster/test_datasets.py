"""The built-in program on a Hugging Face dataset: copies of any form train together."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lowcomm.reports.events import Evaluated, Finished, RanksLost
from tests.cluster.running import Command, Shell, digests_of, new_shell, of, token_of, write_config

ROUNDS = 6
ROWS = [f"def f{n}(x):\n    return x * {n} + {n ^ 5}\n" * 40 for n in range(200)]
PARQUET = """
import pyarrow.json, pyarrow.parquet, sys
rows = pyarrow.json.read_json(sys.argv[1])
for part, first in enumerate((0, 150)):
    pyarrow.parquet.write_table(rows.slice(first, 150), f"{sys.argv[2]}/part-{part}.parquet")
"""
"""Its threads stay until the process ends."""
STREAMED = ("--set", "run.data.source=datasets", "--set", "run.data.eval_window=64")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with new_shell(tmp_path) as made:
        yield made


def write(folder: Path, rows: Sequence[str]) -> None:
    folder.mkdir()
    lines = (json.dumps({"text": row, "id": number}) + "\n" for number, row in enumerate(rows))
    (folder / "rows.jsonl").write_text("".join(lines), encoding="ascii")


def node(shell: Shell, name: str, *arguments: str) -> Command:
    """Its copy has the node's name."""
    where = ("--set", f'node.corpus="{shell.directory / "copies" / name}"')
    return shell.peer(name, *arguments, *where)


@pytest.mark.long  # Needs the package datasets.
@pytest.mark.deadline(150)
def test_copies_of_a_dataset_train_together_and_another_row_is_refused_by_its_number(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=2, rounds=ROUNDS)
    copies = tmp_path / "copies"
    copies.mkdir()
    write(copies / "alpha", ROWS)
    write(copies / "gamma", [*ROWS[:70], "another", *ROWS[71:]])
    (copies / "beta").mkdir()
    argv = [sys.executable, "-c", PARQUET, copies / "alpha" / "rows.jsonl", copies / "beta"]
    subprocess.run(argv, check=True, timeout=60)
    alpha = node(shell, "alpha", "run.toml", "--new", *STREAMED)
    token = token_of(tmp_path / "alpha")
    gamma = node(shell, "gamma", "--join", token)
    assert gamma.wait(within_s=60) == 3
    (line,) = [line for line in gamma.err.splitlines() if line.startswith("lowcomm: ")]
    assert "on gamma rows 0 to 199 (" in line
    beta = node(shell, "beta", "--join", token)
    for each in (alpha, beta):
        assert each.wait(within_s=60) == 0, each.err
    assert not of(RanksLost, tmp_path)
    digests = digests_of(tmp_path / "alpha")
    assert digests == digests_of(tmp_path / "beta")
    assert len(digests) == ROUNDS
    assert len({event.state_digest for event in of(Finished, tmp_path)}) == 1
    assert of(Evaluated, tmp_path)[-1].loss < 5.3  # It has learnt: log(256) is 5.5.
