"""Checks that the tests notice bugs of the shell: `python -m sims.shell_mutants` plants them.

Each mutant gets a run of pytest in a process of its own, on the test files that it names, up to the
first failure; the tests that failed must pass without it. Must NOT judge the result of a test.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from protocols.types import ConfigError
from sims.mutations.patch import Mutant
from sims.planted_tests import fail_without_bugs, run_tests
from sims.shell_mutations.all import SHELL_MUTANTS
from sims.terminal import run

TABLE_BEGINS = "<!-- python -m sims.shell_mutants --table writes from here to the end -->"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one mutant."""

    name: str
    why: str
    caught: bool
    test: str
    """The first test that failed; if the mutant was not caught, the last lines of pytest's
    output."""
    seconds: float


def try_all(mutants: Sequence[Mutant], *, jobs: int) -> Iterator[Verdict]:
    """Yield the verdicts in the order of their completion."""
    with ThreadPoolExecutor(jobs) as threads:  # Each thread waits for a process.
        for done in as_completed(threads.submit(_try, mutant) for mutant in mutants):
            yield done.result()


def sample(seed: int, count: int) -> tuple[Mutant, ...]:
    """`count` of all mutants; consecutive seeds give other ones until all had their turn."""
    first = seed * count
    size = len(SHELL_MUTANTS)
    return tuple(SHELL_MUTANTS[(first + place) % size] for place in range(min(count, size)))


def table(verdicts: Sequence[Verdict]) -> str:
    """The table of docs/planted-bugs.md, in the order of the mutants."""
    order = [mutant.name for mutant in SHELL_MUTANTS]
    lines = ["| planted bug | why it is one | first test that fails |", "|---|---|---|"]
    for each in sorted(verdicts, key=lambda verdict: order.index(verdict.name)):
        test = f"`{each.test}`" if each.caught else "**none**"
        lines.append(f"| {each.name} | {each.why} | {test} |")
    return "\n".join(lines)


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Only this mutant; repeat for more.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes at a time.", min=1)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    table_file: Annotated[
        Path | None, typer.Option("--table", help="Also write the table into this document.")
    ] = None,
) -> None:
    """Plant known bugs into the shell, one at a time; exit with 1 if the tests overlook any.

    \b
    Examples:
      python -m sims.shell_mutants
      python -m sims.shell_mutants --only log-appends-without-a-sync
      python -m sims.shell_mutants --table docs/planted-bugs.md
    """
    unknown = set(only or ()) - {mutant.name for mutant in SHELL_MUTANTS}
    if unknown:
        raise ConfigError(f"no mutant of the shell is called {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in SHELL_MUTANTS if not only or mutant.name in only]
    verdicts: list[Verdict] = []
    for verdict in try_all(chosen, jobs=jobs):
        verdicts.append(verdict)
        what = verdict.test if verdict.caught else f"NOT CAUGHT {verdict.test}"
        line = f"{verdict.name}: in {verdict.seconds} s: {what}"
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    overlooked = overlooked_of(verdicts)
    if table_file is not None:
        write_table(table_file, verdicts)
    summary = {
        "mutants": [asdict(verdict) for verdict in verdicts],
        "caught": len(verdicts) - len(overlooked),
        "overlooked": overlooked,
    }
    print(json.dumps(summary) if as_json else table(verdicts))  # noqa: T201
    sys.exit(1 if overlooked else 0)


def overlooked_of(verdicts: Sequence[Verdict]) -> list[str]:
    """The mutants that no test noticed, or only tests that fail without them too."""
    faulty = fail_without_bugs(verdict.test for verdict in verdicts if verdict.caught)
    return [one.name for one in verdicts if not one.caught or one.test in faulty]


def write_table(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the table behind the line TABLE_BEGINS of a document. Raises ConfigError if there is
    none."""
    text, line, _ = path.read_text().partition(TABLE_BEGINS)
    if not line:
        raise ConfigError(f"{path} has no line {TABLE_BEGINS}")
    path.write_text(f"{text}{line}\n\n{table(verdicts)}\n")


def _try(mutant: Mutant) -> Verdict:
    ran = run_tests(mutant.tests, mutant=mutant.name)
    caught = bool(ran.failed)
    return Verdict(
        name=mutant.name,
        why=mutant.why,
        caught=caught,
        test=ran.failed if caught else ran.output,
        seconds=ran.seconds,
    )


if __name__ == "__main__":
    run(main)
