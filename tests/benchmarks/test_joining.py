"""The command is refused in one line when it asks for what cannot be had."""

import subprocess
import sys

import pytest

import benchmarks.joining
from benchmarks.joining import main
from protocols.types.errors import ConfigError


def test_a_model_that_does_not_fit_is_refused_with_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmarks.joining, "available_memory_bytes", lambda: 1 << 30)
    with pytest.raises(ConfigError, match=r"3 members and a joiner of 64 MiB need .* 1\.0 GiB"):
        main(mib=64, peers=3)


def test_help_shows_examples() -> None:
    argv = [sys.executable, "-m", "benchmarks", "joining", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert "python -m benchmarks joining --mib 64 --peers 3 --json" in done.stdout
