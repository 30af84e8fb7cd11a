"""Runs many seeds of a stepwise cluster under faults: `python -m sims.step_sweep --seeds 300`.

The counterpart of sims.sweep, which is for rounds, with the same two phases and the same figures;
`rounds_committed` counts step commits. A failing seed prints its story and the command that replays
it.
"""

import random
from functools import partial
from typing import Annotated

import typer

from sims.checkers import StepWorld
from sims.mutations.catalogue import MUTANT_HELP, plant
from sims.scenarios.fault_plan import PlannedFault, draw_plan, draw_revocations
from sims.sweep import (
    SAFETY_S,
    AsJson,
    First,
    Processes,
    SeedResult,
    Seeds,
    Story,
    again_with,
    in_turn,
    play,
    report,
)
from sims.terminal import run

PEERS = (2, 6)
"""The least and the most peers at the start of a seed. They are few, since each step is a message
for every pair."""
STEPS = (200, 240)
WITNESSES = 0.2
"""Share of the seeds that have a witness."""
SALT = 0xB61
GUARDED, GUARDED_SALT = 0.8, 0xA88
"""Share of the seeds with revocations in which peers have certificates that can be revoked, and the
salt of its random source."""


def run_seed(seed: int, *, plan: list[PlannedFault] | None = None) -> SeedResult:
    """Run one cluster from start to end."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    peers, steps = source.randint(*PEERS), source.choice(STEPS)
    world = StepWorld(
        seed,
        peers=peers,
        outer_steps=steps,
        witness=has_witness(seed),
        certified=is_guarded(seed),
    )
    return play(seed, world, draw_plan(seed, until_s=SAFETY_S) if plan is None else plan)


def has_witness(seed: int) -> bool:
    """True if a witness votes with the peers of this seed. Seeds that showed a bug before witnesses
    existed have none, so that they replay unchanged."""
    return random.Random(seed ^ SALT).random() < WITNESSES  # noqa: S311 (as above)


def is_guarded(seed: int) -> bool:
    """True if peers have certificates, which may be revoked: in a share of the seeds with
    revocations. Seeds that showed a bug before this existed have none."""
    source = random.Random(seed ^ GUARDED_SALT)  # noqa: S311 (as above)
    return bool(draw_revocations(seed, until_s=SAFETY_S)) and source.random() < GUARDED


def main(
    seeds: Seeds = 300,
    first: First = 0,
    processes: Processes = 2,
    show: Story = False,
    as_json: AsJson = False,
    mutant: Annotated[str, typer.Option(help=MUTANT_HELP)] = "",
) -> None:
    """Run simulated clusters that agree on every step; exit with 1 if a checker finds a violation.

    \b
    Examples:
      python -m sims.step_sweep --seeds 500 --json
      python -m sims.step_sweep --first 4711 --seeds 1 --story
      python -m sims.step_sweep --seeds 100 --mutant my_bug.py
    """
    if mutant:
        plant(mutant)
    whole = range(first, first + seeds)
    running = in_turn(run_seed, whole, processes=min(processes, seeds))
    again = partial(again_with, "sims.step_sweep", mutant=mutant)
    report(running, seeds, again, show=show, as_json=as_json)


if __name__ == "__main__":
    run(main)
