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
    "leader",  # The leader's do.
    "restart",  # They end and start again, with what is on the disk.
    "crowd",  # Several are killed at once, and come back one by one.
    "join",
    "leave",  # A person asks it to.
    "cut",  # A connection ends.
    "stall",  # A connection hangs, then goes on.
    "one_way",  # It hangs in one direction only.
    "partition",  # The peers fall into two groups that do not hear each other.
    "lonely",  # One peer hears nobody, or nobody hears it.
    "disk",  # A disk is full for a while.
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
    """Schedule a plan."""
    world.spring = lambda kind, joiner, donor: _spring(world, kind, joiner, donor)
    for fault in plan:
        world.at(fault.at_s, lambda fault=fault: _happen(world, fault))


def _happen(world: World, fault: Fault) -> None:
    """Once it is certain that something happens, it is counted."""
    live = world.live
    if fault.kind in TRAPS:
        world.traps[fault.kind] = world.traps.get(fault.kind, 0) + 1
    elif fault.kind == "join":
        if live and len(live) < PEERS_MAX:
            world.happened["join"] += 1
            world.add_peer()
    elif fault.kind == "leader":
        for leader in world.leaders[:1]:
            world.happened["leader"] += 1
            ACTIONS["restart" if fault.other % 2 else "kill"](world, fault, leader)
    elif live:
        world.happened[fault.kind] += 1
        ACTIONS[fault.kind](world, fault, live[fault.peer % len(live)])


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
    other, until = _other(world, fault, victim), world.now + fault.duration_s
    world.network.stall(victim.peer, other.peer, until)
    world.network.stall(other.peer, victim.peer, until)


def _one_way(world: World, fault: Fault, victim: Node) -> None:
    other = _other(world, fault, victim)
    world.network.stall(victim.peer, other.peer, world.now + fault.duration_s)


def _partition(world: World, fault: Fault, victim: Node) -> None:
    """Who is on the victim's side is drawn from the bits of `other`."""
    group = [n for i, n in enumerate(world.live) if n is victim or fault.other >> i & 1]
    world.tell(f"partition for {fault.duration_s} s: {' '.join(n.peer for n in group)}")
    for node in group:
        for other in world.live:
            if other not in group:
                until = world.now + fault.duration_s
                world.network.stall(node.peer, other.peer, until)
                world.network.stall(other.peer, node.peer, until)


def _lonely(world: World, fault: Fault, victim: Node) -> None:
    deaf = bool(fault.other % 2)
    world.tell(f"{victim.peer} {'hears nobody' if deaf else 'is not heard'}")
    for other in world.live:
        if other is not victim:
            sender, to = (other, victim) if deaf else (victim, other)
            world.network.stall(sender.peer, to.peer, world.now + fault.duration_s)


def _full_disk(world: World, fault: Fault, victim: Node) -> None:
    world.tell(f"the disk of {victim.peer} is full for {fault.duration_s} s")
    victim.disk.full_until = world.now + fault.duration_s


def _crowd(world: World, fault: Fault, victim: Node) -> None:
    for i, node in enumerate(world.live):
        if node is victim or fault.other >> i & 1:
            world.kill(node)
            world.revive(node, fault.duration_s * ((fault.other >> 4) % 7 + i) / 7)


def _slow(world: World, fault: Fault, victim: Node) -> None:
    line = world.network.line(victim.peer, _other(world, fault, victim).peer)
    line.slow_until, line.slow_s = world.now + fault.duration_s, fault.duration_s / 2


def _pause(world: World, fault: Fault, victim: Node) -> None:
    world.pause(victim, fault.duration_s)


def _trainers(world: World, fault: Fault, victim: Node) -> None:
    world.tell(f"trainers of {victim.peer} crash")
    victim.after(0.0, lambda: victim.lose_trainers(fault.duration_s))


def _corrupt(world: World, fault: Fault, victim: Node) -> None:
    """Of a minority: nobody could tell who is right otherwise."""
    holders = [node for node in world.live if node.core.standing.is_member]
    corrupt = sum(node.corrupt for node in holders)
    if victim.corrupt or victim not in holders or 2 * (corrupt + 1) >= len(holders):
        return
    world.tell(f"the state of {victim.peer} is corrupted")
    victim.outer = (victim.outer + 1 + fault.other) % PRIME
    victim.corrupt = world.checkers.corrupted = True


Action = Callable[[World, Fault, Node], None]
ACTIONS: Mapping[FaultKind, Action] = {
    "kill": lambda world, _, victim: world.kill(victim),
    "restart": lambda world, _, victim: world.restart(victim),
    "crowd": _crowd,
    "leave": _leave,
    "cut": _cut,
    "stall": _stall,
    "one_way": _one_way,
    "partition": _partition,
    "lonely": _lonely,
    "slow": _slow,
    "pause": _pause,
    "disk": _full_disk,
    "trainers": _trainers,
    "corrupt": _corrupt,
}
assert {*ACTIONS, *TRAPS, "join", "leader"} == set(KINDS)


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
    elif kind == "donor":
        world.happened[kind] += 1
        world.kill(donor)
    else:
        world.happened["break"] += 1
        world.cut(joiner, donor)
