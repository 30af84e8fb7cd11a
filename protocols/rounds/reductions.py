"""Our own sums in a round: begun when all of their terms are here, or on their way, and given to
everybody who receives the result.

Must NOT decide whose contributions are in one (the plan does), nor touch bytes.
"""

from collections.abc import Set

from protocols.interface.commands import Command, ReducePart, SendResult
from protocols.rounds.contributions import Holdings
from protocols.rounds.done_once import Deeds
from protocols.state.round_plan import Plan
from protocols.types.ids import PeerId


def reduce(plan: Plan, me: PeerId, *, held: Holdings, done: Deeds) -> list[Command]:
    """Begin each sum of ours that can be made and was not begun."""
    commands: list[Command] = []
    for part in plan.owned_by(me):
        terms = held.terms(plan, part, me)
        if terms and done.once(me, plan.stamp.round, "reduce", plan.stamp, part):
            # Always from the slices, never from a sum that a lost peer is in.
            held.sums[plan.stamp, part] = terms
            start, stop = plan.parts.borders[part : part + 2]
            commands.append(ReducePart(plan.stamp, part, start, stop, terms))
    return commands


def share(
    plan: Plan, me: PeerId, receivers: Set[PeerId], *, held: Holdings, done: Deeds
) -> list[Command]:
    """Give our sums to those who have not got them."""
    if plan.pairs:
        return []  # Each of a pair makes it from the same two, and no other has a use for it.
    return [
        SendResult(peer, plan.stamp, part, terms)
        for part in plan.owned_by(me)
        if (terms := held.sums.get((plan.stamp, part)))
        for peer in done.anew(receivers, plan.stamp.round, "result", plan.stamp, part)
    ]
