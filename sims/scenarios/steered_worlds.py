"""The fault `steer`: a person steers the run, at any peer: pauses, removed peers, changed keys.

Each pause ends some seconds later. A removed peer is started again. Acts that counted once are sent
to the leaders again, as by a peer that captured them. Must NOT draw the time (fault_plan.py), nor
judge the outcome: checkers/steering_checks.py does.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.acts import CONTINUE, KICK, PAUSE, SET
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from sims.checkers import World
from sims.node.node import Node

PAUSES_S = (0.5, 3.0, 8.0)
AGAIN_S = 1.0
"""Seconds until a person that wants a paused run to go on asks again."""
BACK_S = (1.0, 4.0)
"""Seconds until a removed peer is started again."""
LOOKS = 20
LONGER = (0, 1, 2)
"""Rounds that the run gets in addition to the one under way."""
Plot = Callable[[World, Node, int], None]


def steer(world: World, victim: Node, how: int) -> None:
    """`how` chooses one of PLOTS, and what it does."""
    PLOTS[how % len(PLOTS)](world, victim, how // len(PLOTS))


def _ask(world: World, at: int, what: str, subject: str = "", value: str = "") -> e.Steered | None:
    """Ask for an act at one of the members; return it, or None if no member can be asked."""
    certification = world.dialer.certification
    askers = [node for node in world.live if node.member_status.is_member]
    if not askers or world.finished:
        return None
    asker = askers[at % len(askers)]
    orders, lineage = asker.run_state.orders, asker.run_state.lineage
    act = e.Steered(
        what, subject, value, orders.number + 1, lineage, asker.peer, "as asked", unix_s=1
    )
    votes = asker.peer in asker.run_state.voters
    if certification.closed and not (certification.voters_steer and votes and at % 2):
        act = certification.signed(act)
        world.happened["act signed"] += 1
    world.story.tell(f"{asker.peer} is asked for {what} {subject} {value}")
    world.happened[f"asked to {what}"] += 1
    asker.give(v.ActAsked(act))
    return act


def _pause(world: World, _: Node, at: int) -> None:
    if _ask(world, at, PAUSE) is not None:
        world.clock.at(PAUSES_S[at % len(PAUSES_S)], lambda: _continue(world, at))


def _continue(world: World, at: int) -> None:
    """Ask until no log has a pause. An act may get lost with its leader, and one that was asked for
    may come late."""
    if world.finished:
        return
    if any(node.run_state.orders.paused for node in world.live):
        _ask(world, at, CONTINUE)
    _send_again(world, at)
    world.clock.at(AGAIN_S, lambda: _continue(world, at + 1))


def _send_again(world: World, at: int) -> None:
    """A member sends a captured act to the leaders, as if it was asked for."""
    liars = [node for node in world.live if node.member_status.is_member]
    acts = [x for node in liars for x in node.run_state.orders.acts.values()]
    if not acts:
        return
    liar, act = liars[at % len(liars)], acts[at % len(acts)]
    for leader in world.leaders:
        if liar.peer in leader.core.linked_peers and leader is not liar:
            world.happened["act replayed"] += 1
            leader.give(v.MessageReceived(liar.peer, m.RequestAct(act, force=True)))


def _kick(world: World, victim: Node, at: int) -> None:
    run_state = victim.run_state
    info = run_state.readers.get(victim.peer)
    if info is None or info.incarnation != victim.me.incarnation:
        return
    if _ask(world, at, KICK, victim.peer, str(info.incarnation)) is None:
        return

    def look(left: int) -> None:
        if victim.process.outcome == "refused" and world.nodes[victim.peer] is victim:
            world.happened["kicked"] += 1
            world.revive(victim, BACK_S[at % len(BACK_S)])
        elif left and not world.finished:
            world.clock.at(AGAIN_S, lambda: look(left - 1))

    look(LOOKS)


def _kick_leader(world: World, _: Node, at: int) -> None:
    for leader in world.leaders[:1]:
        _kick(world, leader, at)


def _set_rounds(world: World, victim: Node, at: int) -> None:
    run_state = victim.run_state
    if run_state.run is None or run_state.stepwise:
        return
    under_way = 1 + max(map(run_state.committed, range(run_state.fragments)))
    _ask(world, at, SET, "run.outer_steps", str(under_way + LONGER[at % len(LONGER)]))


def _set_grace(world: World, _: Node, at: int) -> None:
    # The rules of a simulated run: any other ones would hold for the rest of it.
    _ask(world, at, SET, "run.protocol.round_grace_s", repr(world.settings.rules.round_grace_s))


PLOTS: tuple[Plot, ...] = (_pause, _pause, _kick, _kick_leader, _set_rounds, _set_grace)
