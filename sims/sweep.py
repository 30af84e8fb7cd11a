"""Thousands of seeds of a whole cluster under faults: `python -m sims.sweep --seeds 300`.

Each seed runs two phases: safety (anything may fail) and liveness (no more faults; the run must
finish within LIVENESS_S). A failing seed prints its story and the command that replays it.
"""

import json
import random
import sys
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from protocols.waiting import describe
from sims.faults import Fault, draw_plan, inject
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
    happened: dict[str, int]
    """Faults that took place, and what came of them."""
    violations: list[str]
    story: list[str]


def run_seed(seed: int, *, plan: list[Fault] | None = None) -> SeedResult:
    """One cluster, from start to end."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    world = World(seed, peers=source.randint(1, 5), outer_steps=source.choice([10, 30]))
    faults = draw_plan(seed, until_s=SAFETY_S) if plan is None else plan
    inject(world, faults)
    world.at(SAFETY_S, world.heal)
    violations: list[str] = []
    try:
        world.run(until_s=SAFETY_S + LIVENESS_S)
    except (AssertionError, LookupError, ValueError):
        violations = traceback.format_exc().splitlines()[-8:]
    violations += [*world.checkers.violations, *_unfinished(world)]
    return SeedResult(
        seed=seed,
        virtual_s=world.now,
        commits=len(world.checkers.commits),
        happened=dict(world.happened),
        violations=violations,
        story=world.story,
    )


def _unfinished(world: World) -> list[str]:
    """Whoever is alive must have come to a good end."""
    leader = world.leader
    found: list[str] = []
    for peer, node in world.nodes.items():
        allowed = {"finished", "alone"}
        if node.asked_to_leave:
            allowed.add("left")
        if leader.outcome == "finished" and peer not in leader.core.members.members:
            allowed.add("failed")  # It slept, or came, while the run ended without it.
        if node.alive and node.outcome not in allowed:
            wait = describe(node.core, world.now)
            found.append(f"{peer} did not finish: {node.outcome} {node.why} {wait}")
    return found


def _added_up(results: list[SeedResult]) -> dict[str, int]:
    total = Counter[str]()
    for result in results:
        total.update(result.happened)
    return dict(sorted(total.items()))


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
        "happened": _added_up(results),
        "violations": sum(len(result.violations) for result in results),
        "failed": [asdict(result)["seed"] for result in failed],
    }
    print(json.dumps(summary) if as_json else summary)  # noqa: T201
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
