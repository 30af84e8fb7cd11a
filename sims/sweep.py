"""Thousands of seeds of a whole cluster under faults: `python -m sims.sweep --seeds 300`.

Each seed runs two phases: safety (anything may fail) and liveness (no more faults; the run must
finish within LIVENESS_S). A failing seed prints its story and the command that replays it.
"""

import json
import random
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from protocols.waiting import describe
from sims.faults import KINDS, Fault, draw_plan, inject
from sims.world import World

SAFETY_S = 30.0
LIVENESS_S = 180.0
"""Virtual seconds in which what is left of the rounds must be committed and everybody done."""


@dataclass(slots=True)
class SeedResult:
    """What one seed showed."""

    seed: int
    virtual_s: float
    commits: int
    faults: list[Fault]
    violations: list[str]
    story: list[str]


def run_seed(seed: int, *, plan: list[Fault] | None = None) -> SeedResult:
    """One cluster, from start to end."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    world = World(seed, peers=source.randint(1, 5), outer_steps=source.choice([10, 30]))
    faults = draw_plan(seed, until_s=SAFETY_S) if plan is None else plan
    inject(world, faults)
    world.at(SAFETY_S, world.heal)
    world.run(until_s=SAFETY_S + LIVENESS_S)
    violations = list(world.checkers.violations)
    first, *_ = world.nodes.values()
    for peer, node in world.nodes.items():
        # Who slept while the run ended without it finds nobody any more.
        slept = first.outcome == "finished" and peer not in first.core.members.members
        if node.alive and node.outcome not in ("finished", "alone", "failed" if slept else ""):
            violations.append(
                f"{peer} did not finish: {node.outcome} {describe(node.core, world.now)}"
            )
    return SeedResult(seed, world.now, len(world.checkers.commits), faults, violations, world.story)


def main(
    seeds: Annotated[int, typer.Option(help="How many seeds to run.")] = 300,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    show: Annotated[bool, typer.Option("--story", help="Print each seed's story.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run SEEDS simulated clusters; exit with 1 if anything that must hold did not."""
    results = [run_seed(seed) for seed in range(first, first + seeds)]
    failed = [result for result in results if result.violations]
    for result in results if show else failed:
        print(*result.story[-60:], *result.violations, sep="\n")  # noqa: T201
        print(f"replay: python -m sims.sweep --first {result.seed} --seeds 1 --story")  # noqa: T201
    summary = {
        "seeds": seeds,
        "first": first,
        "virtual_hours": sum(result.virtual_s for result in results) / 3600,
        "rounds_committed": sum(result.commits for result in results),
        "faults": {
            kind: sum(f.kind == kind for result in results for f in result.faults) for kind in KINDS
        },
        "violations": sum(len(result.violations) for result in results),
        "failed": [asdict(result)["seed"] for result in failed],
    }
    print(json.dumps(summary) if as_json else summary)  # noqa: T201
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
