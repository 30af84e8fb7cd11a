"""Thousands of seeds of a stepwise cluster under faults: `python -m sims.step_sweep --seeds 300`.

As sims.sweep does for rounds, with the same two phases and the same figures; `rounds_committed`
counts step commits. A failing seed prints its story and the command that replays it.
"""

import random
from typing import Annotated

import typer

from sims.faults import Fault, draw_plan
from sims.stepwise import StepWorld
from sims.sweep import SAFETY_S, SeedResult, in_turn, play, report
from sims.terminal import run

PEERS = (2, 6)
"""At the start of a seed, at least and at most: each step is a message for every pair."""
STEPS = (200, 240)


def run_seed(seed: int, *, plan: list[Fault] | None = None) -> SeedResult:
    """One cluster, from start to end."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    world = StepWorld(seed, peers=source.randint(*PEERS), outer_steps=source.choice(STEPS))
    return play(seed, world, draw_plan(seed, until_s=SAFETY_S) if plan is None else plan)


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
    whole = range(first, first + seeds)
    running = in_turn(run_seed, whole, processes=min(processes, seeds))
    report(running, seeds, _again, show=show, as_json=as_json)


def _again(result: SeedResult) -> tuple[str]:
    return (f"replay: python -m sims.step_sweep --first {result.seed} --seeds 1 --story",)


if __name__ == "__main__":
    run(main)
