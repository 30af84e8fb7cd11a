"""Runs many seeds of gossip runs under faults: `python -m sims.gossip_sweep --seeds 300`.

The clusters are those of sims.sweep, but peers exchange in pairs, and each has a state of its own.
No state is corrupted, since no peer could notice it. A failing seed prints its story and the
command that replays it.
"""

from functools import partial
from typing import Annotated

import typer

from sims import sweep
from sims.mutations.catalogue import MUTANT_HELP, plant
from sims.scenarios.fault_plan import PlannedFault
from sims.sweep import (
    AsJson,
    First,
    Processes,
    SeedResult,
    Seeds,
    Story,
    again_with,
    in_turn,
    report,
)
from sims.terminal import run

PEERS = (2, 9)
"""The least and the most peers at the start of a seed."""


def run_seed(seed: int, *, plan: list[PlannedFault] | None = None) -> SeedResult:
    """Run one cluster from start to end."""
    return sweep.run_seed(seed, plan=plan, peers=PEERS, gossip=True)


def main(
    seeds: Seeds = 300,
    first: First = 0,
    processes: Processes = 2,
    show: Story = False,
    as_json: AsJson = False,
    mutant: Annotated[str, typer.Option(help=MUTANT_HELP)] = "",
) -> None:
    """Run simulated clusters; exit with 1 if a checker finds a violation.

    \b
    Examples:
      python -m sims.gossip_sweep --seeds 2000 --json
      python -m sims.gossip_sweep --first 4711 --seeds 1 --story
      python -m sims.gossip_sweep --seeds 100 --mutant my_bug.py
    """
    if mutant:
        plant(mutant)
    whole = range(first, first + seeds)
    running = in_turn(run_seed, whole, processes=min(processes, seeds))
    again = partial(again_with, "sims.gossip_sweep", mutant=mutant)
    report(running, seeds, again, show=show, as_json=as_json)


if __name__ == "__main__":
    run(main)
