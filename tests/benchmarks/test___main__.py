"""The one command of the benchmarks: it lists them, runs one, and refuses a wrong name."""

import subprocess
import sys
from importlib import import_module

import pytest

from benchmarks.__main__ import BENCHMARKS, main


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_is_a_command(name: str) -> None:
    assert callable(import_module(f"benchmarks.{name}").main)


def test_help_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in BENCHMARKS)


def test_a_wrong_name_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["exchanges"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: there is no benchmark 'exchanges'; did you mean 'exchange'?\n"
    )


def test_options_go_to_the_benchmark() -> None:
    argv = [sys.executable, "-m", "benchmarks", "core", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "Usage: python -m benchmarks core" in " ".join(done.stdout.split())
