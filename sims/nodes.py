"""One simulated peer: a core, its shell, and a trainer.

Training is replaced by arithmetic that is easy to check (models.py): inner steps move a peer's one
parameter, and the outer step subtracts the weighted mean of what was contributed.
The shell keeps and drops payloads as the real one does, and does jobs in order, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import limits, wire
from protocols.core import PeerCore
from protocols.hellos import Identity
from protocols.ids import PeerId, Stamp, Version, digest_text
from protocols.messages import Control, Kept
from sims.checkers import Contribution
from sims.feed import Feed
from sims.models import Value
from sims.stores import Disk, Store, Work

if TYPE_CHECKING:
    from sims.world import World

Payload = v.SliceReceived | v.ResultReceived | v.StepReceived
STEP_TOKENS = 16
STEP_SAMPLES = 2


def state_digest(outer: Value) -> str:
    """Of a state: here it is one number."""
    return digest_text(str(outer))


class Node:
    """One life of one peer. After `kill` or Stop, whatever was scheduled for it is void."""

    def __init__(
        self, world: World, me: Identity, disk: Disk, *, contact: str, speed: float
    ) -> None:
        """`contact`: where to join; "": this peer founds the run."""
        self.world = world
        self.disk = disk
        self.core = PeerCore(
            me, join=bool(contact), saved=disk.saved, kept=disk.kept, contact=contact
        )
        self.core.book.compact_entries = world.compact_entries
        self.speed = speed
        """Seconds an inner step takes."""
        self.alive = True
        self.outcome = self.why = ""
        self.asked_to_leave = False
        self.paused_until = 0.0
        self.deadline = self.due = float("inf")
        """When the core is woken if nothing else happens: at its deadline, or after a pause."""
        self.outer: Value = 0
        """The outer parameter."""
        self.corrupt = False
        """Something changed the parameter behind our back."""
        self.corrupt_at = 0
        """The round after which it did."""
        self.lies = False
        """The next state that we serve is wrong."""
        self.store = Store()
        self.work = Work(first=world.steps_of(me.peer), last=world.steps_of(me.peer))
        self.feed = Feed(world.inner_steps * STEP_SAMPLES)
        self.dials: set[str] = set()
        """Addresses that it wants to be connected with."""
        self.dialling: set[str] = set()
        """Those that it tries at present."""
        self._trainer_life = 0
        """Rises when the trainers restart: what older ones scheduled is void."""
        self._crashed = False
        """And what they had not contributed is gone."""
        self._busy_until = self._sync_at = 0.0
        self.unsynced: list[c.Persist] = []
        """On their way to the disk."""
        self._disk_life = 0

    @property
    def peer(self) -> PeerId:
        return self.core.me.peer

    @property
    def running(self) -> bool:
        return self.alive and not self.outcome

    # Events ---------------------------------------------------------------------------------

    def give(self, event: v.Event, value: Value = 0) -> None:
        """Let the core take an event, and do what it says. `value`: what a payload carries."""
        if not self.running:
            return
        if self.world.now < self.paused_until:
            self.after(0.0, lambda: self.give(event, value))
            return
        before = self.core.members.lineage
        commands = self.core.handle(event, self.world.now)
        if before not in (0, self.core.members.lineage):
            self._crashed = True  # By an entry or a snapshot: its ranks' work is of no lineage.
        deadline = self.core.deadline
        if deadline != self.deadline:
            self.deadline = deadline
            self.world.wake(self, max(deadline, self.paused_until))
        self.world.record(self, event, value, commands)
        if isinstance(event, Payload):
            self._keep(event, value, commands)
        self.world.checkers.handled(self, event, commands)
        for command in commands:
            self._do(command)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later, unless this life is over by then; not while we are stopped."""
        self.at_time(self.world.now + seconds, action)

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """As `after`, exactly then: a duration would be rounded, and what follows at the same time
        could come before."""

        def act() -> None:
            if self.running and self.world.now < self.paused_until:
                self.world.at_time(self.paused_until, act)
            elif self.running:
                action()

        self.world.at_time(due, act)

    def lose_trainers(self, restart_s: float) -> None:
        """The ranks crash and are started again."""
        self._trainer_life += 1
        life, self._crashed = self._trainer_life, True
        self.feed.stop()
        self.give(v.TrainersLost("crash"))

        def ready() -> None:
            if life == self._trainer_life:
                self.give(v.TrainersReady())

        self.after(restart_s, ready)

    def _keep(self, event: Payload, value: Value, commands: list[c.Command]) -> None:
        if c.Discard(event) in commands:
            return
        if isinstance(event, v.SliceReceived):
            stamp = event.stamp
            key = (stamp.round, stamp.view, event.part, event.contributor.peer)
            self.store.slices[key] = value
        elif isinstance(event, v.ResultReceived):
            self.store.results[event.stamp, event.part] = value

    # Commands -------------------------------------------------------------------------------

    def _do(self, command: c.Command) -> None:
        world = self.world
        match command:
            case c.Send(peer=to, message=message):
                self._send(to, message)
            case c.Connect(address=address):
                world.dialling.dial(self, address)
            case c.Disconnect(peer=other):
                world.dialling.hang_up(self, other)
            case c.Persist():
                self._persist(command)
            case c.CheckRun():
                accepted = v.RunAccepted(world.rules, world.samples_ahead)
                self.after(world.compute_s, lambda: self.give(accepted))
            case c.Leased(samples=samples):
                self.feed.leased(samples)
            case c.Applied(entry=entry, index=index):
                world.checkers.survives(self, index, entry)
                world.checkers.applied(self.peer, command.lineage, index, entry)
                if isinstance(entry, e.Run):
                    world.begun(self)
            case c.Stop(why=why, outcome=outcome):
                world.tell(f"{self.peer} stops: {outcome} ({why})")
                world.stopped(self, command)
                self.outcome, self.why = outcome, why
                world.lost_state()
                # What it sent last still arrives: a process that ends by itself closes in order.
                world.at(world.network.slowest_s, lambda: world.dialling.gone(self))
            case c.Note(kind=kind, text=text):
                world.tell(f"{self.peer} notes {kind}: {text}")
                world.checkers.note(kind, text)
            case c.DropSlices(round=round_):
                self.store.drop_slices(round_)
            case c.ReleaseRound(round=round_):
                self.store.release(round_)
            case c.Discard():
                world.happened["discard"] += 1  # `give` did not keep it.
            case c.ExpectState(donor=donor):
                self.store.states.clear()
                world.transfer_began(self, donor)
            case _:
                self._payload(command)

    def _payload(self, command: c.Command) -> None:
        assert self.core.standing.accepted, "arithmetic before the shell knows the run"
        store = self.store
        match command:
            case c.SendSlice(peer=to, stamp=stamp, part=part, contributor=me):
                manifest, value = store.encoded[stamp.round]
                assert manifest == me.manifest, "other bytes than were announced"
                self._send_bulk(to, v.SliceReceived(self.peer, stamp, part, me), value)
            case c.SendResult(peer=to, stamp=stamp, part=part):
                terms, digest = command.contributors, command.digest
                event = v.ResultReceived(self.peer, stamp, part, terms, digest)
                self._send_bulk(to, event, store.results[stamp, part])
            case c.ReducePart():
                self._reduce(command)
            case c.Encode(round=round_):
                self._job(lambda: self._encode(round_))
            case c.ApplyRound(stamp=stamp, borders=borders):
                means = [store.results[stamp, part] for part in range(len(borders) - 1)]
                self._job(lambda: self._apply(stamp, means))
            case c.AdoptState(cut_index=index, round=round_):
                value = store.states.pop(index)
                self._job(lambda: self._adopt(round_, value))
            case c.AdoptKept(fragment=fragment, round=round_):
                self._job(lambda: self._adopt_kept(fragment, round_))
            case c.ServeState(peer=to, cut_index=index, versions=versions):
                for version in versions:
                    self._job(lambda version=version: self._serve(to, index, version))
            case c.Resume():
                life, lineage = self._trainer_life, self.core.members.lineage
                excused = self._crashed
                if command.kind == "full":
                    self._crashed = False
                self._job(lambda: self._resume(command, life, lineage, excused=excused))
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _job(self, work: Callable[[], None]) -> None:
        """As the real shell: one at a time, in the order of the commands."""
        self._busy_until = max(self.world.now, self._busy_until) + self.world.compute_s
        self.at_time(self._busy_until, work)

    def _persist(self, persist: c.Persist) -> None:
        """Tickets are written in order; a full disk fails all that are under way."""
        world, life = self.world, self._disk_life
        self._sync_at = max(world.now, self._sync_at) + world.sync_s()
        self.unsynced.append(persist)

        def synced() -> None:
            if life != self._disk_life:
                return  # An older ticket failed, and this one with it.
            self.unsynced.remove(persist)
            if world.now < self.disk.full_until:
                self._disk_life += 1
                self.unsynced.clear()
                self.give(v.PersistFailed(persist.ticket, "no space left"))
                return
            self.disk.write(persist)
            self.give(v.Persisted(persist.ticket))

        self.at_time(self._sync_at, synced)

    def _adopt_kept(self, fragment: int, round_: int) -> None:
        kept = self.disk.kept
        if kept is None or kept.versions[fragment].round != round_:
            self.give(v.KeptAdopted(fragment, round_, ""))
            return
        self.outer, self.corrupt = self.disk.outer, False
        self.give(v.KeptAdopted(fragment, round_, state_digest(self.outer)))

    def _checkpoint(self, round_: int, digest: str, *, now: bool = False) -> None:
        members = self.core.members
        due = now or round_ % self.disk.checkpoint_every == 0
        remaining = members.remaining_at(round_) if due and not self.corrupt else None
        if remaining is None:
            return
        versions, progress = (Version(0, round_, digest),), members.progress_at(round_)
        kept = Kept(members.lineage, versions, *progress, remaining)
        self.disk.kept, self.disk.outer = kept, self.outer
        self.give(v.Checkpointed(kept))

    def _send(self, to: PeerId, message: Control) -> None:
        self.world.sent(self, to, message)
        if self.world.random.random() < 0.1:
            decoded = wire.decode(wire.encode(message), size_max=limits.CONTROL_BYTES_MAX)
            assert decoded == message
        self.world.carry(self.peer, to, "control", v.MessageReceived(self.peer, message))

    def _send_bulk(self, to: PeerId, event: v.Event, value: Value) -> None:
        self.world.carry(self.peer, to, "bulk", event, value)

    def _encode(self, round_: int) -> None:
        work, model = self.work, self.world.model
        delta = model.fold(work.base - work.local)
        manifest = digest_text(f"{self.peer} {work.first} {work.last} {round_} {self.world.now}")
        self.store.encoded[round_] = (manifest, delta)
        shown = (int(delta), int(model.fold(-work.moved))) if model.exact else (0, 0)
        made = Contribution(self.peer, shown[0], work.first, work.last, shown[1])
        self.world.checkers.encoded(manifest, made)
        self.world.checkers.samples_of(self, manifest, round_, work.samples)
        self.give(v.Encoded(0, round_, manifest))

    def _reduce(self, command: c.ReducePart) -> None:
        stamp, part = command.stamp, command.part
        terms: list[tuple[int, Value]] = []
        for term in command.contributors:
            if term.peer == self.peer:
                value = self.store.encoded[stamp.round][1]
            else:
                value = self.store.slices[stamp.round, stamp.view, part, term.peer]
            terms.append((term.tokens, value))
        mean = self.world.model.mean(terms)

        def done() -> None:
            self.store.results[stamp, part] = mean
            self.give(v.PartReduced(stamp, part, digest_text(str(mean))))

        self._job(done)

    def _apply(self, stamp: Stamp, means: list[Value]) -> None:
        if stamp.lineage != self.core.members.lineage:
            return  # A Restore came between.
        model = self.world.model
        if model.exact:
            self.world.checkers.means(stamp, {int(mean) for mean in means})
        self.outer = model.fold(self.outer - means[0])
        digest = state_digest(self.outer)
        if not self.corrupt:
            self.world.checkers.state(self.peer, stamp.lineage, stamp.round, digest)
        self._checkpoint(stamp.round, digest)
        self.give(v.RoundApplied(stamp, digest))
        self.world.checkers.memory(self)

    def _adopt(self, round_: int, value: Value) -> None:
        self.outer, self.corrupt = value, False
        self._checkpoint(round_, state_digest(value), now=True)
        lineage = self.core.members.lineage
        self.world.checkers.state(self.peer, lineage, round_, state_digest(value))

    def _serve(self, to: PeerId, index: int, version: Version) -> None:
        value = self.outer + self.lies
        if self.lies:
            self.world.happened["lie"] += 1
            self.lies = False
        event = v.StateReceived(self.peer, index, 0, version.round, state_digest(value))
        self.after(self.world.transfer_s(), lambda: self._send_bulk(to, event, value))

    def state_arrived(self, event: v.StateReceived, value: Value) -> None:
        """As the real shell: only what the donor of the present cut sends is kept."""
        if self.world.now < self.paused_until:
            self.after(0.0, lambda: self.state_arrived(event, value))
            return
        transfer = self.core.standing.catchup.transfer
        if transfer is not None and transfer.cut_index == event.cut_index:
            self.store.states[event.cut_index] = value
        else:
            self.world.happened["unexpected state"] += 1
        self.give(event)

    # Trainer --------------------------------------------------------------------------------

    def _resume(self, command: c.Resume, life: int, lineage: int, *, excused: bool) -> None:
        if life != self._trainer_life:
            return  # The ranks that waited for it are gone.
        work = self.work
        if command.kind == "full":
            # By the log, not by what we hold: the ledger has given its samples to others.
            age = self.core.members.committed(0) - work.base_round
            if not (age > 4 or command.finish or excused):
                self.world.checkers.dropped(self.peer, work.first, work.last, lineage)
            self.work = work = Work(local=self.outer, first=work.last, last=work.last)
        else:
            work.local = self.world.model.fold(work.local + self.outer - work.base)
        work.base, work.base_round = self.outer, command.round
        if not command.finish:
            self.feed.start(lambda: self._step(life, 0, first=command.first))

    def _step(self, life: int, done: int, *, first: bool) -> None:
        """One inner step; at the boundary the trainer contributes and blocks."""

        def step() -> None:
            if self._trainer_life != life:
                return
            work, world = self.work, self.world
            move = world.model.move(self.core.me.name, work.local, world.random)
            work.local, work.moved = world.model.fold(work.local + move), work.moved + move
            work.last += 1
            work.samples += self.feed.draw(STEP_SAMPLES)
            self.world.count_step(self.peer, work.last)
            early = first and 2 * (done + 1) >= self.world.inner_steps
            if early:
                self.give(v.TrainersAble())
            asked = early and self.core.rounds[0].others_wait
            if done + 1 >= self.world.inner_steps or asked:
                steps = work.last - work.first
                tokens, saw = steps * STEP_TOKENS, self.feed.contribute()
                self.give(v.ContributionReady(0, tokens, steps, saw))
            else:
                self._step(life, done + 1, first=first)

        self.after(self.speed * self.world.random.uniform(0.9, 1.1), step)
