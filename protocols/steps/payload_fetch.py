"""Fetches payloads of steps that a peer lacks, and serves those that it holds.

Must NOT decide which payloads are needed: the caller (step_machine.py) names the first step.
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
"""Steps that a peer far behind asks for at a time."""
FETCH_RETRY_S = 1.0
FETCHES_MAX = 6
"""After so many requests for the same step, ask for a transfer of the whole state."""
RELEASED_FETCHES = 2
"""After so many requests, payloads that no other peer needs are taken for gone."""


class PayloadFetch:
    """Asks one holder after the other, from the first incomplete step on."""

    def __init__(self, bounds: StepBounds) -> None:
        self.at = NEVER
        """When to ask next."""
        self.tries = 0
        self._bounds, self._run_state = bounds, bounds.run_state
        self._step = 0
        """The first incomplete step."""
        self._asked: set[tuple[PeerId, int, PeerId]] = set()
        """(asked peer, step, peer of the payload): an answer may come much later."""

    def over(self) -> None:
        """No payload is missing that another peer has."""
        self.at, self.tries, self._step = NEVER, 0, 0

    def ask(
        self, first: int, payloads: Payloads, now: float, connected: Set[PeerId]
    ) -> list[Command]:
        """Requests for missing payloads of the steps from `first` on, if it is time to ask."""
        run_state, target = self._run_state, self._bounds.target(payloads)
        lacking = {
            (step, peer)
            for step in range(first, min(target, first + FETCH_STEPS - 1) + 1)
            if (view := step_view(run_state, step)) is not None
            for peer in payloads.missing(view, step)
        }
        if not lacking:
            self.over()
            return []
        # A payload may be on its way, unless no peer will send it again.
        at_once = run_state.step_progress.close is not None or target >= first + 2
        if not self._is_due(min(lacking)[0], now, at_once=at_once):
            return []
        asked = self._provided(lacking, connected)
        others = sorted(connected & run_state.members.keys())
        if not asked and others:
            asked[others[self.tries % len(others)]] = lacking
        self._asked.update((holder, *one) for holder, what in asked.items() for one in what)
        return [Send(holder, self._fetch(what)) for holder, what in sorted(asked.items())]

    def has_asked(self, holder: PeerId, step: int, maker: PeerId) -> bool:
        return (holder, step, maker) in self._asked

    def prune(self, floor: int) -> None:
        """Steps up to this one are not needed any more."""
        self._asked = {one for one in self._asked if one[1] > floor}

    def give(self, peer: PeerId, message: FetchSteps, payloads: Payloads) -> list[Command]:
        """Send the requested payloads that are here."""
        if message.lineage != self._run_state.lineage:
            return []
        commands: list[Command] = []
        for step in range(message.first, min(message.last, message.first + FETCH_STEPS - 1) + 1):
            view = step_view(self._run_state, step)
            if view is None:
                continue
            stamp = self._bounds.stamp(view.view, step)
            commands += [
                SendStep((peer,), stamp, maker, digest)
                for maker, digest in sorted(payloads.of_step(view.view, step).items())
                if not message.peers or maker in message.peers
            ]
        return commands

    def is_hopeless(self, ours: int) -> bool:
        """Does no peer have the payloads after our step any more?"""
        run_state = self._bounds.run_state
        if 0 <= ours < run_state.step_progress.base and step_view(run_state, ours + 1) is None:
            return True  # The views of the steps between are forgotten.
        released = self.tries >= RELEASED_FETCHES and ours < run_state.step_progress.base
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
        """By holder, the (step, peer) of payloads that the Close assigns to it."""
        progress = self._run_state.step_progress
        close = progress.close
        asked: dict[PeerId, set[tuple[int, PeerId]]] = {}
        for provider in close.providers if close is not None else ():
            what = (provider.step, provider.peer)
            if what in lacking and provider.holder in connected:
                asked.setdefault(provider.holder, set()).add(what)
        return asked

    def _fetch(self, what: set[tuple[int, PeerId]]) -> FetchSteps:
        steps, peers = [step for step, _ in what], {peer for _, peer in what}
        lineage = self._run_state.lineage
        return FetchSteps(lineage, min(steps), max(steps), tuple(sorted(peers)))
