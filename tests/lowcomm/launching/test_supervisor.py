"""A supervisor, beside what tests of host_side.py show of it."""

import asyncio
from pathlib import Path

import pytest

from lowcomm.launching.supervisor import STATE, PeerCommand, Supervisor


@pytest.mark.parametrize("is_full", [False, True])
def test_a_disk_that_takes_no_notes_ends_no_peer(
    is_full: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if is_full:
        (tmp_path / STATE / "something").mkdir(parents=True)  # The file cannot be replaced.
    command = PeerCommand(arguments=("--version",), restarts=0)
    assert asyncio.run(Supervisor(tmp_path, command).run()) == 0
    assert capfd.readouterr().out.startswith("0.1")
    assert (tmp_path / STATE).is_file() is not is_full
