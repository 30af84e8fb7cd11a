"""How a peer gets payloads of steps that it lacks, and gives others what it holds.

Must NOT decide which payloads are of use (step_machine.py): whoever calls says from which step on.
"""

from collections.abc import Set

from protocols.interface.commands import Command, Send, SendStep
from protocols.messages.peer import FetchSteps
from protocols.state.step_entries import step_view
from protocols.steps.bounds import StepBounds
from protocols.steps.payloads import Payloads
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId

FETCH_STEPS = 16
"""Asked for at a time by who is far behind."""
FETCH_RETRY_S = 1.0
FETCHES_MAX = 6
"""After asking this often for the same step, ask for a transfer of the whole state."""
RELEASED_FETCHES = 2
"""After asking so often, what others need no more is gone."""


class Refill:
    """Asks one holder after the other, from the first step that lacks on."""

    def __init__(self, bounds: StepBounds) -> None:
        self.at = NEVER
        """When to ask next."""
        self.tries = 0
        self._bounds = bounds
        self._step = 0
        """The first one that lacks."""
        self._asked: set[tuple[PeerId, int, PeerId]] = set()
        """(whom, for which step, of whose payload): the answer may come long after."""

    def over(self) -> None:
        """We lack nothing that anybody has."""
        self.at, self.tries, self._step = NEVER, 0, 0

    def ask(
        self, first: int, payloads: Payloads, now: float, connected: Set[PeerId]
    ) -> list[Command]:
        """What others have of the steps from `first` on and we lack, if it is time to ask."""
        members, target = self._bounds.members, self._bounds.target(payloads)
        lacking = {
            (step, peer)
            for step in range(first, min(target, first + FETCH_STEPS - 1) + 1)
            if (view := step_view(members, step)) is not None
            for peer in payloads.missing(view, step)
        }
        if not lacking:
            self.over()
            return []
        # A payload may be on its way, unless nobody will send it any more.
        at_once = members.course.close is not None or target >= first + 2
        if not self._is_due(min(lacking)[0], now, at_once=at_once):
            return []
        asked = self._provided(lacking, connected)
        others = sorted(connected & members.members.keys())
        if not asked and others:
            asked[others[self.tries % len(others)]] = lacking
        self._asked.update((holder, *one) for holder, what in asked.items() for one in what)
        return [Send(holder, self._fetch(what)) for holder, what in sorted(asked.items())]

    def has_asked(self, holder: PeerId, step: int, whose: PeerId) -> bool:
        return (holder, step, whose) in self._asked

    def prune(self, floor: int) -> None:
        """Steps up to here are of no use any more."""
        self._asked = {one for one in self._asked if one[1] > floor}

    def give(self, peer: PeerId, message: FetchSteps, payloads: Payloads) -> list[Command]:
        """Whatever we hold of what the peer lacks."""
        if message.lineage != self._bounds.members.lineage:
            return []
        commands: list[Command] = []
        for step in range(message.first, min(message.last, message.first + FETCH_STEPS - 1) + 1):
            view = step_view(self._bounds.members, step)
            if view is None:
                continue
            stamp = self._bounds.stamp(view.view, step)
            commands += [
                SendStep((peer,), stamp, whose, digest)
                for whose, digest in sorted(payloads.of(view.view, step).items())
                if not message.peers or whose in message.peers
            ]
        return commands

    def is_hopeless(self, ours: int) -> bool:
        """Nobody has what follows our step any more."""
        members = self._bounds.members
        if 0 <= ours < members.course.base and step_view(members, ours + 1) is None:
            return True  # Nobody knows even who made the steps between.
        released = self.tries >= RELEASED_FETCHES and ours < members.course.base
        return released or self.tries > FETCHES_MAX

    def _is_due(self, step: int, now: float, *, at_once: bool) -> bool:
        if step != self._step:
            self._step, self.tries = step, 0
            self.at = now if at_once else now + FETCH_RETRY_S
        if now < self.at:
            return False
        self.at, self.tries = now + FETCH_RETRY_S, self.tries + 1
        return True

    def _provided(
        self, lacking: set[tuple[int, PeerId]], connected: Set[PeerId]
    ) -> dict[PeerId, set[tuple[int, PeerId]]]:
        """By whom the Close names for it."""
        close = self._bounds.members.course.close
        asked: dict[PeerId, set[tuple[int, PeerId]]] = {}
        for provider in close.providers if close is not None else ():
            what = (provider.step, provider.peer)
            if what in lacking and provider.holder in connected:
                asked.setdefault(provider.holder, set()).add(what)
        return asked

    def _fetch(self, what: set[tuple[int, PeerId]]) -> FetchSteps:
        steps, peers = [step for step, _ in what], {peer for _, peer in what}
        lineage = self._bounds.members.lineage
        return FetchSteps(lineage, min(steps), max(steps), tuple(sorted(peers)))
