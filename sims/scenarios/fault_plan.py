"""Faults as data: kind, time and peer of each fault, drawn from a seed or written by hand."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from protocols.messages import Append, Appended, ContributionOffered, Control, Hold, Restore
from sims.checkers import World
from sims.node.node import Node
from sims.scenarios import multi_step_faults, revocations, steered_worlds
from sims.scenarios.false_claims import CLAIMS, claim

FaultKind = Literal[
    "kill",  # A peer's processes end at once.
    "leader",  # The leader is killed, or restarted.
    "restart",  # A peer's processes end and start again, with the content of its disk.
    "crowd",  # Several peers are killed at once, and come back one by one.
    "join",
    "leave",  # A user asks a peer to leave.
    "cut",  # A connection ends.
    "stall",  # A connection hangs, then goes on.
    "one_way",  # A connection hangs in one direction only.
    "partition",  # The peers fall into two groups that do not hear each other.
    "lonely",  # One peer hears no peer, or no peer hears it.
    "disk",  # A disk is full for a while.
    "slow_disk",  # Each write to a disk takes longer than an election, for a while.
    "hung_disk",  # No write to a disk returns for a while.
    "slow",  # Bulk payloads take seconds longer on a line.
    "pause",  # A peer's processes are stopped, then go on.
    "trainers",  # A peer's ranks crash.
    "corrupt",  # A peer's outer state changes without its knowledge.
    "half",  # So many peers get wrong states that the true one has no majority.
    "lie",  # During a transfer: a donor sends a wrong cell, or roots of another state.
    "break",  # During a transfer: the connection ends.
    "joiner",  # During a transfer: the joiner dies.
    "donor",  # During a transfer: a donor dies, or hangs.
    "relapse",  # All peers die, and again after a Restore, which one of them misses.
    "sole",  # All peers but the leader restart, and the leader is asked to leave.
    "vanish",  # A round is committed, and all peers with its result die.
    "unread",  # The log goes back to a checkpoint, and one peer reads that late.
    "holder",  # A peer reports that it holds a round's result, and dies.
    "owner",  # A peer dies while slices are on their way to it.
    "ranks",  # A peer contributes, and its ranks crash.
    "deaf",  # A peer contributes, hears no peer, and is cut off for a while.
    "ack",  # A follower acknowledges entries, and its connection with the leader ends.
    "ranks_stall",  # A peer's ranks make no step for a while.
    "liar",  # A peer falsifies results as their owner, or its contribution for peers that check it.
    "claim",  # A peer claims to lead, or newer terms: see false_claims.py.
    "revoke",  # A user revokes certificates: see revocations.py.
    "steer",  # A user pauses the run, removes a peer, or changes a key: see steered_worlds.py.
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
RARE = ("slow_disk", "hung_disk", "ranks_stall", "liar", "claim", "revoke", "steer")
ANY: tuple[FaultKind, ...] = tuple(kind for kind in KINDS if kind not in RARE)
"""Kinds that any seed may draw. Some seeds have rare ones in addition."""
SLOW_DISKS_EVERY = 160
SLOW_DISKS_IN = (29, 38, 47, 52, 67, 76, 86, 93, 104, 110, 123, 131, 138, 151)
"""Seeds, modulo SLOW_DISKS_EVERY, with slow disks in addition to other faults. Seeds that failed
earlier are not among them, so that these replay unchanged."""
SLOW_DISK_S = (5.0, 9.0, 14.0)
SLOW_DISKS_MAX = 4
HUNG_EVERY, HUNG_IN = (
    192,
    (47, 56, 58, 69, 77, 84, 93, 110, 122, 127, 137, 144, 151, 160, 169, 178),
)
"""The same for disks that hang, in seeds with two peers too."""
HUNG_S = (0.5, 1.5, 4.0, 9.0, 14.0)
HUNG_MAX = 5
STALLS_EVERY = 120
STALLS_IN = (23, 38, 45, 53, 62, 69, 71, 73, 75, 78, 95, 106, 114)
"""The same for ranks that stall."""
STALL_S = (0.5, 3.0, 8.0, 20.0)
STALLS_MAX = 6
CLAIMS_EVERY = 170
CLAIMS_IN = (25, 27, 40, 53, 57, 64, 72, 80, 93, 109, 116, 137, 149, 157, 166)
"""The same for peers that make false claims about terms and leaders."""
CLAIM_S = (2.0, 8.0, 20.0)
CLAIMS_MAX = 5
LIARS_EVERY = 150
LIARS_IN = (20, 27, 43, 51, 53, 55, 59, 69, 71, 74, 79, 81, 83, 84, 101, 103, 105, 137)
"""The same for peers that lie. Peers check the owners of parts in these seeds only."""
LIE_S = (8.0, 30.0, 60.0)
LIAR_MIX: tuple[FaultKind, ...] = ("liar", "join", "restart", "cut", "trainers")
"""Kinds of these seeds; more losses would leave too few peers to check anything."""
LIES = ("whole", "blocks", "contribution", "whole")
TRAPS: tuple[FaultKind, ...] = ("lie", "break", "joiner", "donor")
ELECTIONS: tuple[FaultKind, ...] = (
    *("leader", "restart", "crowd", "disk", "pause", "partition", "lonely", "one_way"),
    *("cut", "ack"),
)
"""Kinds that end the reigns of leaders; a seed of the mix "elections" draws only these."""
ROUNDS: tuple[tuple[FaultKind, ...], ...] = (
    *(("holder", "owner", "join"), ("ranks", "owner", "join"), ("corrupt", "lie", "donor", "join")),
    *(("half", "unread", "trainers"), ("deaf", "join"), ("relapse", "join"), ("sole", "join")),
    *(("vanish", "join"),),
)
"""Kinds in the middle of a round or a transfer, or after a Restore. A seed of the mix "rounds"
draws only one of these groups, so that the situation that a fault begins comes to its end."""
FAULTS_PER_S = 0.65
ROUND_FAULTS_PER_S = 0.3
PEERS_MAX = 9
HANGS = 1 / 3
"""Share of the "donor" faults in which the donor hangs instead of dying."""
DURATIONS_S = (0.1, 1.0, 4.0, 9.0)
LONG_S = (1.0, 4.0, 5.5, 9.0, 14.0)
"""Durations of faults of the mix "elections". 5.5: long enough for an election, and too short for
the connections to end."""
REVOKE_EVERY, REVOKE_IN = 88, (31, 39, 59, 77, 82, 86)
"""Seeds, modulo REVOKE_EVERY, in which peers are revoked. Seeds that failed earlier are not among
them, so that these replay unchanged."""
REVOKE_PAIRS_EVERY, REVOKE_PAIRS_IN = 144, (64, 96, 128)
"""The same for seeds with two peers."""
REVOKE_FROM_S = 6.0
STEER_EVERY, STEER_IN = 104, (21, 33, 37, 50, 61, 68, 73, 85, 99)
"""The same for seeds in which the run is steered."""
MIXES = ("any", "any", "rounds", "rounds", "rounds", "elections", "elections")
"""Each seed draws one mix, and then the rate of each kind."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault. At `at_s` (virtual seconds) it hits the peer of this number, modulo the number of
    live peers; `other` and `duration_s` (seconds) are used as the kind needs."""

    at_s: float
    kind: FaultKind
    peer: int
    other: int
    duration_s: float


def draw_plan(seed: int, *, until_s: float) -> list[PlannedFault]:
    """Draw the faults of a seed. Each seed draws its own rates too (swarm testing): some kinds
    never happen, some often."""
    source = random.Random(seed ^ 0x5EED)  # noqa: S311 (a simulation, no secrets)
    mix, per_s = source.choice(MIXES), FAULTS_PER_S
    kinds = ANY
    durations_s = DURATIONS_S
    if mix == "elections":
        kinds, durations_s = ELECTIONS, LONG_S
    rates = [source.choice([0.0, 0.0, 0.1, 0.5]) for _ in kinds]
    if mix == "rounds":
        kinds, per_s = source.choice(ROUNDS), ROUND_FAULTS_PER_S
        rates = [*(0.5 for _ in kinds[1:]), source.choice([0.0, 0.1, 0.5])]
    if seed % LIARS_EVERY in LIARS_IN:
        kinds, rates, durations_s = LIAR_MIX, [0.6, 0.1, 0.1, 0.1, 0.1], LIE_S
    faults: list[PlannedFault] = []
    if seed % SLOW_DISKS_EVERY in SLOW_DISKS_IN:
        own = random.Random(seed ^ 0xD15C)  # noqa: S311 (a simulation, no secrets)
        faults += _draw_rare(own, "slow_disk", SLOW_DISK_S, most=SLOW_DISKS_MAX, until_s=until_s)
    if seed % STALLS_EVERY in STALLS_IN:
        own = random.Random(seed ^ 0x57A11)  # noqa: S311 (a simulation, no secrets)
        faults += _draw_rare(own, "ranks_stall", STALL_S, most=STALLS_MAX, until_s=until_s)
    if seed % CLAIMS_EVERY in CLAIMS_IN:
        own = random.Random(seed ^ 0xC1A1)  # noqa: S311 (a simulation, no secrets)
        faults += _draw_rare(own, "claim", CLAIM_S, most=CLAIMS_MAX, until_s=until_s)
    at_s = 0.0
    while any(rates) and (at_s := at_s + source.expovariate(per_s)) < until_s:
        (kind,) = source.choices(kinds, rates)
        faults.append(
            PlannedFault(
                at_s=at_s,
                kind=kind,
                peer=source.randrange(1 << 16),
                other=source.randrange(1 << 16),
                duration_s=source.choice(durations_s),
            )
        )
    faults += [*draw_hangs(seed, until_s=until_s), *draw_revocations(seed, until_s=until_s)]
    faults += draw_steering(seed, until_s=until_s)
    return sorted(faults, key=lambda fault: fault.at_s)


def draw_hangs(seed: int, *, until_s: float) -> list[PlannedFault]:
    """Draw disks that hang, in some seeds only."""
    if seed % HUNG_EVERY not in HUNG_IN:
        return []
    source = random.Random(seed ^ 0x4A96)  # noqa: S311 (a simulation, no secrets)
    return _draw_rare(source, "hung_disk", HUNG_S, most=HUNG_MAX, until_s=until_s)


def draw_revocations(seed: int, *, until_s: float) -> list[PlannedFault]:
    """Draw revocations, in some seeds only and from a random source of their own, so that all other
    seeds replay unchanged."""
    alone, pairs = seed % REVOKE_EVERY in REVOKE_IN, seed % REVOKE_PAIRS_EVERY in REVOKE_PAIRS_IN
    source = random.Random(seed ^ 0x4E7C)  # noqa: S311 (a simulation, no secrets)
    number = source.choice((1, 1, 2, 3)) if alone or pairs else 0
    times = sorted(source.uniform(REVOKE_FROM_S, until_s) for _ in range(number))
    return [
        PlannedFault(at_s, "revoke", source.randrange(1 << 16), source.randrange(1 << 16), 0.0)
        for at_s in times
    ]


def draw_steering(seed: int, *, until_s: float) -> list[PlannedFault]:
    """Draw acts that steer the run, in some seeds only and from a source of their own."""
    source = random.Random(seed ^ 0x57EE)  # noqa: S311 (a simulation, no secrets)
    number = source.choice((2, 3, 5, 8)) if seed % STEER_EVERY in STEER_IN else 0
    times = sorted(source.uniform(REVOKE_FROM_S / 2, until_s) for _ in range(number))
    return [
        PlannedFault(at_s, "steer", source.randrange(1 << 16), source.randrange(1 << 16), 0.0)
        for at_s in times
    ]


def _draw_rare(
    source: random.Random,
    kind: FaultKind,
    durations_s: Sequence[float],
    *,
    most: int,
    until_s: float,
) -> list[PlannedFault]:
    """Draw 1 to `most` faults of a rare kind, from a random source of their own, so that seeds
    without them replay unchanged."""
    return [
        PlannedFault(
            at_s=source.uniform(2.0, until_s),
            kind=kind,
            peer=source.randrange(1 << 16),
            other=source.randrange(1 << 16),
            duration_s=source.choice(durations_s),
        )
        for _ in range(source.randint(1, most))
    ]


def inject(world: World, plan: Sequence[PlannedFault]) -> None:
    """Schedule the faults of a plan in a world."""
    world.faults.spring = lambda kind, joiner, donor: _spring(world, kind, joiner, donor)
    waiting = Counter[FaultKind]()
    world.faults.ambush = lambda sender, message: _ambush(world, waiting, sender, message)
    for fault in plan:
        world.clock.at(fault.at_s, lambda fault=fault: _happen(world, fault, waiting))


def _happen(world: World, fault: PlannedFault, waiting: Counter[FaultKind]) -> None:
    """Carry a fault out, and count it once it is certain to happen."""
    live = world.live
    if fault.kind in AMBUSHES or fault.kind == "unread":
        waiting[fault.kind] += 1
    elif fault.kind in TRAPS:
        world.faults.traps[fault.kind] = world.faults.traps.get(fault.kind, 0) + 1
    elif fault.kind == "join":
        if live and len(live) < PEERS_MAX:
            world.happened["join"] += 1
            world.add_peer()
    elif fault.kind == "leader":
        for leader in world.leaders[:1]:
            world.happened["leader"] += 1
            ACTIONS["restart" if fault.other % 2 else "kill"](world, fault, leader)
    elif fault.kind == "half":
        world.happened["half"] += multi_step_faults.corrupt_half(world, 1 + fault.other)
    elif fault.kind == "vanish":
        world.happened["vanish"] += multi_step_faults.vanish(world)
    elif fault.kind == "sole":
        world.happened["sole"] += multi_step_faults.leave_as_the_only_holder(world)
    elif fault.kind == "revoke":  # The action counts the revoked peers.
        if live:
            ACTIONS["revoke"](world, fault, live[fault.peer % len(live)])
    elif live:
        world.happened[fault.kind] += 1
        ACTIONS[fault.kind](world, fault, live[fault.peer % len(live)])


def _other(world: World, fault: PlannedFault, victim: Node) -> Node:
    others = [node for node in world.live if node is not victim]
    return others[fault.other % len(others)] if others else victim


def _cut(world: World, fault: PlannedFault, victim: Node) -> None:
    world.dialer.cut_connection(victim, _other(world, fault, victim))


def _stall(world: World, fault: PlannedFault, victim: Node) -> None:
    other, until = _other(world, fault, victim), world.clock.now + fault.duration_s
    world.network.stall(victim.peer, other.peer, until)
    world.network.stall(other.peer, victim.peer, until)


def _one_way(world: World, fault: PlannedFault, victim: Node) -> None:
    other = _other(world, fault, victim)
    world.network.stall(victim.peer, other.peer, world.clock.now + fault.duration_s)


def _partition(world: World, fault: PlannedFault, victim: Node) -> None:
    """Split the peers; the bits of `other` choose the peers on the victim's side."""
    group = [n for i, n in enumerate(world.live) if n is victim or fault.other >> i & 1]
    world.story.tell(f"partition for {fault.duration_s} s: {' '.join(n.peer for n in group)}")
    for node in group:
        for other in world.live:
            if other not in group:
                until = world.clock.now + fault.duration_s
                world.network.stall(node.peer, other.peer, until)
                world.network.stall(other.peer, node.peer, until)


def _lonely(world: World, fault: PlannedFault, victim: Node) -> None:
    if fault.other % 2:
        multi_step_faults.hears_nobody(world, victim, fault.duration_s)
        return
    world.story.tell(f"{victim.peer} is not heard")
    for other in world.live:
        if other is not victim:
            world.network.stall(victim.peer, other.peer, world.clock.now + fault.duration_s)


def _full_disk(world: World, fault: PlannedFault, victim: Node) -> None:
    world.story.tell(f"the disk of {victim.peer} is full for {fault.duration_s} s")
    victim.disk.full_until = world.clock.now + fault.duration_s


def _leader_or(world: World, fault: PlannedFault, victim: Node) -> Node:
    """In half of the cases a leader: a leader counts its own copy of an entry."""
    return world.leaders[0] if world.leaders and fault.other % 2 else victim


def _hung_disk(world: World, fault: PlannedFault, victim: Node) -> None:
    node = _leader_or(world, fault, victim)
    world.story.tell(f"the disk of {node.peer} hangs for {fault.duration_s} s")
    node.disk.hung_until = max(node.disk.hung_until, world.clock.now + fault.duration_s)


def _slow_disk(world: World, fault: PlannedFault, victim: Node) -> None:
    node = _leader_or(world, fault, victim)
    world.story.tell(f"the disk of {node.peer} is slow for {fault.duration_s} s")
    node.disk.slow_until = world.clock.now + fault.duration_s


def _crowd(world: World, fault: PlannedFault, victim: Node) -> None:
    for i, node in enumerate(world.live):
        if node is victim or fault.other >> i & 1:
            world.kill(node)
            world.revive(node, fault.duration_s * ((fault.other >> 4) % 7 + i) / 7)


def _slow(world: World, fault: PlannedFault, victim: Node) -> None:
    line = world.network.line(victim.peer, _other(world, fault, victim).peer)
    line.slow_until, line.slow_s = world.clock.now + fault.duration_s, fault.duration_s / 2


def _pause(world: World, fault: PlannedFault, victim: Node) -> None:
    world.pause(victim, fault.duration_s)


def _trainers(world: World, fault: PlannedFault, victim: Node) -> None:
    world.story.tell(f"the ranks of {victim.peer} crash")
    victim.after(0.0, lambda: victim.lose_trainers(fault.duration_s))


def _ranks_stall(world: World, fault: PlannedFault, victim: Node) -> None:
    world.story.tell(f"the ranks of {victim.peer} make no step for {fault.duration_s} s")
    victim.after(0.0, lambda: victim.ranks.stall(fault.duration_s))


def _liar(world: World, fault: PlannedFault, victim: Node) -> None:
    """Let a peer lie, unless another one does: two liars may blame an honest peer together."""
    if any(
        node.data_plane.owner_checks.lies_until > world.clock.now for node in world.nodes.values()
    ):
        return
    how = LIES[fault.other % len(LIES)]
    world.story.tell(f"{victim.peer} lies for {fault.duration_s} s: {how}")
    victim.data_plane.owner_checks.lie(how, fault.duration_s)


def _claim(world: World, fault: PlannedFault, victim: Node) -> None:
    if not world.dialer.certification.closed:
        return  # Without keys nothing is proved, and any claim counts.
    how = CLAIMS[fault.other % len(CLAIMS)]
    world.story.tell(f"{victim.peer} makes false claims for {fault.duration_s} s: {how}")
    world.checkers.containment.claimants.add(victim.peer)
    claim(world, victim, how, fault.duration_s)


def _corrupt(world: World, fault: PlannedFault, victim: Node) -> None:
    """Corrupt the victim's state, but not the states of most holders (if half of them differ, the
    run goes back to an agreed state), nor a state after a fragment's last round, which no later
    round could reveal."""
    fragment = fault.other % len(victim.states.outers)
    if multi_step_faults.is_done(victim, fragment) or world.settings.training.gossip:
        return  # In a gossip run all states differ, so none can be found wrong.
    holders = multi_step_faults.holders(world)
    corrupt = sum(bool(node.states.corrupt) for node in holders)
    if victim.states.corrupt or victim not in holders or 2 * (corrupt + 1) > len(holders):
        return
    multi_step_faults.corrupt(world, victim, 1 + fault.other, fragment=fragment)


Action = Callable[[World, PlannedFault, Node], None]
ACTIONS: Mapping[FaultKind, Action] = {
    "kill": lambda world, _, victim: world.kill(victim),
    "restart": lambda world, _, victim: world.operator.restart(victim),
    "crowd": _crowd,
    "relapse": lambda world, fault, node: multi_step_faults.relapse(
        world, node, torn=fault.other % 2 > 0
    ),
    "leave": lambda world, _, victim: multi_step_faults.ask_to_leave(world, victim),
    "cut": _cut,
    "stall": _stall,
    "one_way": _one_way,
    "partition": _partition,
    "lonely": _lonely,
    "slow": _slow,
    "pause": _pause,
    "disk": _full_disk,
    "slow_disk": _slow_disk,
    "hung_disk": _hung_disk,
    "trainers": _trainers,
    "ranks_stall": _ranks_stall,
    "corrupt": _corrupt,
    "liar": _liar,
    "claim": _claim,
    "revoke": lambda world, fault, victim: revocations.revoke(world, victim, fault.other),
    "steer": lambda world, fault, victim: steered_worlds.steer(world, victim, fault.other),
}


def _spring(world: World, kind: str, joiner: Node, donor: Node) -> None:
    """Carry out a fault that waited for a transfer."""
    if not donor.running:
        return
    world.story.tell(f"trap during a transfer from {donor.peer} to {joiner.peer}: {kind}")
    if kind == "lie":
        donor.transfers.lie = world.random.choice(("cell", "tree"))
    elif kind == "joiner":
        world.happened[kind] += 1
        world.kill(joiner)
    elif kind == "donor":
        if world.random.random() < HANGS:
            world.happened["hang"] += 1
            world.pause(donor, world.random.choice(DURATIONS_S))
            return
        world.happened[kind] += 1
        world.kill(donor)
    else:
        world.happened["break"] += 1
        world.dialer.cut_connection(joiner, donor)


def _ambush(world: World, waiting: Counter[FaultKind], sender: Node, message: Control) -> None:
    """A peer sends a message: carry out a fault that waited for it. The message may still
    arrive."""
    if isinstance(message, Append):
        goes_back = any(isinstance(entry.body, Restore) for entry in message.entries)
        if goes_back and waiting["unread"] and multi_step_faults.read_late(world, sender):
            waiting["unread"] -= 1
            world.happened["unread"] += 1
        return
    for kind in AMBUSHES:
        fits = waiting[kind] and isinstance(message, AMBUSHES[kind][0])
        if fits and (kind != "deaf" or multi_step_faults.is_spare(world, sender)):
            waiting[kind] -= 1
            world.happened[kind] += 1
            after_s = world.random.uniform(0.0, 2 * world.network.slowest_s)
            sender.after(after_s, partial(_strike, world, sender, kind))
            return


def _strike(world: World, sender: Node, kind: FaultKind) -> None:
    if world.faults.ambush is not None:  # Otherwise the faults have ended meanwhile.
        AMBUSHES[kind][1](world, sender)


def _end(world: World, victim: Node) -> None:
    end = world.operator.restart if world.random.random() < 0.5 else world.kill
    end(victim)


def _owner(world: World, sender: Node) -> None:
    plan = sender.run_state.open_plan(0)
    owners = [world.nodes[peer] for peer in plan.summing] if plan is not None else []
    for owner in [node for node in owners if node.running][:1]:
        _end(world, owner)


def _crash(_: World, victim: Node) -> None:
    victim.lose_trainers(0.1)


def _unheard(world: World, sender: Node) -> None:
    leader = world.nodes.get(sender.raft.leader or sender.peer)
    if leader is not None:
        world.dialer.cut_connection(sender, leader)


Strike = Callable[[World, Node], None]
AMBUSHES: Mapping[FaultKind, tuple[type[Control], Strike]] = {
    "holder": (Hold, _end),
    "owner": (ContributionOffered, _owner),
    "ranks": (ContributionOffered, _crash),
    "deaf": (ContributionOffered, multi_step_faults.deafen),
    "ack": (Appended, _unheard),
}
"""By kind: the message that the fault waits for, and its action, called with the sender."""
PLOTS = ("half", "sole", "unread", "vanish")
assert {*ACTIONS, *TRAPS, *AMBUSHES, *PLOTS, "join", "leader"} == set(KINDS)
