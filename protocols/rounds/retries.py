"""What does not come in time in a round: whom to ask for it, and when to complain.

Must NOT decide who is left out (leader/decisions.py), nor what is missing (contributions.py).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.interface.commands import Command, DropResult, ReleaseRound, Send
from protocols.messages.log_entries import Commit
from protocols.messages.peer import Fetch, Waiting
from protocols.rounds.contributions import Holdings
from protocols.rounds.done_once import Deeds
from protocols.state.round_plan import Plan
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Stamp

if TYPE_CHECKING:
    from protocols.rounds.fragment_rounds import FragmentRounds

FETCH_RETRY_S = 1.0
FETCHES_MAX = 6
"""After asking this often for a result, ask for a transfer of the whole state."""


@dataclass(slots=True)
class Fetching:
    """A committed result is on its way; if it does not come, ask one holder after the other."""

    at: float = NEVER
    """When to ask next."""
    tries: int = 0

    def over(self) -> None:
        """It is here, or nothing is committed that we lack."""
        self.at = NEVER

    def start_anew(self) -> None:
        """Our state is another one now: what we lacked is in it."""
        self.at, self.tries = NEVER, 0

    def nobody_has_it(self) -> None:
        """There is nobody to ask."""
        self.tries = FETCHES_MAX + 1

    @property
    def hopeless(self) -> bool:
        return self.tries > FETCHES_MAX

    def fetch(
        self, now: float, commit: Commit, stamp: Stamp, *, held: Holdings, holders: Sequence[PeerId]
    ) -> list[Command]:
        """Call it while the result lacks. `held` may lose what is not the committed result."""
        if self.at == NEVER:
            self.at = now + FETCH_RETRY_S
        if now < self.at:
            return []
        self.at = now + FETCH_RETRY_S
        self.tries += 1
        commands: list[Command] = []
        parts = len(commit.borders) - 1
        if not held.missing_parts(stamp, parts):
            # Complete, and yet not what was committed: trust none of it. The shell too keeps the
            # first bytes of each part.
            held.drop_results(commit.round)
            commands.append(ReleaseRound(commit.fragment, commit.round))
        if holders:
            holder = holders[self.tries % len(holders)]
            missing = held.missing_parts(stamp, parts)
            commands += [Send(holder, Fetch(stamp, part)) for part in missing]
        return commands


@dataclass(slots=True)
class Asking:
    """An open round's result that we lack and that will not come by itself. We contribute nothing
    to it: two at least must hold it, and what came before we had read of its round was dropped. Or
    somebody gave us another in its place."""

    after_s: float = 30.0
    at: float = NEVER

    def ask(
        self, now: float, plan: Plan | None, *, held: Holdings, connected: Set[PeerId]
    ) -> list[Command]:
        """Ask its owners now and then. None: we wait for no plan's result."""
        if plan is None:  # As mostly.
            self.at = NEVER
            return []
        owners = plan.parts.owners
        missing = held.missing_parts(plan.stamp, len(owners))
        if not missing:
            self.at = NEVER
            return []
        if self.at == NEVER:
            self.at = now + self.after_s
        if now < self.at:
            return []
        self.at = now + self.after_s
        asked = [part for part in missing if owners[part] in connected]
        return [Send(owners[part], Fetch(plan.stamp, part)) for part in asked]


def plan_of_others(rounds: FragmentRounds) -> Plan | None:
    """Of the open round, if we could hold its result, and it does not come by itself."""
    plan = rounds.members.open_plan(rounds.fragment)
    if plan is None or rounds.version != plan.stamp.round - 1 or plan.pairs:
        return None
    comes = rounds.takes_part(plan) and rounds.held.usurped != plan.stamp
    return None if comes or rounds.finished else plan


def disown(plan: Plan, connected: Set[PeerId], *, held: Holdings) -> list[Command]:
    """Whoever has read less of the log than the sender of a result cannot tell whether it owns the
    part. Now we can: what is not its own is dropped, and the owner sends its once more. Before our
    own sums, which would be taken for second ones."""
    commands: list[Command] = []
    for part in held.drop_usurped(plan):
        commands.append(DropResult(plan.stamp, part))
        owner = plan.owner_of(part)
        if owner is not None and owner in connected:
            commands.append(Send(owner, Fetch(plan.stamp, part)))
    return commands


def accuse(plan: Plan, leader: PeerId | None, *, held: Holdings, done: Deeds) -> list[Command]:
    """Tell the leader, who leaves them out, whose contributions our sums cannot be made with."""
    void = tuple(sorted(held.void.get(plan.stamp, ())))
    if leader is None or not void:
        return []
    first = done.once(leader, plan.stamp.round, "void", plan.stamp, void)
    return [Send(leader, Waiting(plan.stamp, void, void=True))] if first else []


@dataclass(slots=True)
class Stall:
    """An attempt that we take part in is slow: the leader is told, and leaves somebody out. It is
    told again and again, since the leader's own clock may start later than ours: whom we wait for
    is another one by then, or it is another leader."""

    after_s: float = 30.0
    at: float = NEVER
    attempt: Stamp | None = None

    def over(self) -> None:
        """We wait for no attempt."""
        self.at, self.attempt = NEVER, None

    def is_slow(self, attempt: Stamp | None, now: float) -> bool:
        """True now and then in a long attempt. None: we take part in none."""
        if attempt != self.attempt:
            self.attempt = attempt
            self.at = now + self.after_s if attempt else NEVER
        if now < self.at:
            return False
        self.at = now + self.after_s
        return True
