"""The fault `revoke`: a user revokes certificates, at any peer of the run.

The victims are one peer, two within one round trip, the leader, a joiner or a donor, or a peer that
is down; or so many that no majority would remain, which must be refused. Must NOT draw the time
(fault_plan.py), nor judge the outcome: checkers/revocation_checks.py does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from sims.checkers import World
from sims.node.node import Node

LOOK_S, LOOK_MAX_S = 0.05, 10.0
"""Seconds between two looks for a joiner, and seconds after which the search ends."""
HANG_S = 9.0
"""Seconds that a voter hangs; it does not count as lost before the others are to be revoked."""
NOTICED_S = 3.2
"""Seconds after which the leader does not count on a voter that hangs."""
BACK_S = 3.0
ANSWERED_S = 12.0
"""Seconds after which the asked peer has learned of a refusal."""
Plot = Callable[[World, Node, int], None]


def revoke(world: World, victim: Node, how: int) -> None:
    """Revoke certificates. `how` chooses one of PLOTS, and the peer that is asked."""
    PLOTS[how % len(PLOTS)](world, victim, how // len(PLOTS))


def _ask(world: World, victims: Sequence[Node], at: int) -> None:
    """Request all revocations at once, at one of the members, unless no peer with the run's state
    would stay."""
    certification = world.dialer.certification
    news = [node for node in victims if not _is_asked(world, node)]
    askers = [node for node in world.live if _has_state(node) and node.core.certificates.secure]
    stay = [
        n for n in askers if n not in news and not (n.process.asked_to_leave or _is_asked(world, n))
    ]
    if not news or not stay or world.finished:
        return
    asker = askers[at % len(askers)]
    world.happened["revoke"] += len(news)
    world.happened["revoked at once"] += len(news) > 1
    world.happened["leader revoked"] += any(node.core.leads for node in news)
    for node in news:
        world.story.tell(f"{asker.peer} is asked to revoke {node.peer}")
        certification.revoked_at[node.peer] = world.clock.now
        entry = e.Revoked(node.peer, asker.peer, "stolen")
        if not certification.voters_revoke or asker.peer not in asker.run_state.voters:
            entry = certification.signed(entry)
            world.happened["revocation signed"] += 1
        asker.give(v.ActAsked(entry))
    if not certification.voters_revoke:
        _lie(world, askers)
    world.clock.at(ANSWERED_S, lambda: _count_refusals(world, asker, news))


def _lie(world: World, members: Sequence[Node]) -> None:
    """A member asks each leader to revoke a peer that the operator does not want to revoke, without
    the signature or with one of another act."""
    certification = world.dialer.certification
    draw = random.Random(int(world.clock.now * 1e6))  # noqa: S311 (its own, so that no draw moves)
    liar, victim = draw.choice(members), draw.choice(list(world.nodes.values()))
    signatures = (
        b"",
        bytes(64),
        certification.signed(e.Revoked(liar.peer, liar.peer, "")).signature,
    )
    forged = e.Revoked(victim.peer, liar.peer, "a lie", draw.choice(signatures))
    liar.give(v.ActAsked(forged, force=True))
    for leader in world.leaders:
        if liar.peer in leader.core.linked_peers and leader is not liar:
            world.happened["revocation forged"] += 1
            leader.give(v.MessageReceived(liar.peer, m.RequestAct(forged, force=True)))


def _count_refusals(world: World, asker: Node, victims: Sequence[Node]) -> None:
    refused = asker.core.certificates.refused
    for node in [node for node in victims if node.peer in refused]:
        world.happened["revocation refused"] += 1
        world.story.tell(f"{asker.peer} hears: {node.peer} is not revoked, {refused[node.peer]}")


def _has_state(node: Node) -> bool:
    member_status = node.member_status
    return member_status.is_member and not member_status.catchup.needed and not node.states.corrupt


def _is_asked(world: World, node: Node) -> bool:
    certification = world.dialer.certification
    return node.peer in certification.revoked_at


def _others(world: World, victim: Node, at: int) -> list[Node]:
    """All other live nodes, rotated by `at`."""
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
    """Revoke the chosen peers as soon as a joiner is given a state."""
    until = world.clock.now + LOOK_MAX_S

    def look() -> None:
        given = ((head, peer, cut) for head in world.heads for peer, (_, cut) in head.cuts.items())
        cuts = [cut for head, peer, cut in given if peer in head.joiners]
        victims = [n for cut in cuts[:1] for n in world.live if n.peer in choose(cut)]
        if victims:
            _ask(world, victims, at)
        elif world.clock.now < until and world.faults.ambush is not None:
            world.clock.at(LOOK_S, look)

    look()


def _down(world: World, victim: Node, at: int) -> None:
    """Revoke a peer that is dead at that time, and comes back."""
    if not _others(world, victim, at):
        return
    world.kill(victim)
    world.revive(victim, BACK_S)
    world.clock.at(1.0, lambda: _ask(world, [victim], at))


def _too_many(world: World, victim: Node, at: int) -> None:
    """Revoke so many voters, while another one hangs, that too few of the rest can be reached."""
    logs = {node: node.raft.log for node in world.live if not node.core.leads}
    voters = [node for node, log in logs.items() if node.peer in log.voters]
    if len(voters) < 2 or victim not in voters:
        return
    hangs = voters[voters.index(victim) - 1]
    world.pause(hangs, HANG_S)
    keep = 1 + at % 2
    rest = [node for node in voters if node is not hangs][keep - 1 :]
    world.clock.at(NOTICED_S, lambda: _ask(world, rest, at))


PLOTS: tuple[Plot, ...] = (
    *(_one, _two, _leader, _leader_and_another, _all_but_one, _joiner, _donor, _down, _too_many),
)
