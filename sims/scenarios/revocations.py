"""The fault `revoke`: a person takes certificates back, at any peer of the run.

Of one peer, of two within one round trip, of the leader, of a peer that joins or gives a state, of
one that is down; and of so many that no majority would remain, which must be refused. Must NOT draw
when (fault_plan.py), nor judge what comes of it: checkers/revocation.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from protocols.interface import events as v
from protocols.messages import log_entries as e

if TYPE_CHECKING:
    from sims.node.node import Node
    from sims.simulator.world import World

LOOK_S, LOOK_MAX_S = 0.05, 10.0
"""How often, and how long, to look for a peer that joins."""
HANG_S = 9.0
"""A voter hangs for so long, and is not counted as lost before the others are asked for."""
NOTICED_S = 3.2
"""By then the leader reckons with it no more."""
BACK_S = 3.0
ANSWERED_S = 12.0
"""By then a person has heard that it is refused."""
Plot = Callable[["World", "Node", int], None]


def revoke(world: World, victim: Node, how: int) -> None:
    """`how`: which of PLOTS, and at which peer it is asked for."""
    PLOTS[how % len(PLOTS)](world, victim, how // len(PLOTS))


def _ask(world: World, victims: Sequence[Node], at: int) -> None:
    """All at once, at one of the members; not if nobody would stay that has the run's state."""
    gates, news = world.dialling.gates, [node for node in victims if not _is_asked(world, node)]
    askers = [node for node in world.live if _has_state(node) and node.core.gate.secure]
    stay = [n for n in askers if n not in news and not (n.asked_to_leave or _is_asked(world, n))]
    if not news or not stay or world.finished:
        return
    asker = askers[at % len(askers)]
    world.happened["revoke"] += len(news)
    world.happened["revoked at once"] += len(news) > 1
    world.happened["leader revoked"] += any(node.core.leads for node in news)
    for node in news:
        world.tell(f"{node.peer} is to be revoked, as {asker.peer} was asked")
        gates.revoked_at[node.peer] = world.now
        asker.give(v.RevokeAsked(e.Revoked(node.peer, asker.peer, "stolen")))
    world.at(ANSWERED_S, lambda: _count_refusals(world, asker, news))


def _count_refusals(world: World, asker: Node, victims: Sequence[Node]) -> None:
    refused = asker.core.gate.refused
    for node in [node for node in victims if node.peer in refused]:
        world.happened["revocation refused"] += 1
        world.tell(f"{asker.peer} hears: {node.peer} is not revoked, {refused[node.peer]}")


def _has_state(node: Node) -> bool:
    standing = node.core.standing
    return standing.is_member and not standing.catchup.needed and not node.corrupt


def _is_asked(world: World, node: Node) -> bool:
    return node.peer in world.dialling.gates.revoked_at


def _others(world: World, victim: Node, at: int) -> list[Node]:
    """All the other ones, in an order that `at` gives."""
    others = [node for node in world.live if node is not victim]
    turn = at % len(others) if others else 0
    return others[turn:] + others[:turn]


def _one(world: World, victim: Node, at: int) -> None:
    _ask(world, [victim], at)


def _two(world: World, victim: Node, at: int) -> None:
    _ask(world, [victim, *_others(world, victim, at)[:1]], at)


def _leader(world: World, victim: Node, at: int) -> None:
    _ask(world, world.leaders[:1], at)


def _leader_and_another(world: World, victim: Node, at: int) -> None:
    leading = world.leaders[:1]
    others = [node for node in (victim, *_others(world, victim, at)) if node not in leading]
    _ask(world, [*leading, *others[:1]], at)


def _all_but_one(world: World, victim: Node, at: int) -> None:
    _ask(world, _others(world, victim, at), at)


def _joiner(world: World, victim: Node, at: int) -> None:
    _when_one_joins(world, lambda cut: [cut.info.peer], at)


def _donor(world: World, victim: Node, at: int) -> None:
    _when_one_joins(world, lambda cut: cut.donors[:1], at)


def _when_one_joins(world: World, choose: Callable[[e.Cut], Sequence[str]], at: int) -> None:
    """As soon as somebody is given a state."""
    until = world.now + LOOK_MAX_S

    def look() -> None:
        heads = [node.core.office.head for node in world.leaders if node.core.office is not None]
        cuts = [cut for head in heads for p, (_, cut) in head.cuts.items() if p in head.joiners]
        victims = [n for cut in cuts[:1] for n in world.live if n.peer in choose(cut)]
        if victims:
            _ask(world, victims, at)
        elif world.now < until and world.ambush is not None:
            world.at(LOOK_S, look)

    look()


def _down(world: World, victim: Node, at: int) -> None:
    """It is dead meanwhile, and comes back."""
    if not _others(world, victim, at):
        return
    world.kill(victim)
    world.revive(victim, BACK_S)
    world.at(1.0, lambda: _ask(world, [victim], at))


def _too_many(world: World, victim: Node, at: int) -> None:
    """Another voter hangs: of those that stay too few can be reached."""
    voters = [n for n in world.live if n.peer in n.core.raft.log.voters and not n.core.leads]
    if len(voters) < 2 or victim not in voters:
        return
    hangs = voters[voters.index(victim) - 1]
    world.pause(hangs, HANG_S)
    keep = 1 + at % 2
    rest = [node for node in voters if node is not hangs][keep - 1 :]
    world.at(NOTICED_S, lambda: _ask(world, rest, at))


PLOTS: tuple[Plot, ...] = (
    *(_one, _two, _leader, _leader_and_another, _all_but_one, _joiner, _donor, _down, _too_many),
)
