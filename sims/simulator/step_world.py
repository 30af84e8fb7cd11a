"""A whole cluster in a stepwise run: per-step methods in virtual time, all from one seed.

It is the world of world.py with other peers: in each step every member contributes a number, and
all members add the sum to a state that is known exactly. Must NOT judge the run: an observer does.
"""

from __future__ import annotations

import random
from typing import Protocol

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Control, Kept, StepsHalted
from protocols.messages import log_entries as e
from protocols.state import progress_at, remaining_at
from protocols.types import PeerId, Stamp, Version, digest_text
from sims.node.node import Node, Payload
from sims.node.storage import SimulatedDisk
from sims.node.toy_model import PRIME, Training, Value, state_digest
from sims.node.world_view import HistoryObserver
from sims.simulator.world import BareWorld

Terms = tuple[tuple[PeerId, str], ...]
"""The payloads that a step adds: (peer, digest) of each."""
FACTOR = 3
"""A state is multiplied by this before payloads are added, so that the order of steps matters."""
SLOWNESS = 3
"""A step of the whole model takes this many times as long as an inner step, so that runs last
longer than their faults."""


class StepNode(Node):
    """One incarnation of one peer in a stepwise run. Its ranks own the state; the shell keeps
    copies and payloads."""

    world: BareStepWorld

    def __init__(
        self, world: BareStepWorld, me: Identity, disk: SimulatedDisk, *, contact: str, speed: float
    ) -> None:
        super().__init__(world, me, disk, contact=contact, speed=speed)
        self.step_observer = world.step_observer
        self.values: dict[str, tuple[int, Value]] = {}
        """Payloads by digest: (step, number)."""
        self.copies: dict[int, Value] = {}
        """States by step, one of which is the base."""
        self.completed = (0, 0, 0)
        """(lineage, view, step) of the last step that this incarnation made."""
        self.promised: tuple[int, int] | None = None
        """(index up to which it had read the log, step) of its last report."""
        self._making = 0
        """Rises when the ranks drop their present work."""

    def lose_trainers(self, restart_s: float) -> None:
        self._making += 1
        super().lose_trainers(restart_s)

    def handle_event(self, event: v.Event, value: Value) -> None:
        super().handle_event(event, value)
        if isinstance(event, v.StepApplied) and self.running:
            self.step_observer.names(self)

    def _keep(self, event: Payload, value: Value, commands: list[c.Command]) -> None:
        if isinstance(event, v.StepReceived) and c.Discard(event) not in commands:
            self.values[event.digest] = (event.stamp.round, value)

    def send(self, to: PeerId, message: Control) -> None:
        self._told(message)
        super().send(to, message)

    def _told(self, message: Control) -> None:
        if isinstance(message, StepsHalted):
            self.step_observer.stopped(self, message)

    def _payload(self, command: c.Command) -> None:
        assert self.member_status.accepted, "arithmetic before the shell knows the run"
        match command:
            case c.MakeStep(step=step, batch=batch):
                self._make(step, batch)
            case c.SendStep(peers=peers, stamp=stamp, whose=whose, digest=digest):
                _, value = self.values[digest]
                for to in peers:
                    self.send_bulk(to, v.StepReceived(self.peer, stamp, whose, digest), value)
            case c.ApplyStep(terms=terms):
                life, total = self._making, sum(self.values[digest][1] for _, digest in terms)
                self.job(lambda: self._step_made(command, total, life))
            case c.LoadBase(step=step):
                self._making += 1
                life = self._making
                self.job(lambda: self._load(step, life))
            case c.ReleaseSteps(step=step):
                # Payloads are dropped at once, states in the order of the jobs.
                self.values = {x: made for x, made in self.values.items() if made[0] > step}
                lineage = self.run_state.lineage
                self.job(lambda: self._release(step, lineage))
            case c.CheckState() | c.AdoptState() | c.CopyState() | c.HashState():
                self.transfers.carry_out(command)
            case c.ServeCells() | c.ReleaseCopy():
                self.transfers.carry_out(command)
            case c.AdoptKept(fragment=fragment, round=step):
                self.job(lambda: self._adopt_kept(fragment, step))
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _make(self, step: int, batch: int) -> None:
        """Let the ranks compute a payload from their present state."""
        life, random = self._making, self.world.random

        def made() -> None:
            if life != self._making:
                return
            if self.now < self.ranks.stalled_until:
                self.at_time(self.ranks.stalled_until, made)
                return
            value = random.randrange(PRIME)
            digest = digest_text(f"{self.peer} {step} {value}")
            self.values[digest] = (step, value)
            self.step_observer.made(digest, value, batch)
            self.give(v.StepMade(step, batch, digest))

        self.after(self.process.speed * random.uniform(0.9, 1.1), made)

    def _step_made(self, step: c.ApplyStep, total: Value, life: int) -> None:
        stamp = step.stamp
        if life != self._making or stamp.lineage != self.run_state.lineage:
            return  # The ranks were lost or took another state, or the run rolled back.
        before = self.states.outers[0]
        after = self.states.outers[0] = (before * FACTOR + total) % PRIME
        self.step_observer.step_made(self, stamp, step.terms, before, after)
        self.completed = (stamp.lineage, stamp.view, stamp.round)
        if step.keep:
            self.copies[stamp.round] = after
        self.world.steps_made += 1
        self.give(v.StepApplied(stamp, state_digest(after)))

    def _load(self, step: int, life: int) -> None:
        if life == self._making:
            self.states.outers[0] = self.copies[step]
            self.states.corrupt.clear()
            self.give(v.BaseLoaded(step, state_digest(self.states.outers[0])))

    def _release(self, step: int, lineage: int) -> None:
        """Make the copy after this step the base: it is committed, and goes to the disk too."""
        if lineage != self.run_state.lineage:
            return  # A Restore came: on its branch this step is not committed.
        if step not in self.copies:
            assert step == 0, "a base without a copy"
            self.copies[0] = self.states.outers[0]  # Only the founder gets here.
        digest = state_digest(self.copies[step])
        self.copies = {at: value for at, value in self.copies.items() if at >= step}
        self.step_observer.state(self.peer, lineage, 0, step, digest)
        run_state = self.run_state
        remaining = remaining_at(run_state, step)
        if remaining is None:
            return  # The log has gone on: a later copy becomes the base in a moment.
        progress = progress_at(run_state, step)
        self.disk.kept = Kept(lineage, (Version(0, step, digest),), *progress, remaining)
        self.disk.outers = (self.copies[step],)
        self.give(v.Checkpointed(self.disk.kept))

    def _adopt_kept(self, fragment: int, round_: int) -> None:
        kept = self.disk.kept
        if kept is None or kept.versions[fragment].round != round_:
            self.give(v.KeptAdopted(fragment, round_, ""))
            return
        self.copies[round_] = self.disk.outers[0]
        self.give(v.KeptAdopted(fragment, round_, state_digest(self.disk.outers[0])))

    def state_at(self, fragment: int, round_: int) -> Value | None:
        """The copy after this step, not the ranks' present state; None: there is no copy."""
        return self.copies.get(round_)

    def adopt(self, fragment: int, round_: int, value: Value) -> None:
        """Make a received state the base."""
        self.copies[round_] = value


class StepObserver(HistoryObserver[Node], Protocol):
    """An observer of the log and the states that sees each step of the model."""

    def made(self, digest: str, value: Value, batch: int) -> None:
        """A peer made a payload of this batch."""
        ...

    def step_made(
        self, node: StepNode, stamp: Stamp, terms: Terms, before: Value, after: Value
    ) -> None:
        """A node made a step: it added the payloads of `terms` to the state `before`."""
        ...

    def stopped(self, node: StepNode, report: StepsHalted) -> None:
        """A node reports that it stopped: it makes no further step until the log lets it go on."""
        ...

    def names(self, node: StepNode) -> None:
        """A node has made a step; its collections have their usual sizes now."""
        ...


class BareStepWorld(BareWorld):
    """The world of a stepwise run. `outer_steps` counts steps of the model."""

    step_observer: StepObserver
    """The `history` of the observer; a subclass sets it."""

    def __init__(
        self,
        seed: int,
        *,
        peers: int,
        outer_steps: int,
        witness: bool = False,
        certified: bool = False,
    ) -> None:
        """`witness`: add a witness to the peers that train. `certified`: as in Training."""
        source = random.Random(seed ^ 0x57E9)  # noqa: S311 (a simulation, no secrets)
        self.commit_every_steps = source.choice([4, 8, 32])
        self.snapshot_every_steps = self.commit_every_steps * source.choice([1, 2, 4])
        self.steps_made = 0
        """Steps made by all peers; a step that was rolled back and repeated counts again."""
        training = Training(certified=certified)
        super().__init__(seed, peers=peers, outer_steps=outer_steps, training=training)
        if witness:
            self.add_peer(witness=True)

    def make_node(self, me: Identity, disk: SimulatedDisk, *, contact: str, speed: float) -> Node:
        return StepNode(self, me, disk, contact=contact, speed=speed * SLOWNESS)

    def make_run(self, founder: PeerId) -> e.Run:
        rhythm = (self.commit_every_steps, self.snapshot_every_steps)
        sizes, few = (1,), (self.settings.peers_min + 1) // 2  # The run begins early; others join.
        return e.Run(1, "{}", "", few, self.settings.outer_steps, 1, b"", sizes, founder, *rhythm)

    def step_node(self, peer: PeerId) -> StepNode:
        node = self.nodes[peer]
        assert isinstance(node, StepNode)
        return node
