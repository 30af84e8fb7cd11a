"""Would the simulator notice a bug? `python -m sims.mutants --json` plants one after the other.

Each mutant runs seeds of sims.sweep in a process of its own until something that must hold does
not; the seed that caught it must pass without it. Must NOT change what a seed does, nor judge it:
the checkers do.
"""

import importlib.util
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
from typing import Annotated, Literal

import typer

from protocols.errors import LowcommError
from sims import gossip_sweep, step_sweep, sweep
from sims.faults import FaultKind, draw_plan
from sims.mutations import MUTANTS as CORE_MUTANTS
from sims.mutations_forks import FORK_MUTANTS
from sims.mutations_gossip import GOSSIP_MUTANTS
from sims.mutations_leases import LEASE_MUTANTS
from sims.mutations_steps import STEP_MUTANTS
from sims.mutations_transfers import TRANSFER_MUTANTS
from sims.mutations_voids import VOID_MUTANTS
from sims.planting import UnplantableError

MUTANTS = (*CORE_MUTANTS, *LEASE_MUTANTS, *VOID_MUTANTS, *TRANSFER_MUTANTS)
SEED_CPU_S = 20.0
"""A healthy seed takes about one; a mutant may go round in circles for ever."""
HUNT_S = 3600.0
"""No hunt takes longer: what does not answer by then is lost."""


class StuckError(RuntimeError):
    """A seed used up its time."""


KNOWN = (*MUTANTS, *STEP_MUTANTS, *FORK_MUTANTS, *GOSSIP_MUTANTS)
OF_PAIRS = frozenset(known.name for known in FORK_MUTANTS)
PLOTS: Mapping[str, FaultKind] = {"restores-a-void-branch": "relapse"}
"""What has to happen before a mutant can do harm, and what few seeds have."""
Kind = Literal["rounds", "steps", "gossip"]
"""Of a run."""
SEEDS: Mapping[Kind, Callable[[int], sweep.SeedResult]] = {
    "rounds": sweep.run_seed,
    "steps": step_sweep.run_seed,
    "gossip": gossip_sweep.run_seed,
}
KINDS: Mapping[str, Kind] = {
    **{known.name: "steps" for known in STEP_MUTANTS},
    **{known.name: "gossip" for known in GOSSIP_MUTANTS},
}
"""In which a mutant is hunted, if not in one of rounds."""


def kind_of(mutant: str) -> Kind:
    """The runs in which it is hunted."""
    return KINDS.get(mutant, "rounds")


RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError),
    *(LowcommError, TypeError, ValueError),
)
"""What a planted bug can end a seed with, beyond what the sweep reports itself."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """What a worker shall do."""

    name: str
    file: str
    """A module with a function `plant`; "": the mutant is one of ours."""
    first: int
    seeds: int
    """At most."""

    def tries(self) -> Iterator[int]:
        """The seeds to try: only a pair can fork, and some bugs show in one plot alone."""
        return itertools.islice(filter(self._fits, itertools.count(self.first)), self.seeds)

    def _fits(self, seed: int) -> bool:
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
    """How many were run."""
    seed: int
    """The last one of them: it caught it, if any did."""
    by: str
    """The first thing that did not hold."""
    seconds: float


def hunt(task: Hunt) -> Verdict:
    """Plant a bug into this process, which is good for nothing else from then on, and look."""
    began = time.monotonic()

    def verdict(seeds: int, seed: int, by: str, *, caught: bool) -> Verdict:
        return Verdict(task.name, caught, seeds, seed, by, round(time.monotonic() - began, 1))

    seed = task.first
    try:
        planter(task)()
    except UnplantableError as error:
        return verdict(0, seed, f"cannot be planted: {error}", caught=False)
    for count, seed in enumerate(task.tries(), 1):
        by = what_fails(seed, kind_of(task.name))
        if by:
            return verdict(count, seed, by, caught=True)
    return verdict(task.seeds, seed, "", caught=False)


def planter(task: Hunt) -> Callable[[], object]:
    """The function that plants the bug. Raises UnplantableError if there is none."""
    if not task.file:
        return next(known.plant for known in KNOWN if known.name == task.name)
    spec = importlib.util.spec_from_file_location("planted", task.file)
    if spec is None or spec.loader is None:
        raise UnplantableError(f"{task.file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plant = getattr(module, "plant", None)
    if not callable(plant):
        raise UnplantableError(f"{task.file} has no function plant()")
    return plant


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


def main(
    mutant: Annotated[
        Path | None,
        typer.Option(help="A Python file with a function plant().", exists=True, dir_okay=False),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this one. Repeat.")] = None,
    seeds: Annotated[int, typer.Option(help="At most, for each mutant.", min=1)] = 500,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes at a time.", min=1)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plant known bugs, one at a time; exit with 1 if the simulator overlooks any."""
    wanted = only or [known.name for known in KNOWN]
    unknown = set(wanted) - {known.name for known in KNOWN}
    if unknown:
        raise typer.BadParameter(f"no mutant is called {', '.join(sorted(unknown))}")
    if mutant is not None:
        tasks = [Hunt(mutant.stem, str(mutant.resolve()), first, seeds)]
    else:
        tasks = [Hunt(name, "", first, seeds) for name in wanted]
    verdicts: list[Verdict] = []
    for verdict in hunt_all(tasks, jobs=jobs):
        verdicts.append(verdict)
        print(describe(verdict), file=sys.stderr, flush=True)  # noqa: T201
    failed: list[int] = []
    overlooked = [v.name for v in verdicts if not v.caught]
    for kind in SEEDS:
        caught = {v.name: v.seed for v in verdicts if v.caught and kind_of(v.name) == kind}
        sick = unhealthy(set(caught.values()), kind, jobs=jobs) if caught else []
        overlooked += [name for name, seed in caught.items() if seed in sick]
        failed += sick
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
    if verdict.caught:
        seed = f"seed {verdict.seed} ({verdict.seeds} tried)"
        return f"{verdict.name}: {seed} in {verdict.seconds} s: {verdict.by[:160]}"
    return (
        f"{verdict.name}: NOT CAUGHT by {verdict.seeds} seeds in {verdict.seconds} s {verdict.by}"
    )


if __name__ == "__main__":
    typer.run(main)
