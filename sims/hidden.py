"""Runs clusters in which half of the peers cannot be dialled: `python -m sims.hidden --seeds 300`.

These peers do not listen, and reach each other through the others. Phases, faults and checkers are
those of sims.sweep, or with `--stepwise` those of sims.step_sweep.
"""

import random
from collections.abc import Set
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from protocols.links import Identity
from protocols.types import PeerId
from sims.checkers import StepWorld, World
from sims.node.node import Node
from sims.scenarios.fault_plan import PlannedFault, draw_plan
from sims.step_sweep import STEPS, has_witness, is_guarded
from sims.sweep import (
    SAFETY_S,
    AsJson,
    First,
    Processes,
    SeedResult,
    Seeds,
    Story,
    draw_training,
    in_turn,
    play,
    report,
)
from sims.terminal import run

PEERS, STEP_PEERS = (3, 8), (3, 6)
"""The least and the most peers at the start of a seed."""
ROUNDS = (16, 24)
"""Rounds of all fragments together."""
LEAVING = ("leave", "sole")


class HiddenWorld(World):
    """A world in which every other peer, from the second one on, has no address."""

    def start_node(self, me: Identity) -> Node:
        hidden = int(me.name.removeprefix("p")) % 2 == 1
        return super().start_node(replace(me, address="") if hidden else me)

    def is_elsewhere(self, node: Node, peer: PeerId) -> bool:
        return bool(node.me.address) and super().is_elsewhere(node, peer)

    def is_needed(self, node: Node, coming_back: Set[PeerId]) -> bool:
        """A peer with an address is also needed if fewer than two live ones have one: without any,
        the others cannot reach each other."""
        listening = [one for one in self.live if one.me.address]
        return super().is_needed(node, coming_back) or bool(node.me.address and len(listening) < 2)


class HiddenStepWorld(HiddenWorld, StepWorld):
    """The same world for a stepwise run."""


def run_seed(
    seed: int, *, plan: list[PlannedFault] | None = None, stepwise: bool = False
) -> SeedResult:
    """Run one cluster from start to end."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    world = _step_world(seed, source) if stepwise else _world(seed, source)
    # No peer is asked to leave: without the last listening one, no peer finds the others again.
    drawn = [x for x in draw_plan(seed, until_s=SAFETY_S) if x.kind not in LEAVING]
    return play(seed, world, drawn if plan is None else plan)


def _world(seed: int, source: random.Random) -> World:
    training = replace(draw_training(seed), certified=True)
    return HiddenWorld(
        seed,
        peers=source.randint(*PEERS),
        outer_steps=-(-source.choice(ROUNDS) // training.fragments),
        training=training,
    )


def _step_world(seed: int, source: random.Random) -> World:
    peers, steps = source.randint(*STEP_PEERS), source.choice(STEPS)
    return HiddenStepWorld(
        seed,
        peers=peers,
        outer_steps=steps,
        witness=has_witness(seed),
        certified=is_guarded(seed),
    )


def main(
    seeds: Seeds = 300,
    first: First = 0,
    stepwise: Annotated[
        bool, typer.Option("--stepwise", help="Stepwise runs: peers agree on every step.")
    ] = False,
    processes: Processes = 2,
    show: Story = False,
    as_json: AsJson = False,
) -> None:
    """Run simulated clusters in which half of the peers cannot be dialled; exit with 1 if a checker
    finds a violation.

    \b
    Examples:
      python -m sims.hidden --seeds 300 --json
      python -m sims.hidden --stepwise --first 4711 --seeds 1 --story
    """
    whole, play_one = range(first, first + seeds), partial(run_seed, stepwise=stepwise)
    running = in_turn(play_one, whole, processes=min(processes, seeds))

    def again(result: SeedResult) -> tuple[str]:
        kind = " --stepwise" if stepwise else ""
        return (f"replay: python -m sims.hidden{kind} --first {result.seed} --seeds 1 --story",)

    report(running, seeds, again, show=show, as_json=as_json)


if __name__ == "__main__":
    run(main)
