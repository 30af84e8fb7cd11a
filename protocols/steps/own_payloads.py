"""The payloads of this peer's own ranks: to be made, made, and sent to the others of the roster.

Must NOT know payloads of other peers (payloads.py), nor decide when a step is applied
(step_machine.py).
"""

from protocols.interface.commands import Command, MakeStep, SendStep
from protocols.interface.events import StepMade
from protocols.messages import step_progress
from protocols.messages.log_entries import View
from protocols.steps.bounds import StepBounds, StepReach
from protocols.steps.payloads import Payloads
from protocols.types.ids import PeerId


class OwnPayloads:
    """The payloads that one peer makes, and their receivers."""

    def __init__(self, me: PeerId, bounds: StepBounds) -> None:
        self.me = me
        self.bounds = bounds
        self.newest: StepMade | None = None
        """The newest payload of this peer's ranks."""
        self.making: MakeStep | None = None
        """The payload that the ranks are making."""
        self.unsent = True
        """A peer may lack our newest payloads."""
        self.sent: dict[tuple[int, int], set[PeerId]] = {}
        """By (view, step), the receivers of our payloads, each on its present connection."""
        self.receivers: tuple[PeerId, ...] = ()
        """The connected peers that get our payloads, in order."""

    def made(self, event: StepMade) -> None:
        """The ranks have made a payload; its bytes are the same for every view."""
        making = self.making
        if making is not None and making.step == event.step and making.batch == event.batch:
            self.making, self.newest = None, event

    def void(self) -> None:
        """The ranks go back: their payload is of no use."""
        self.newest = self.making = None

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: payloads that it may lack are sent again."""
        for peers in self.sent.values():
            peers.discard(peer)

    def prune(self, view: int, step: int) -> None:
        """No payload of another view, or of an earlier step, is sent again."""
        for key in [x for x in self.sent if x[0] != view or x[1] < step]:
            del self.sent[key]

    def make(
        self, reach: StepReach, step: int, payloads: Payloads, *, applying: bool
    ) -> list[Command]:
        """Have the ranks make their payload of a step as soon as they have the state for it.
        `applying`: they are making that state."""
        view = reach.view.view
        if not reach.begun < step <= reach.last:
            return []
        own, batch = self.newest, reach.batch(step)
        if own is not None and own.step == step and own.batch == batch:
            if self.me not in payloads.of_step(view, step):
                payloads.add(view, step, self.me, own.digest)
                self.unsent = True
            return []
        making = self.making
        same = making is not None and making.step == step and making.batch == batch
        if same or applying:
            return []
        self.making = MakeStep(step, batch)
        return [self.making]

    def following(self, reach: StepReach, step: int) -> MakeStep | None:
        """The payload that the ranks make by themselves after this step; None if the step must be
        checked first, or the payload is made already."""
        made = self.newest is not None and self.newest.step > step
        if made or step >= reach.last or step_progress.commits(reach.run, step):
            return None
        return MakeStep(step + 1, reach.batch(step + 1))

    def send(self, view: View, step: int, payloads: Payloads) -> list[Command]:
        """Send our payload of a step to all other peers of the roster, since none can go on without
        it.

        Over a new connection also the payload of the step before: a roster is never more than one
        step apart.
        """
        self.unsent = False
        digest = payloads.of_step(view.view, step).get(self.me)
        if digest is None:
            return []
        stamp, lacking = self.bounds.stamp(view.view, step), self.receivers
        sent = self.sent.get((view.view, step))
        if sent is None:
            self.sent[view.view, step] = set(lacking)
        else:
            lacking = tuple(peer for peer in lacking if peer not in sent)
            sent.update(lacking)
        return [SendStep(lacking, stamp, self.me, digest)] if lacking else []
