"""Clusters in which half of the peers listen nowhere, and speak with each other through the others:
`python -m sims.hidden --seeds 300`.

As sims.sweep does for peers that all listen, with the same phases, faults and checkers.
"""

import random
from dataclasses import replace
from typing import Annotated

import typer

from protocols.hellos import Identity
from protocols.ids import PeerId
from sims.faults import Fault, draw_plan
from sims.nodes import Node
from sims.sweep import SAFETY_S, SeedResult, draw_training, in_turn, play, report
from sims.terminal import run
from sims.world import World

PEERS = (3, 8)
"""At the start of a seed, at least and at most."""
ROUNDS = (16, 24)
"""Of all fragments together."""
LEAVING = ("leave", "sole")


class HiddenWorld(World):
    """Every other peer, from the second one on, has no address."""

    def start(self, me: Identity) -> Node:
        hidden = int(me.name.removeprefix("p")) % 2 == 1
        return super().start(replace(me, address="") if hidden else me)

    def is_elsewhere(self, node: Node, peer: PeerId) -> bool:
        return bool(node.core.me.address) and super().is_elsewhere(node, peer)

    def _is_needed(self, node: Node) -> bool:
        """Without anybody who listens the others do not hear each other."""
        listening = [one for one in self.live if one.core.me.address]
        return super()._is_needed(node) or bool(node.core.me.address and len(listening) < 2)


def run_seed(seed: int, *, plan: list[Fault] | None = None) -> SeedResult:
    """One cluster, from start to end."""
    source, training = random.Random(seed), draw_training(seed)  # noqa: S311 (no secrets)
    world = HiddenWorld(
        seed,
        peers=source.randint(*PEERS),
        outer_steps=-(-source.choice(ROUNDS) // training.fragments),
        training=training,
    )
    world.dialling.gates.close()
    # When the last one that listens has left, as a person wanted, nobody finds the others again.
    drawn = [x for x in draw_plan(seed, until_s=SAFETY_S) if x.kind not in LEAVING]
    return play(seed, world, drawn if plan is None else plan)


def main(
    seeds: Annotated[int, typer.Option(help="How many seeds to run.", min=1)] = 300,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    processes: Annotated[int, typer.Option(help="How many at a time.", min=1)] = 2,
    show: Annotated[bool, typer.Option("--story", help="Print each seed's story.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run simulated clusters in which half of the peers cannot be dialled; exit with 1 if anything
    that must hold did not.

    \b
    Examples:
      python -m sims.hidden --seeds 300 --json
      python -m sims.hidden --first 4711 --seeds 1 --story
    """
    whole = range(first, first + seeds)
    running = in_turn(run_seed, whole, processes=min(processes, seeds))
    report(running, seeds, _again, show=show, as_json=as_json)


def _again(result: SeedResult) -> tuple[str]:
    return (f"replay: python -m sims.hidden --first {result.seed} --seeds 1 --story",)


if __name__ == "__main__":
    run(main)
