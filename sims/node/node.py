"""One simulated peer: the real core, and a shell in virtual time. ranks.py has its ranks.

Training is replaced by arithmetic that is easy to check (toy_model.py): a fragment is one
parameter, inner steps move it, and the outer step subtracts the weighted mean of the contributions.
The shell keeps and drops payloads as the real one does, and runs jobs in order, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from peers.exchange import slice_key
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Control
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer import PeerCore
from protocols.types import PeerId, limits
from protocols.wire import codec
from sims.node.outer_states import OuterStates
from sims.node.owner_checks import SimulatedOwnerChecks
from sims.node.ranks import PendingResult, Ranks
from sims.node.reductions import Reductions
from sims.node.state_transfer import SimulatedTransfers
from sims.node.storage import SimulatedDisk, Store
from sims.node.toy_model import ToySignatures, Value
from sims.node.turns import Turns
from sims.node.wal_writer import SimulatedWalWriter
from sims.node.world_view import WorldView

Payload = v.SliceReceived | v.ResultReceived | v.StepReceived


class Node:
    """One incarnation of one peer. After `kill` or Stop, actions scheduled for it are not run."""

    def __init__(
        self,
        world: WorldView[Node],
        me: Identity,
        disk: SimulatedDisk,
        *,
        contact: str,
        speed: float,
    ) -> None:
        """`contact`: the address at which this peer joins; "": this peer founds the run."""
        self.world = world
        self.peer = me.peer
        self.disk = disk
        self.met: set[PeerId] = set()
        """Peers that were ever connected with this one in this incarnation."""
        rules, saved = world.rules if disk.saved is not None else None, disk.saved
        self.core = PeerCore(
            me,
            join=bool(contact),
            saved=saved,
            kept=disk.kept,
            contacts=(contact,),
            rules=rules,
            signatures=ToySignatures(me.peer),
        )
        self.me = me
        self.raft, self.run_state = self.core.raft, self.core.run_state
        self.member_status, self.links = self.core.member_status, self.core.links
        self.certificates = self.core.certificates
        log_applier = self.core.log_applier
        log_applier.compact_entries = world.compact_entries
        self.twin_cores, self.observer = world.twin_cores, world.observer
        self.twin_cores.born(self.core, disk, contact=contact)
        self.speed = speed
        """Seconds for one inner step."""
        self.alive = True
        self.outcome = self.why = ""
        self.asked_to_leave = False
        self.paused_until = 0.0
        self.turns = Turns(self)
        self.due = float("inf")
        """Virtual time in seconds at which the core is woken if nothing else happens: its deadline,
        or the end of a pause."""
        self.states = OuterStates(self)
        self.store = Store()
        self.transfers = SimulatedTransfers(self)
        self.reductions = Reductions(self)
        self.owner_checks = SimulatedOwnerChecks(self)
        self.ranks = Ranks(self, world.training)
        self.dials: set[str] = set()
        """Addresses to which this peer wants a connection."""
        self.dialling: set[str] = set()
        """Addresses that are being dialled at present."""
        self.wal_writer = SimulatedWalWriter(self)
        self._lineage = 0
        """Lineage of the last applied entry."""
        self._losses = 0
        """How many losses of its ranks the core knows of."""

    @property
    def running(self) -> bool:
        return self.alive and not self.outcome

    @property
    def lacks_state(self) -> bool:
        """Does the core wait for a state, or for a place in the run?"""
        catchup = self.member_status.catchup
        return catchup.needed

    # Events ---------------------------------------------------------------------------------

    def give(self, event: v.Event, value: Value = 0) -> None:
        """Queue an event for the core. `value`: the number that a payload carries."""
        if not self.running or (isinstance(event, Payload) and not self.member_status.accepted):
            return  # Before it knows the run, a shell has no memory for payloads.
        if self.world.now < self.paused_until:
            self.after(0.0, lambda: self.give(event, value))
            return
        if isinstance(event, v.PeerDisconnected):
            self.reductions.forget(event.peer)
            self.transfers.disconnected(event.peer)
        if isinstance(event, v.MessageReceived) and isinstance(event.message, m.Blocks):
            self.owner_checks.blocks_received(event.peer, event.message)
            return  # The core knows nothing of bytes.
        self.turns.feed(event, value)

    def handle_event(self, event: v.Event, value: Value) -> None:
        """Let the core handle an event, and carry out all its commands. Called by `turns`."""
        limit_values = self.world.limit_values
        before, event = self.run_state.lineage, limit_values.event(event)
        commands = self.core.handle(event, self.world.now)
        self._losses += isinstance(event, v.TrainersLost)
        self.twin_cores.compare(self, event, commands)
        restore = self.run_state.restored
        if restore is not None and before not in (0, self.run_state.lineage):
            self._set_back(restore)  # An entry or a snapshot rolled the run back.
        self.world.record(self, event, value, commands)
        if isinstance(event, Payload):
            self._keep(event, value, commands)
        elif isinstance(event, v.CellReceived):
            self.transfers.decided(event, value, commands)
        self.observer.handled(self, event, commands)
        for command in commands:
            self._do(command)
        if isinstance(event, v.RoundApplied):
            self.observer.memory(self)
        if self.outcome:
            self.turns.end_jobs()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` in so many seconds, unless this incarnation has ended by then. If the node
        is paused then, the action waits for the end of the pause."""
        self.at_time(self.world.now + seconds, action)

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """As `after`, at exactly this time. A duration would be rounded, and actions of the same
        time could change their order."""
        self.turns.at_time(due, action)

    def lose_trainers(self, restart_s: float) -> None:
        """Let the ranks crash, and start new ones after `restart_s` seconds. A witness has no
        ranks."""
        if self.me.witness:
            return
        self.ranks.lose()
        life = self.ranks.life
        self.give(v.TrainersLost("crash"))

        def ready() -> None:
            if life == self.ranks.life:
                self.give(v.TrainersReady())

        self.after(restart_s, ready)

    def _keep(self, event: Payload, value: Value, commands: list[c.Command]) -> None:
        if any(isinstance(command, c.Discard) for command in commands):
            return
        if isinstance(event, v.SliceReceived):
            self.store.slices[slice_key(event.stamp, event.part, event.contributor)] = value
            self.reductions.arrived()
        elif isinstance(event, v.ResultReceived):
            self.store.results[event.stamp, event.part] = value

    # Commands -------------------------------------------------------------------------------

    def _do(self, command: c.Command) -> None:
        world = self.world
        match command:
            case c.Send(peer=to, message=message):
                self.send(to, message)
            case c.Connect():
                world.dialer.dial(self, command)
            case c.Disconnect(peer=other):
                world.dialer.hang_up(self, other)
            case c.Persist():
                self.wal_writer.write(command)
            case c.CheckRun():
                accepted = v.RunAccepted(world.rules, world.samples_ahead)
                self.after(world.compute_s, lambda: self.give(accepted))
            case c.Leased(samples=samples):
                sample_leases = self.ranks.sample_leases
                self.turns.in_turn(lambda: sample_leases.leased(samples))
            case c.Applied(entry=entry, index=index):
                self.observer.survives(self, index, entry)
                self.observer.entry_applied(self.peer, command.lineage, index, entry)
                if isinstance(entry, e.Run):
                    world.begun(self)
                elif isinstance(entry, e.Lost):
                    world.lost_state()  # The lost peer's state counts no more.
                if command.lineage != self._lineage:
                    # After contributions of the old lineage, before those of the new one.
                    self._lineage = command.lineage
                    self.reductions.make_releases()
                    self.turns.in_turn(self._restored)
            case c.Stop(why=why, outcome=outcome):
                world.tell(f"{self.peer} stops: {outcome} ({why})")
                world.stopped(self, command)
                self.outcome, self.why = outcome, why
                world.lost_state()
                # Its last messages still arrive: a process that ends by itself closes its
                # connections in order.
                world.at(world.network.slowest_s, lambda: world.dialer.process_ended(self))
            case c.Note(kind=kind, text=text):
                world.tell(f"{self.peer} notes {kind}: {text}")
                self.observer.note(kind, text)
            case c.CheckProof() | c.AdmissionAnswer() | c.Trust():
                certification = world.dialer.certification
                certification.carry_out(self, command)
            case c.DropSlices() | c.DropResult():
                self.reductions.drop(command)
            case c.ReleaseRound():
                self.reductions.put_off(command)
            case c.Discard():
                world.happened["discard"] += 1  # `_keep` dropped the payload.
            case c.ExpectState() | c.ExpectCells() | c.KeepCell():
                self.transfers.carry_out(command)
            case _:
                self._payload(command)

    def _payload(self, command: c.Command) -> None:
        assert self.member_status.accepted, "arithmetic before the shell knows the run"
        store = self.store
        match command:
            case c.SendSlice(peer=to, stamp=stamp, part=part, contributor=me):
                manifest, value = store.encoded[stamp.fragment, stamp.round]
                assert manifest == me.manifest, "other bytes than were announced"
                self.send_bulk(to, v.SliceReceived(self.peer, stamp, part, me), value)
            case c.SendResult():
                self.reductions.send(command)
            case c.ReducePart():
                self.reductions.reduce(command)
            case c.AskBlocks() | c.SendBlocks() | c.CompareBlocks():
                self.owner_checks.carry_out(command)
            case c.AskCopies() | c.CompareCopies():
                self.owner_checks.carry_out(command)
            case c.Encode(fragment=fragment, round=round_):
                self.reductions.make_releases(fragment)
                shared = self.ranks.shared(fragment)  # Read now: the ranks may crash meanwhile.
                self.job(lambda: self.states.encode(fragment, round_, *shared))
            case c.ApplyRound(stamp=stamp, borders=borders):
                means = [store.results[stamp, part] for part in range(len(borders) - 1)]
                self.job(lambda: self.states.apply(stamp, means))
            case c.SkipRound(stamp=stamp):
                self.job(lambda: self.states.skip(stamp))
            case c.CheckState() | c.AdoptState() | c.CopyState() | c.HashState():
                self.transfers.carry_out(command)
            case c.ServeCells() | c.ReleaseCopy():
                self.transfers.carry_out(command)
            case c.AdoptKept(fragment=fragment, round=round_):
                self.job(lambda: self.states.adopt_kept(fragment, round_))
            case c.Resume():
                losses, lineage = self._losses, self.run_state.lineage
                excused = self.ranks.excuse(command)
                self.job(lambda: self._resume(command, losses, lineage, excused=excused))
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def job(self, work: Callable[[], None]) -> None:
        """Run jobs as the real shell does: one at a time, in the order of the commands."""
        self.turns.job(work)

    def _restored(self) -> None:
        """Drop payloads and sums of lineages other than the core's."""
        lineage = self.run_state.lineage
        self.store.keep(lineage)
        self.reductions.keep(lineage)

    def _set_back(self, restore: e.Restore) -> None:
        """Forget states that differ from the versions of `restore`. The ranks' steps since the last
        result are lost too, unless the rollback is in memory and this peer has a state."""
        if not restore.live or any(rounds.version < 0 for rounds in self.core.rounds):
            self.ranks.set_back()
        self.world.happened["void"] += restore.live and not restore.fork
        self.states.set_back(restore.versions)

    def send(self, to: PeerId, message: Control) -> None:
        self.world.sent(self, to, message)
        read = codec.decode(codec.encode(message), size_max=limits.CONTROL_BYTES_MAX)
        assert read == message, "the codec changed the message"
        self.world.carry(self.peer, to, "control", v.MessageReceived(self.peer, message))

    def send_bulk(self, to: PeerId, event: v.Event, value: Value) -> None:
        self.world.carry(self.peer, to, "bulk", event, value)

    def adopt(self, fragment: int, round_: int, value: Value) -> None:
        """Make a state that came from other peers our own."""
        self.states.adopt(fragment, round_, value)

    def state_at(self, fragment: int, round_: int) -> Value | None:
        """The state after this round; None if our state is another one."""
        return self.states.at(fragment, round_)

    def _resume(self, command: c.Resume, losses: int, lineage: int, *, excused: bool) -> None:
        """Give the ranks a result. As in the driver, a result for ranks that were lost meanwhile is
        dropped."""
        ranks, fragment = self.ranks, command.fragment
        if losses != ranks.life:
            return

        def post() -> None:
            # If the result has waited, the outer parameter contains later rounds too. The core does
            # not know this: by the command's round, it finds the ranks' work too old.
            outer, samples = self.states.outers[fragment], ranks.sample_leases.lease
            ranks.result(PendingResult(command, outer, lineage, samples, excused))

        def is_last() -> bool:
            return command.finish and all(one.needs_no_steps for one in self.core.rounds[1:])

        if fragment == 0:
            ranks.sample_leases.post(post, is_last)
        else:
            post()
            ranks.sample_leases.post_waiting()
