"""Step after step while nothing else happens: what follows from most events of a stepwise run.

A full look (steps.py) says in which view and how far. Until the next one there are only payloads
of a known roster, and our own ranks: each of these events can be answered from what is noted here,
which is most of what a small step would cost otherwise. Must NOT take an event that is not just
the next thing: that is for the full look.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from protocols.clock import NEVER
from protocols.commands import ApplyStep, Command, MakeStep, SendStep
from protocols.course import commits, keeps
from protocols.events import Event, StepApplied, StepMade, StepReceived
from protocols.ids import PeerId, Stamp
from protocols.step_entries import batch_of

if TYPE_CHECKING:
    from protocols.entries import View
    from protocols.steps import Steps

LOOK_S = 0.25
"""So long after the first event that was answered here there is a full look, whatever comes: it
finds out what is missing, and whom to ask."""
AHEAD = 2
"""Who is a step ahead of us has sent its next payload already; nobody can be further."""


class Pace:
    """From one full look to the next one."""

    def __init__(self, steps: Steps, view: View, receivers: tuple[PeerId, ...]) -> None:
        """`receivers`: who gets our payloads."""
        self.due = NEVER
        """When to look around."""
        self._steps = steps
        self._view = view
        self._roster = frozenset(view.roster)
        self._receivers = receivers
        self._last = steps.frontier
        self._made_from = batch_of(steps.members, view, steps.version + 1, steps.me)
        self._made_of = steps.version + 1
        """Our batch, and the step that it is for: of the next step it is as far on as there are
        peers in the roster."""
        self._stamps: dict[int, Stamp] = {}
        """Of the next steps."""

    def take(self, event: Event, now: float) -> list[Command] | None:
        """What follows; None: it is for a full look, and nothing was done."""
        match event:
            case StepReceived():
                commands = self._received(event)
            case StepMade():
                commands = self._made(event)
            case StepApplied():
                commands = self._applied(event)
            case _:
                return None
        if commands is not None and self.due == NEVER:
            self.due = now + LOOK_S
        return commands

    def _received(self, event: StepReceived) -> list[Command] | None:
        steps, step, peer = self._steps, event.stamp.round, event.peer
        near = 0 < step - steps.version <= AHEAD and step <= self._last
        if not near or event.sender != peer or peer not in self._roster:
            return None
        number = self._view.view
        if event.stamp != self._stamp(step) or peer in steps.payloads.of(number, step):
            return None
        steps.payloads.add(number, step, peer, event.digest)
        return self._apply(step)

    def _made(self, event: StepMade) -> list[Command] | None:
        steps, step, making = self._steps, event.step, self._steps.making
        if step != steps.version + 1 or steps.applying is not None:
            return None
        if making is None or (making.step, making.batch) != (step, event.batch):
            return None
        steps.made(event)
        steps.payloads.add(self._view.view, step, steps.me, event.digest)
        steps.sent.update([(self._view.view, step, peer) for peer in self._receivers])
        sent = SendStep(self._receivers, self._stamp(step), steps.me, event.digest)
        return [sent, *self._apply(step)] if self._receivers else self._apply(step)

    def _applied(self, event: StepApplied) -> list[Command] | None:
        steps, step = self._steps, event.stamp.round
        reported = commits(steps.bounds.run, step) or step >= self._last
        ahead = steps.own is not None and steps.own.step > step
        if event.stamp != steps.applying or reported or ahead:
            return None
        steps.applied(event)
        self._stamps.pop(step, None)
        steps.making = self._make(step + 1)
        return [steps.making]

    def _apply(self, step: int) -> list[Command]:
        steps = self._steps
        held = steps.payloads.of(self._view.view, step)
        if step != steps.version + 1 or steps.applying is not None:
            return []
        if not self._roster <= held.keys():
            return []
        steps.applying = stamp = self._stamp(step)
        terms = tuple((peer, held[peer]) for peer in self._view.roster)
        run = steps.bounds.run
        goes_on = step < self._last and not commits(run, step)
        following = self._make(step + 1) if goes_on else None
        return [ApplyStep(stamp, terms, keeps(run, step), following)]

    def _make(self, step: int) -> MakeStep:
        on = (step - self._made_of) * len(self._view.roster)
        return MakeStep(step, self._made_from + on)

    def _stamp(self, step: int) -> Stamp:
        found = self._stamps.get(step)
        if found is None:
            found = self._stamps[step] = self._steps.bounds.stamp(self._view.view, step)
        return found


def pace_of(steps: Steps, connected: Set[PeerId]) -> Pace | None:
    """After a full look. None: it is not known that all goes as it should."""
    bounds, view = steps.bounds, steps.bounds.own_view
    if view is None or not bounds.begun <= steps.version < steps.frontier:
        return None
    if steps.awaited is not None or steps.refill.tries:
        return None
    return Pace(steps, view, tuple(sorted(connected & bounds.members.receivers.keys())))
