"""Would the simulator notice a bug? `python -m sims.mutants --json` plants one after the other.

Each mutant runs seeds of sims.sweep in a process of its own until something that must hold does
not; the seed that caught it must pass without it. A mutant that names tests is given to these
instead. Must NOT change what a seed does, nor judge it: the checkers do.
"""

import itertools
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from protocols.types.errors import ConfigError
from sims import gossip_sweep, step_sweep, sweep
from sims.mutations.catalogue import KINDS, KNOWN, OF_PAIRS, Kind, find, plant
from sims.mutations.mutant_files import read_mutants
from sims.mutations.patch import Mutant
from sims.mutations.revocation import REVOCATION_MUTANTS
from sims.planted_tests import are_healthy, run_tests
from sims.scenarios.fault_plan import FaultKind, draw_plan
from sims.terminal import run

SEED_CPU_S = 20.0
"""A healthy seed takes about one; a mutant may go round in circles for ever."""
HUNT_S = 3600.0
"""No hunt takes longer: what does not answer by then is lost."""


class StuckError(RuntimeError):
    """A seed used up its time."""


PLOTS: Mapping[str, FaultKind] = {
    "restores-a-void-branch": "relapse",
    **dict.fromkeys((known.name for known in REVOCATION_MUTANTS), "revoke"),
}
"""What has to happen before a mutant can do harm, and what few seeds have."""
SEEDS: Mapping[Kind, Callable[[int], sweep.SeedResult]] = {
    "rounds": sweep.run_seed,
    "steps": step_sweep.run_seed,
    "gossip": gossip_sweep.run_seed,
}
RAISED = (*sweep.RAISED, RuntimeError)
"""What a planted bug can end a seed with, beyond what the sweep reports itself."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """What a worker shall do."""

    name: str
    file: str
    """Where the mutant is defined; "": the mutant is one of ours."""
    first: int
    seeds: int
    """At most."""
    runs: Kind | None = None
    """Where the mutant of a file is hunted; None: where a known one of this name would be."""

    @property
    def kind(self) -> Kind:
        return self.runs or KINDS.get(self.name, "rounds")

    @property
    def mutant(self) -> str:
        """As `find` takes it."""
        return f"{self.file}:{self.name}" if self.file else self.name

    def tries(self) -> Iterator[int]:
        """The seeds to try: only a pair can fork, and some bugs show in one plot alone."""
        return itertools.islice(filter(self._fits, itertools.count(self.first)), self.seeds)

    def _fits(self, seed: int) -> bool:
        if self.file:
            return True
        pair, plot = seed % sweep.PAIR_EVERY == 0, PLOTS.get(self.name)
        if self.name in OF_PAIRS:
            return pair
        return plot is None or (
            not pair and any(f.kind == plot for f in draw_plan(seed, until_s=sweep.SAFETY_S))
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    name: str
    caught: bool
    seeds: int
    """How many were run; 0: tests were run."""
    seed: int
    """The last one of them: it caught it, if any did."""
    by: str
    """The first thing that did not hold, or the first test that failed."""
    seconds: float


def hunt(task: Hunt) -> Verdict:
    """Plant a bug into this process, which is good for nothing else from then on, and look."""
    began = time.monotonic()

    def verdict(seeds: int, seed: int, by: str, *, caught: bool) -> Verdict:
        return Verdict(task.name, caught, seeds, seed, by, round(time.monotonic() - began, 1))

    seed = task.first
    try:
        mutant = find(task.mutant)
        if isinstance(mutant, Mutant) and mutant.tests:
            ran = run_tests(mutant.tests, mutant=task.mutant)
            return verdict(0, seed, ran.failed or ran.output, caught=bool(ran.failed))
        plant(task.mutant)
    except ConfigError as error:
        return verdict(0, seed, str(error), caught=False)
    for count, seed in enumerate(task.tries(), 1):
        by = what_fails(seed, task.kind)
        if by:
            return verdict(count, seed, by, caught=True)
    return verdict(task.seeds, seed, "", caught=False)


def what_fails(seed: int, kind: Kind = "rounds") -> str:
    """The first thing that did not hold with this seed, in one line; "" if everything did."""
    try:
        with cpu_limit(SEED_CPU_S):
            violations = SEEDS[kind](seed).violations
    except RAISED as error:
        return f"{type(error).__name__}: {error}"
    # Of a traceback the last line says what happened; the others are indented.
    telling = [line for line in violations if not line.startswith((" ", "Traceback"))]
    return (telling or violations or [""])[0]


@contextmanager
def cpu_limit(seconds: float) -> Generator[None]:
    """Raise StuckError inside after so much CPU time: how busy the machine is changes nothing."""

    def stuck(_signal: int, _frame: FrameType | None) -> None:
        raise StuckError(f"a seed took {seconds} s")

    before = signal.signal(signal.SIGVTALRM, stuck)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def hunt_all(tasks: list[Hunt], *, jobs: int) -> Iterator[Verdict]:
    """In the order in which they end; a fresh process each, so that no bug meets another."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        verdicts = pool.imap_unordered(hunt, tasks, chunksize=1)
        for _ in tasks:
            yield verdicts.next(timeout=HUNT_S)


def unhealthy(seeds: set[int], kind: Kind, *, jobs: int) -> list[int]:
    """Those of the seeds that fail without any bug of ours: they have caught nothing."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        order = sorted(seeds)
        look = partial(what_fails, kind=kind)
        found = pool.map_async(look, order).get(timeout=HUNT_S)
    return [seed for seed, by in zip(order, found, strict=True) if by]


def overlooked_of(
    verdicts: list[Verdict], kinds: Mapping[str, Kind], *, jobs: int
) -> tuple[list[str], list[int]]:
    """The mutants that nothing noticed, and the seeds that fail without any."""
    overlooked, failed = [v.name for v in verdicts if not v.caught], list[int]()
    for kind in SEEDS:
        caught = {
            v.name: v.seed for v in verdicts if v.caught and v.seeds and kinds[v.name] == kind
        }
        sick = unhealthy(set(caught.values()), kind, jobs=jobs) if caught else []
        overlooked += [name for name, seed in caught.items() if seed in sick]
        failed += sick
    tests = {v.name: v.by for v in verdicts if v.caught and not v.seeds}
    if not are_healthy(tests.values()):
        overlooked += tests  # They fail without any bug, too.
    return overlooked, failed


def tasks_of(
    mutant: str, only: list[str] | None, *, kind: Kind, first: int, seeds: int
) -> list[Hunt]:
    """All known mutants, or those of a file. Raises ConfigError."""
    if mutant:
        names = [found.name for found in read_mutants(mutant)]
        file = str(Path(mutant).resolve())
        tasks = [Hunt(name, file, first, seeds, kind) for name in names]
    else:
        names = [known.name for known in KNOWN]
        tasks = [Hunt(name, "", first, seeds) for name in names]
    unknown = set(only or ()) - set(names)
    if unknown:
        raise ConfigError(f"no mutant is called {', '.join(sorted(unknown))}")
    return [task for task in tasks if not only or task.name in only]


def main(
    mutant: Annotated[
        str,
        typer.Option(
            help="The mutants of this Python file (with MUTANTS, or a function plant()), not ours."
        ),
    ] = "",
    runs: Annotated[
        str, typer.Option(help="Where a file's mutants are hunted: rounds, steps or gossip.")
    ] = "rounds",
    only: Annotated[list[str] | None, typer.Option(help="Only this one. Repeat.")] = None,
    seeds: Annotated[int, typer.Option(help="At most, for each mutant.", min=1)] = 500,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes at a time.", min=1)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plant known bugs, one at a time; exit with 1 if the simulator overlooks any.

    \b
    Examples:
      python -m sims.mutants --json
      python -m sims.mutants --only no-rebase --only no-pre-vote
      python -m sims.mutants --mutant tests/sims/example_mutants.py --seeds 100
    """
    named: dict[str, Kind] = {known: known for known in SEEDS}
    kind = named.get(runs)
    if kind is None:
        raise ConfigError(f"--runs {runs}: choose one of {', '.join(SEEDS)}")
    tasks = tasks_of(mutant, only, kind=kind, first=first, seeds=seeds)
    verdicts: list[Verdict] = []
    for verdict in hunt_all(tasks, jobs=jobs):
        verdicts.append(verdict)
        print(describe(verdict), file=sys.stderr, flush=True)  # noqa: T201
    kinds: dict[str, Kind] = {task.name: task.kind for task in tasks}
    overlooked, failed = overlooked_of(verdicts, kinds, jobs=jobs)
    summary = {
        "mutants": [asdict(verdict) for verdict in verdicts],
        "caught": len(verdicts) - len(overlooked),
        "overlooked": overlooked,
        "fail_without_any": failed,
    }
    if as_json:
        print(json.dumps(summary))  # noqa: T201
    sys.exit(1 if overlooked else 0)


def describe(verdict: Verdict) -> str:
    """One line for a person."""
    if verdict.caught and not verdict.seeds:
        return f"{verdict.name}: in {verdict.seconds} s: {verdict.by}"
    if verdict.caught:
        seed = f"seed {verdict.seed} ({verdict.seeds} tried)"
        return f"{verdict.name}: {seed} in {verdict.seconds} s: {verdict.by[:160]}"
    return (
        f"{verdict.name}: NOT CAUGHT by {verdict.seeds} seeds in {verdict.seconds} s {verdict.by}"
    )


if __name__ == "__main__":
    run(main)
