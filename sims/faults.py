"""Faults as data: what happens to whom and when, drawn from a seed or written by hand."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sims.world import World

FaultKind = Literal["kill", "join", "cut", "pause", "trainers"]
KINDS: tuple[FaultKind, ...] = ("kill", "join", "cut", "pause", "trainers")


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at_s` (virtual), something happens to the peer with this number (modulo the live)."""

    at_s: float
    kind: FaultKind
    peer: int
    other: int
    duration_s: float


def draw_plan(seed: int, *, until_s: float) -> list[Fault]:
    """Each seed draws its own rates too (swarm testing): some kinds never, some often."""
    source = random.Random(seed ^ 0x5EED)  # noqa: S311 (a simulation, no secrets)
    rates = {kind: source.choice([0.0, 0.1, 0.5]) for kind in KINDS}
    faults: list[Fault] = []
    at_s = 0.0
    while (at_s := at_s + source.expovariate(1.0)) < until_s:
        kind = source.choice(KINDS)
        if source.random() < rates[kind]:
            faults.append(
                Fault(
                    at_s=at_s,
                    kind=kind,
                    peer=source.randrange(1 << 16),
                    other=source.randrange(1 << 16),
                    duration_s=source.choice([0.1, 1.0, 4.0, 9.0]),
                )
            )
    return faults


def inject(world: World, plan: Sequence[Fault]) -> None:
    """Schedule a plan. The sequencer is spared: this version has only one."""
    for fault in plan:
        world.at(fault.at_s, lambda fault=fault: _happen(world, fault))


def _happen(world: World, fault: Fault) -> None:
    live = [p for p, node in world.nodes.items() if node.alive and not node.outcome]
    followers = live[1:]
    if fault.kind == "join":
        if len(live) < 9:
            world.add_peer()
    elif followers:
        victim = followers[fault.peer % len(followers)]
        if fault.kind == "kill":
            world.kill(victim)
        elif fault.kind == "cut":
            world.cut(victim, live[fault.other % len(live)])
        elif fault.kind == "pause":
            world.pause(victim, fault.duration_s)
        else:
            world.lose_trainers(victim)
