"""A member of a stepwise run led by A, for the tests of what it does and says.

Must NOT judge anything.
"""

from dataclasses import replace

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId, Stamp, Version, digest_text
from tests.protocols.scenes import RULES, START, A, B, Follower, info, run

STEPS = 24
COMMIT_EVERY, SNAPSHOT_EVERY = 4, 8


def stepwise(*, steps: int = STEPS, peers_min: int = 1) -> e.Run:
    return replace(
        run(peers_min=peers_min, outer_steps=steps),
        commit_every_steps=COMMIT_EVERY,
        snapshot_every_steps=SNAPSHOT_EVERY,
    )


def view(number: int, *roster: PeerId, first: int) -> e.View:
    return e.View(number, tuple(sorted(roster)), (), (first,))


def payload(peer: PeerId, step: int) -> str:
    """The digest of what a peer sends for a step."""
    return digest_text(f"{peer} {step}")


def state(step: int) -> str:
    return digest_text(f"state {step}") if step else START


class Stepper(Follower):
    """It follows A, with A's log in hand."""

    def joins(self, *others: PeerId, step: int = 0) -> None:
        """It reads of the run and of the others, gets the state, and its ranks take it."""
        self.meets(A)
        self.reads(stepwise(), e.Member(info(A)), e.Elected(A))
        self.on(v.RunAccepted(RULES))
        for slot, other in enumerate(others, start=2):
            self.reads(e.Cut(info(other, slot), (A,), (Version(0, step, state(step)),)))
            self.reads(e.Member(info(other, slot)))
            self.meets(other)
        index = self.gets_cut(step)
        self.on(v.StateReceived(index, 0, step, state(step)))
        self.reads(e.Member(info(self.core.me.peer, 1)))
        self.on(v.TrainersReady())
        self.on(v.BaseLoaded(step, state(step)))

    def at(self, step: int, *, number: int = 1) -> Stamp:
        return replace(self.stamp(step), view=number)

    def makes(self, step: int) -> list[c.Command]:
        """Our ranks made their payload."""
        steps = self.core.part.steps
        assert steps is not None
        making = steps.own.making
        batch = making.batch if making is not None else 0
        return self.on(v.StepMade(step, batch, payload(self.core.me.peer, step)))

    def gets(
        self, step: int, *peers: PeerId, number: int = 1, sender: PeerId | None = None
    ) -> list[c.Command]:
        """Payloads of others arrive. All that it said."""
        said: list[c.Command] = []
        for peer in peers:
            stamp = self.at(step, number=number)
            said += self.on(v.StepReceived(sender or peer, stamp, peer, payload(peer, step)))
        self.said = said
        return said

    def completes(self, step: int, *, number: int = 1, digest: str = "") -> list[c.Command]:
        """Our ranks applied the step."""
        return self.on(v.StepApplied(self.at(step, number=number), digest or state(step)))

    def steps_to(self, last: int, *others: PeerId, number: int = 1) -> None:
        """Step after step, with everybody."""
        steps = self.core.part.steps
        assert steps is not None
        for step in range(steps.ranks.version + 1, last + 1):
            self.makes(step)
            self.gets(step, *others, number=number)
            self.completes(step, number=number)

    def told(self, kind: type[m.Control]) -> list[m.Control]:
        """What A heard of one kind, in the last answer."""
        return [message for peer, message in self.sent(kind) if peer == A]


def stepper(*others: PeerId) -> Stepper:
    """B, in view 1 with A and the others; its ranks make their first payload."""
    scene = Stepper(B)
    scene.joins(*others)
    scene.reads(view(1, A, B, *others, first=1))
    return scene


def applied(scene: Stepper) -> list[int]:
    """Steps that it asked its ranks for, in the last answer."""
    return [command.stamp.round for command in scene.all(c.ApplyStep)]
