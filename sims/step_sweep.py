"""Thousands of seeds of a stepwise cluster under faults: `python -m sims.step_sweep --seeds 300`.

As sims.sweep does for rounds, with the same two phases and the same figures; `rounds_committed`
counts step commits. A failing seed prints its story and the command that replays it.
"""

import json
import random
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pool
from typing import Annotated

import typer

from protocols.errors import LowcommError
from sims.faults import Fault, draw_plan, inject
from sims.stepwise import StepWorld
from sims.sweep import LIVENESS_S, SAFETY_S, SeedResult, _unfinished, summary

PEERS = (2, 6)
"""At the start of a seed, at least and at most: each step is a message for every pair."""
STEPS = (200, 240)


def run_seed(seed: int, *, plan: list[Fault] | None = None) -> SeedResult:
    """One cluster, from start to end."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    world = StepWorld(seed, peers=source.randint(*PEERS), outer_steps=source.choice(STEPS))
    faults = draw_plan(seed, until_s=SAFETY_S) if plan is None else plan
    inject(world, faults)
    world.at(SAFETY_S, world.heal)
    violations: list[str] = []
    try:
        world.run(until_s=SAFETY_S + LIVENESS_S)
    except (AssertionError, LookupError, ValueError, LowcommError):
        violations = traceback.format_exc().splitlines()[-8:]
    return SeedResult(
        seed=seed,
        virtual_s=world.now,
        commits=len(world.step_checkers.step_commits),
        happened=dict(world.happened),
        log=dict(Counter(type(entry).__name__ for entry in world.checkers.log.values())),
        moves={f"{one.value} > {two.value}": n for (one, two), n in world.moves().items()},
        violations=[*violations, *world.checkers.violations, *_unfinished(world)],
        story=world.story,
        plan=faults,
    )


def _run_all(seeds: range, processes: int) -> Iterator[SeedResult]:
    if processes == 1:
        yield from map(run_seed, seeds)
        return
    with Pool(processes) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=4)


def main(
    seeds: Annotated[int, typer.Option(help="How many seeds to run.", min=1)] = 300,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    processes: Annotated[int, typer.Option(help="How many at a time.", min=1)] = 2,
    show: Annotated[bool, typer.Option("--story", help="Print each seed's story.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run simulated clusters that agree on every step; exit with 1 if anything that must hold
    did not.

    \b
    Examples:
      python -m sims.step_sweep --seeds 500 --json
      python -m sims.step_sweep --first 4711 --seeds 1 --story
    """
    results: list[SeedResult] = []
    for result in _run_all(range(first, first + seeds), min(processes, seeds)):
        results.append(result)
        if show or result.violations:
            print(*result.story[-60:], *result.violations, sep="\n", file=sys.stderr)  # noqa: T201
            replay = f"python -m sims.step_sweep --first {result.seed} --seeds 1 --story"
            print(f"replay: {replay}", file=sys.stderr)  # noqa: T201
        if sys.stderr.isatty():
            print(f"\r{len(results)} of {seeds}", end="", file=sys.stderr)  # noqa: T201
    total = summary(results)
    text = json.dumps(total) if as_json else "\n".join(f"{k}: {v}" for k, v in total.items())
    print(text)  # noqa: T201
    sys.exit(1 if total["violations"] else 0)


if __name__ == "__main__":
    typer.run(main)
