"""Faults as data: what happens to whom and when, drawn from a seed or written by hand."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from protocols import events as v
from sims.checkers import PRIME
from sims.nodes import Node
from sims.world import World

FaultKind = Literal[
    "kill",  # A peer's processes end at once.
    "restart",  # And start again, with the same name and an empty memory.
    "join",
    "leave",  # A person asks it to.
    "cut",  # A connection ends.
    "stall",  # A connection hangs, then goes on.
    "slow",  # Bulk takes seconds longer on a line.
    "pause",  # A peer's processes are stopped, then go on.
    "trainers",  # Its ranks crash.
    "corrupt",  # A bit of its outer state flips.
    "lie",  # During a transfer: the donor sends another state than it reported.
    "break",  # During a transfer: the connection ends.
    "joiner",  # During a transfer: who receives it dies.
    "donor",  # During a transfer: who sends it dies.
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
TRAPS: tuple[FaultKind, ...] = ("lie", "break", "joiner", "donor")
FAULTS_PER_S = 3.0
PEERS_MAX = 9
LEADER_STILL_MAX_S = 2.0
"""Longer silence of the only sequencer ends the run, as it should."""


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
    while (at_s := at_s + source.expovariate(FAULTS_PER_S)) < until_s:
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
    world.spring = lambda kind, joiner, donor: _spring(world, kind, joiner, donor)
    for fault in plan:
        world.at(fault.at_s, lambda fault=fault: _happen(world, fault))


def _happen(world: World, fault: Fault) -> None:
    """Once it is certain that something happens, it is counted."""
    live = world.live
    if fault.kind in TRAPS:
        world.traps[fault.kind] = world.traps.get(fault.kind, 0) + 1
    elif fault.kind == "join":
        if world.leader.running and len(live) < PEERS_MAX:
            world.happened["join"] += 1
            world.add_peer()
    elif live:
        anybody = live[fault.peer % len(live)]
        followers = [node for node in live if not node.core.leads]
        victim = followers[fault.peer % len(followers)] if followers else None
        if fault.kind in ANYBODY:
            world.happened[fault.kind] += 1
            ANYBODY[fault.kind](world, fault, anybody)
        elif victim is not None:
            world.happened[fault.kind] += 1
            FOLLOWER[fault.kind](world, fault, victim)


def _still_s(fault: Fault, *nodes: Node) -> float:
    """How long nothing may come from these."""
    led = any(node.core.leads for node in nodes)
    return min(fault.duration_s, LEADER_STILL_MAX_S) if led else fault.duration_s


def _other(world: World, fault: Fault, victim: Node) -> Node:
    others = [node for node in world.live if node is not victim]
    return others[fault.other % len(others)] if others else victim


def _leave(world: World, _: Fault, victim: Node) -> None:
    world.tell(f"{victim.peer} is asked to leave")
    victim.asked_to_leave = True
    victim.give(v.LeaveRequested("a person asked"))


def _cut(world: World, fault: Fault, victim: Node) -> None:
    world.cut(victim, _other(world, fault, victim))


def _stall(world: World, fault: Fault, victim: Node) -> None:
    other = _other(world, fault, victim)
    line = world.network.line(victim.peer, other.peer)
    line.stalled_until = world.now + _still_s(fault, victim, other)


def _slow(world: World, fault: Fault, victim: Node) -> None:
    line = world.network.line(victim.peer, _other(world, fault, victim).peer)
    line.slow_until, line.slow_s = world.now + fault.duration_s, fault.duration_s / 2


def _pause(world: World, fault: Fault, victim: Node) -> None:
    world.pause(victim, _still_s(fault, victim))


def _trainers(world: World, fault: Fault, victim: Node) -> None:
    world.tell(f"trainers of {victim.peer} crash")
    victim.after(0.0, lambda: victim.lose_trainers(fault.duration_s))


def _corrupt(world: World, fault: Fault, victim: Node) -> None:
    world.tell(f"the state of {victim.peer} is corrupted")
    victim.outer = (victim.outer + 1 + fault.other) % PRIME
    victim.corrupt = world.checkers.corrupted = True


Action = Callable[[World, Fault, Node], None]
ANYBODY: Mapping[FaultKind, Action] = {
    "pause": _pause,
    "trainers": _trainers,
    "slow": _slow,
    "stall": _stall,
}
FOLLOWER: Mapping[FaultKind, Action] = {
    "kill": lambda world, _, victim: world.kill(victim),
    "restart": lambda world, _, victim: world.restart(victim),
    "leave": _leave,
    "cut": _cut,
    "corrupt": _corrupt,
}
assert {*ANYBODY, *FOLLOWER, *TRAPS, "join"} == set(KINDS)


def _spring(world: World, kind: str, joiner: Node, donor: Node) -> None:
    """A trap goes off during a transfer."""
    if not donor.running:
        return
    world.tell(f"trap during a transfer from {donor.peer} to {joiner.peer}: {kind}")
    if kind == "lie":
        donor.lies = True
    elif kind == "joiner":
        world.happened[kind] += 1
        world.kill(joiner)
    elif kind == "donor" and not donor.core.leads:
        world.happened[kind] += 1
        world.kill(donor)
    else:
        world.happened["break"] += 1
        world.cut(joiner, donor)
