"""Checks that the simulator notices bugs: `python -m sims.mutants --json` plants one at a time.

For each mutant, seeds of sims.sweep run in a process of their own until a checker finds a
violation; the seed that caught the mutant must pass without it. If a mutant names tests, these run
instead. Must NOT change the world of a seed, nor judge it: the checkers do.
"""

import itertools
import json
import multiprocessing
import re
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

from protocols.types import ConfigError
from sims import gossip_sweep, step_sweep, sweep
from sims.mutations.catalogue import KINDS, KNOWN, OF_PAIRS, Kind, find, plant
from sims.mutations.mutant_files import read_mutants
from sims.mutations.patch import Mutant
from sims.mutations.revocation import REVOCATION_MUTANTS
from sims.mutations.steering import STEERING_MUTANTS
from sims.planted_tests import fail_without_bugs, run_tests
from sims.scenarios.fault_plan import FaultKind, draw_plan
from sims.terminal import run

CAUGHT = Path(__file__).parent / "mutations" / "caught.json"
SEED_CPU_S = 20.0
"""CPU seconds that a seed may take. A healthy seed takes about one; with a mutant it may loop for
ever."""
HUNT_S = 3600.0
"""Seconds that a hunt may take; its process counts as lost then."""


class StuckError(RuntimeError):
    """A seed used up its CPU time."""


PLOTS: Mapping[str, FaultKind] = {
    "restores-a-void-branch": "relapse",
    **dict.fromkeys((known.name for known in REVOCATION_MUTANTS), "revoke"),
    **dict.fromkeys((known.name for known in STEERING_MUTANTS), "steer"),
}
"""By mutant: the fault without which it does no harm, and which few seeds have."""
SEEDS: Mapping[Kind, Callable[[int], sweep.SeedResult]] = {
    "rounds": sweep.run_seed,
    "steps": step_sweep.run_seed,
    "gossip": gossip_sweep.run_seed,
}
MISFIT = re.compile(r"NameError: |AttributeError: (?!'NoneType')")
"""Of an error that shows a mutant which does not fit into the source any more."""
RAISED = (*sweep.RAISED, RuntimeError)
"""The exceptions with which a planted bug can end a seed; the sweep reports most of them itself."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """The task of one worker process."""

    name: str
    file: str
    """The file that defines the mutant; "" for a mutant of the catalogue."""
    first: int
    seeds: int
    """Number of seeds to try, at most."""
    runs: Kind | None = None
    """The kind of runs for the mutant of a file; None: that of the catalogue for its name."""
    hint: int | None = None
    """The seed that caught the mutant last, which is tried before the others."""

    @property
    def kind(self) -> Kind:
        return self.runs or KINDS.get(self.name, "rounds")

    @property
    def mutant(self) -> str:
        """The mutant in the form that `find` takes."""
        return f"{self.file}:{self.name}" if self.file else self.name

    def tries(self) -> Iterator[int]:
        """The seeds to try: only worlds of two peers can fork, and some bugs need the fault in
        PLOTS."""
        hints = [] if self.hint is None else [self.hint]
        others = (seed for seed in itertools.count(self.first) if seed not in hints)
        return itertools.islice(itertools.chain(hints, filter(self._fits, others)), self.seeds)

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
class HuntVerdict:
    """The outcome of one hunt."""

    name: str
    caught: bool
    seeds: int
    """Number of seeds that were run; 0 if tests were run."""
    seed: int
    """The last seed that was run: if the mutant was caught by a seed, by this one."""
    by: str
    """The first violation, or the first test that failed."""
    seconds: float


def hunt(task: Hunt) -> HuntVerdict:
    """Plant a mutant into this process, which must not be used for others afterwards, and run
    seeds."""
    began = time.monotonic()

    def verdict(seeds: int, seed: int, by: str, *, caught: bool) -> HuntVerdict:
        return HuntVerdict(task.name, caught, seeds, seed, by, round(time.monotonic() - began, 1))

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
            return verdict(count, seed, by, caught=not MISFIT.match(by))
    return verdict(task.seeds, seed, "", caught=False)


def what_fails(seed: int, kind: Kind = "rounds") -> str:
    """The first violation of this seed, in one line; "" if there is none."""
    try:
        with cpu_limit(SEED_CPU_S):
            violations = SEEDS[kind](seed).violations
    except RAISED as error:
        return f"{type(error).__name__}: {error}"
    # The last line of a traceback names the error; the others are indented.
    telling = [line for line in violations if not line.startswith((" ", "Traceback"))]
    return (telling or violations or [""])[0]


@contextmanager
def cpu_limit(seconds: float) -> Generator[None]:
    """Raise StuckError inside the block after so many CPU seconds, so that the load of the machine
    does not matter."""

    def stuck(_signal: int, _frame: FrameType | None) -> None:
        raise StuckError(f"a seed took {seconds} s")

    before = signal.signal(signal.SIGVTALRM, stuck)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def hunt_all(tasks: list[Hunt], *, jobs: int) -> Iterator[HuntVerdict]:
    """Yield the verdicts in the order of their completion. Each hunt has a fresh process, so that
    no two bugs are in one."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        verdicts = pool.imap_unordered(hunt, tasks, chunksize=1)
        for _ in tasks:
            yield verdicts.next(timeout=HUNT_S)


def unhealthy(seeds: set[int], kind: Kind, *, jobs: int) -> list[int]:
    """The seeds that fail without a mutant, and have caught none."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        order = sorted(seeds)
        look = partial(what_fails, kind=kind)
        found = pool.map_async(look, order).get(timeout=HUNT_S)
    return [seed for seed, by in zip(order, found, strict=True) if by]


def overlooked_of(
    verdicts: list[HuntVerdict], kinds: Mapping[str, Kind], *, jobs: int
) -> tuple[list[str], list[int]]:
    """The mutants that were not noticed, and the seeds that fail without a mutant."""
    overlooked, failed = [v.name for v in verdicts if not v.caught], list[int]()
    for kind in SEEDS:
        caught = {
            v.name: v.seed for v in verdicts if v.caught and v.seeds and kinds[v.name] == kind
        }
        sick = unhealthy(set(caught.values()), kind, jobs=jobs) if caught else []
        overlooked += [name for name, seed in caught.items() if seed in sick]
        failed += sick
    tests = {v.name: v.by for v in verdicts if v.caught and not v.seeds}
    faulty = fail_without_bugs(tests.values())
    overlooked += [name for name, test in tests.items() if test in faulty]
    return overlooked, failed


def last_catches() -> dict[str, int]:
    """By name, the seed that caught a mutant last. A seed is another world after some changes."""
    caught: dict[str, int] = json.loads(CAUGHT.read_text(encoding="utf-8"))
    return caught


def remember(verdicts: list[HuntVerdict]) -> None:
    """Write the seeds that have caught a mutant to CAUGHT."""
    caught = last_catches() | {v.name: v.seed for v in verdicts if v.caught and v.seeds}
    names = sorted(caught.keys() & {known.name for known in KNOWN})
    text = json.dumps({name: caught[name] for name in names}, indent=1)
    CAUGHT.write_text(text + "\n", encoding="utf-8")


def tasks_of(
    mutant: str, only: list[str] | None, *, kind: Kind, first: int, seeds: int
) -> list[Hunt]:
    """The hunts of all known mutants, or of those of a file. Raises ConfigError."""
    if mutant:
        names = [found.name for found in read_mutants(mutant)]
        file = str(Path(mutant).resolve())
        tasks = [Hunt(name, file, first, seeds, kind) for name in names]
    else:
        names, caught = [known.name for known in KNOWN], last_catches()
        tasks = [Hunt(name, "", first, seeds, hint=caught.get(name)) for name in names]
    unknown = set(only or ()) - set(names)
    if unknown:
        raise ConfigError(f"no mutant is called {', '.join(sorted(unknown))}")
    return [task for task in tasks if not only or task.name in only]


def main(
    mutant: Annotated[
        str,
        typer.Option(
            help="Plant the mutants of this Python file (MUTANTS, or a function plant()) instead."
        ),
    ] = "",
    runs: Annotated[
        str, typer.Option(help="Kind of runs for a file's mutants: rounds, steps or gossip.")
    ] = "rounds",
    only: Annotated[
        list[str] | None, typer.Option(help="Only this mutant; repeat for more.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds for each mutant, at most.", min=1)] = 500,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes at a time.", min=1)] = 2,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the seeds found, to try them first from now on."),
    ] = False,
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
    verdicts: list[HuntVerdict] = []
    for verdict in hunt_all(tasks, jobs=jobs):
        verdicts.append(verdict)
        print(describe(verdict), file=sys.stderr, flush=True)  # noqa: T201
        if keep and not mutant:
            remember(verdicts)
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


def describe(verdict: HuntVerdict) -> str:
    """The verdict in one line, for a person."""
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
