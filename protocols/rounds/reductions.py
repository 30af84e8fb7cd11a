"""This peer's own sums in a round: begun when all slices are here or arriving, and sent to all
receivers.

Must NOT decide which contributions are in a sum (the plan does), nor touch bytes.
"""

from collections.abc import Set

from protocols.interface.commands import Command, ReducePart, SendResult
from protocols.rounds.contributions import Holdings
from protocols.rounds.done_once import DoneOnce
from protocols.state.round_plan import RoundPlan
from protocols.types.ids import PeerId


def reduce(plan: RoundPlan, me: PeerId, *, held: Holdings, done: DoneOnce) -> list[Command]:
    """Begin each of our sums that can be made and is not begun."""
    commands: list[Command] = []
    for part in plan.owned_by(me):
        terms = held.terms(plan, part, me)
        if terms and done.once(me, plan.stamp.round, "reduce", plan.stamp, part):
            # Always from the slices, never from a sum that contains a lost peer.
            held.sums[plan.stamp, part] = terms
            start, stop = plan.parts.borders[part : part + 2]
            commands.append(ReducePart(plan.stamp, part, start, stop, terms))
    return commands


def share(
    plan: RoundPlan, me: PeerId, receivers: Set[PeerId], *, held: Holdings, done: DoneOnce
) -> list[Command]:
    """Send our sums to the receivers that have not got them."""
    if plan.pairs:
        return []  # Both peers of a pair make it, and no other peer needs it.
    return [
        SendResult(peer, plan.stamp, part, terms)
        for part in plan.owned_by(me)
        if (terms := held.sums.get((plan.stamp, part)))
        for peer in done.anew(receivers, plan.stamp.round, "result", plan.stamp, part)
    ]
