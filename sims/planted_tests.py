"""Runs pytest in a process of its own with one bug planted, to check that the tests notice it.

`tests/conftest.py` plants it (`pytest --plant NAME`) before any test is collected. Must NOT judge
the result of a test.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocols.types import ConfigError
from sims.mutations import catalogue
from sims.mutations.patch import UnplantableError

ROOT = Path(__file__).parent.parent
RUN_S = 900.0
"""Seconds that a run of pytest may take."""
_FAILED = re.compile(r"^FAILED (\S+::\S.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PytestRun:
    """One run of pytest, up to its first failure."""

    passed: bool
    failures: tuple[str, ...]
    """The tests that failed; none if the run ended before any test."""
    output: str
    """The last lines of the output, for a run that neither passed nor failed."""
    seconds: float

    @property
    def failed(self) -> str:
        """The first test that failed; "": none."""
        return self.failures[0] if self.failures else ""


def plant(text: str) -> None:
    """Plant a mutant of the shell, of the core or of a file. Raises ConfigError."""
    from sims.shell_mutations.all import SHELL_MUTANTS  # It imports what ranks do: torch too.

    found = [known for known in SHELL_MUTANTS if known.name == text]
    if not found:
        catalogue.plant(text)
        return
    try:
        found[0].plant()
    except UnplantableError as error:
        raise ConfigError(f"{text} cannot be planted: {error}") from error


def fail_without_bugs(failed: Iterable[str]) -> set[str]:
    """Those of these tests, each of which noticed a bug, that fail without one too. All cases of
    each test run, since pytest may cut off the name of one."""
    tests = set(failed)
    if not tests:
        return tests
    ran = run_tests(sorted({_function(test) for test in tests}), stop=False)
    if ran.passed or not ran.failures:
        return set() if ran.passed else tests  # A run without a verdict speaks for no test.
    faulty = {_function(test) for test in ran.failures}
    return {test for test in tests if _function(test) in faulty}


def _function(test: str) -> str:
    return test.partition("[")[0]


def run_tests(tests: Sequence[str], *, mutant: str = "", stop: bool = True) -> PytestRun:
    """Run these test files or ids, without tests marked `long`; `stop`: end at the first
    failure."""
    began = time.monotonic()
    options = ["-m", "not long", "-p", "no:cacheprovider", *(["-x"] if stop else [])]
    planted = ["--plant", mutant] if mutant else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *planted, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    return PytestRun(
        passed=done.returncode == 0,
        failures=tuple(_FAILED.findall(done.stdout)),
        output="\n".join((done.stdout + done.stderr).strip().splitlines()[-5:]),
        seconds=round(time.monotonic() - began, 1),
    )
