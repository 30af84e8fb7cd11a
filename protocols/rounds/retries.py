"""Timeouts of a round: which peer to ask for a missing result, and when to tell the leader.

Must NOT decide which peer is excluded (leader/decisions.py), nor what is missing
(contributions.py).
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from protocols.interface.commands import Command, DropResult, ReleaseRound, Send
from protocols.messages.log_entries import Commit
from protocols.messages.peer import Fetch, WaitsForPeers
from protocols.rounds.contributions import Holdings
from protocols.rounds.done_once import DoneOnce
from protocols.state.round_plan import RoundPlan
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Stamp

FETCH_RETRY_S = 1.0
FETCHES_MAX = 6
"""After so many requests for a result, ask for a transfer of the whole state."""


@dataclass(slots=True)
class ResultFetch:
    """A committed result is missing: wait for it, then ask one holder after the other."""

    at: float = NEVER
    """When to ask next."""
    tries: int = 0
    _asks_now: bool = False

    def over(self) -> None:
        """No committed result is missing."""
        self.at, self._asks_now = NEVER, False

    def start_anew(self) -> None:
        """The state was replaced, and contains the missing result."""
        self.at, self.tries, self._asks_now = NEVER, 0, False

    def ask_now(self) -> None:
        """Do not wait for the next result if it is missing: it may have been sent before this peer
        could get it."""
        self._asks_now = True

    def nobody_has_it(self) -> None:
        """No peer can have the result: a transfer is needed at once."""
        self.tries = FETCHES_MAX + 1

    @property
    def hopeless(self) -> bool:
        return self.tries > FETCHES_MAX

    def fetch(
        self,
        now: float,
        commit: Commit,
        stamp: Stamp,
        *,
        held: Holdings,
        holders: Sequence[PeerId],
        over: bool,
    ) -> list[Command]:
        """Call this while the result is missing. It drops parts of `held` that are not the
        committed result. `over`: peers that have applied all rounds do not keep it any more."""
        if self.at == NEVER:
            # Results are sent in the order of the rounds: with a later one here, this one is not on
            # its way.
            passed = any(later.round > commit.round for later in held.results)
            self.at = now if passed or self._asks_now else now + FETCH_RETRY_S
        if now < self.at:
            return []
        self.at = now + FETCH_RETRY_S
        if over and self.tries >= len(holders):
            self.nobody_has_it()
            return []
        self.tries += 1
        commands: list[Command] = []
        parts = len(commit.borders) - 1
        if not held.missing_parts(stamp, parts):
            # Complete, but not the committed result: trust no part of it. The shell keeps the first
            # bytes of each part too.
            held.drop_results(commit.round)
            commands.append(ReleaseRound(commit.fragment, commit.round))
        if holders:
            holder = holders[self.tries % len(holders)]
            missing = held.missing_parts(stamp, parts)
            commands += [Send(holder, Fetch(stamp, part)) for part in missing]
        return commands


@dataclass(slots=True)
class ResultRequest:
    """Asks for an open round's result that is missing and is not sent again. Either we contribute
    nothing, but at least two peers must hold the result, and pieces that came before we read of the
    round were dropped; or another peer had sent us a wrong result."""

    after_s: float = 30.0
    at: float = NEVER

    def ask(
        self, now: float, plan: RoundPlan | None, *, held: Holdings, connected: Set[PeerId]
    ) -> list[Command]:
        """Ask the owners of the plan's parts from time to time; None if there is no such plan."""
        if plan is None:  # The usual case.
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


def disown(plan: RoundPlan, connected: Set[PeerId], *, held: Holdings) -> list[Command]:
    """Drop results from peers that do not own the parts, and ask the owners to send theirs again. A
    result may arrive before we have read the plan that names its owner. Call this before our own
    sums are made, which would be refused as second results."""
    commands: list[Command] = []
    for part in held.drop_usurped(plan):
        commands.append(DropResult(plan.stamp, part))
        owner = plan.owner_of(part)
        if owner is not None and owner in connected:
            commands.append(Send(owner, Fetch(plan.stamp, part)))
    return commands


def accuse(
    plan: RoundPlan, leader: PeerId | None, *, held: Holdings, done: DoneOnce
) -> list[Command]:
    """Tell the leader which contributions cannot be averaged; it excludes their peers."""
    void = tuple(sorted(held.void.get(plan.stamp, ())))
    if leader is None or not void:
        return []
    first = done.once(leader, plan.stamp.round, "void", plan.stamp, void)
    return [Send(leader, WaitsForPeers(plan.stamp, void, void=True))] if first else []


@dataclass(slots=True)
class StallReport:
    """An attempt that this peer takes part in is slow: the leader is told, and excludes a peer. It
    is told repeatedly, since its own timeout may begin later than ours, and the awaited peer or the
    leader may have changed by then."""

    after_s: float = 30.0
    at: float = NEVER
    attempt: Stamp | None = None

    def over(self) -> None:
        """No attempt is awaited."""
        self.at, self.attempt = NEVER, None

    def is_slow(self, attempt: Stamp | None, now: float) -> bool:
        """True from time to time in a long attempt. None: this peer takes part in none."""
        if attempt != self.attempt:
            self.attempt = attempt
            self.at = now + self.after_s if attempt else NEVER
        if now < self.at:
            return False
        self.at = now + self.after_s
        return True
