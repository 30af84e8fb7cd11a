"""One simulated peer: the real core, and a shell in virtual time. ranks.py has its ranks.

Training is replaced by arithmetic that is easy to check (toy_model.py): a fragment is one
parameter, inner steps move it, and the outer step subtracts the weighted mean of the contributions.
The shell keeps and drops payloads as the real one does, and runs jobs in order, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Control
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.participant import MemberStatus
from protocols.peer import PeerCore
from protocols.raft import Raft
from protocols.state import RunState
from protocols.types import PeerId, limits
from protocols.wire import codec
from sims.node.node_view import Contacts, SimulatedProcess
from sims.node.outer_states import OuterStates
from sims.node.ranks import PendingResult, Ranks
from sims.node.reductions import Payload, SimulatedDataPlane
from sims.node.state_transfer import SimulatedTransfers
from sims.node.storage import SimulatedDisk
from sims.node.toy_model import ToySignatures, Value
from sims.node.turns import Turns
from sims.node.wal_writer import SimulatedWalWriter
from sims.node.world_view import Observer, WorldSettings, WorldView


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
        self.core = _make_core(me, disk, world.settings, contact=contact)
        world.twin_cores.born(self.core, disk, contact=contact)
        self.process = SimulatedProcess(speed)
        self.contacts = Contacts()
        self.turns = Turns(self)
        self.states = OuterStates(self)
        self.data_plane = SimulatedDataPlane(self)
        self.transfers = SimulatedTransfers(self)
        self.ranks = Ranks(self, world.settings.training)
        self.wal_writer = SimulatedWalWriter(self)

    # What the parts of the simulation ask for most ------------------------------------------

    @property
    def me(self) -> Identity:
        return self.core.me

    @property
    def raft(self) -> Raft:
        return self.core.raft

    @property
    def run_state(self) -> RunState:
        return self.core.run_state

    @property
    def member_status(self) -> MemberStatus:
        return self.core.member_status

    @property
    def settings(self) -> WorldSettings:
        return self.world.settings

    @property
    def observer(self) -> Observer[Node]:
        return self.world.observer

    @property
    def now(self) -> float:
        """Virtual time in seconds."""
        return self.world.clock.now

    @property
    def running(self) -> bool:
        return self.process.alive and not self.process.outcome

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
        if self.now < self.turns.paused_until:
            self.after(0.0, lambda: self.give(event, value))
            return
        if isinstance(event, v.PeerDisconnected):
            self.data_plane.disconnected(event.peer)
            self.transfers.disconnected(event.peer)
        if isinstance(event, v.MessageReceived) and isinstance(event.message, m.Blocks):
            self.data_plane.blocks_received(event.peer, event.message)
            event = v.BytesReceived(event.peer)  # The core knows nothing of bytes.
        self.turns.feed(event, value)

    def handle_event(self, event: v.Event, value: Value) -> None:
        """Let the core handle an event, and carry out all its commands. Called by `turns`."""
        limit_values = self.world.limit_values
        before, event = self.run_state.lineage, limit_values.event(event)
        commands = self.core.handle(event, self.now)
        self.data_plane.losses += isinstance(event, v.TrainersLost)
        self.world.twin_cores.compare(self, event, commands)
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
        if self.process.outcome:
            self.turns.end_jobs()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` in so many seconds, unless this incarnation has ended by then. If the node
        is paused then, the action waits for the end of the pause."""
        self.at_time(self.now + seconds, action)

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
        if not any(isinstance(command, c.Discard) for command in commands):
            self.data_plane.keep_payload(event, value)

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
                accepted = v.RunAccepted(world.settings.rules, world.settings.samples_ahead)
                self.after(world.settings.compute_s, lambda: self.give(accepted))
            case c.Leased(samples=samples):
                sample_leases = self.ranks.sample_leases
                self.turns.in_turn(lambda: sample_leases.leased(samples))
            case c.Applied(entry=entry, index=index):
                self.observer.survives(self, index, entry)
                self.observer.history.entry_applied(self.peer, command.lineage, index, entry)
                if isinstance(entry, e.Run):
                    if self.member_status.accepted:
                        self.states.keep_first()
                elif isinstance(entry, e.Lost):
                    world.lost_state()  # The lost peer's state counts no more.
                self.data_plane.lineage_applied(command.lineage)
            case c.Stop(why=why, outcome=outcome):
                world.story.tell(f"{self.peer} stops: {outcome} ({why})")
                world.stopped(self, command)
                self.process.outcome, self.process.why = outcome, why
                world.lost_state()
                # Its last messages still arrive: a process that ends by itself closes its
                # connections in order.
                world.clock.at(world.network.slowest_s, lambda: world.dialer.process_ended(self))
            case c.Observation(kind=kind, text=text):
                world.story.tell(f"{self.peer} notes {kind}: {text}")
                self.observer.note(kind, text)
            case c.CheckProof() | c.AdmissionAnswer() | c.Trust():
                certification = world.dialer.certification
                certification.carry_out(self, command)
            case c.Discard():
                world.happened["discard"] += 1  # `_keep` dropped the payload.
            case c.ExpectState() | c.ExpectCells() | c.KeepCell():
                self.transfers.carry_out(command)
            case c.DropSlices() | c.DropResult() | c.ReleaseRound():
                self.data_plane.carry_out(command)
            case _:
                self._payload(command)

    def _payload(self, command: c.Command) -> None:
        assert self.member_status.accepted, "arithmetic before the shell knows the run"
        store = self.data_plane.store
        match command:
            case c.SendSlice(peer=to, stamp=stamp, part=part, contributor=me):
                manifest, value = store.encoded[stamp.fragment, stamp.round]
                assert manifest == me.manifest, "other bytes than were announced"
                self.send_bulk(to, v.SliceReceived(self.peer, stamp, part, me), value)
            case c.SendResult() | c.ReducePart():
                self.data_plane.carry_out(command)
            case c.AskBlocks() | c.SendBlocks() | c.CompareBlocks():
                self.data_plane.carry_out(command)
            case c.AskCopies() | c.CompareCopies():
                self.data_plane.carry_out(command)
            case c.Encode(fragment=fragment, round=round_):
                self.data_plane.make_releases(fragment)
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
                losses, lineage = self.data_plane.losses, self.run_state.lineage
                excused = self.ranks.excuse(command)
                self.job(lambda: self._resume(command, losses, lineage, excused=excused))
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def job(self, work: Callable[[], None]) -> None:
        """Run jobs as the real shell does: one at a time, in the order of the commands."""
        self.turns.job(work)

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


def _make_core(
    me: Identity, disk: SimulatedDisk, settings: WorldSettings, *, contact: str
) -> PeerCore:
    """The core of an incarnation that begins with the content of this disk."""
    core = PeerCore(
        me,
        join=bool(contact),
        saved=disk.saved,
        kept=disk.kept,
        contacts=(contact,),
        rules=settings.rules if disk.saved is not None else None,
        signatures=ToySignatures(me.peer),
    )
    core.log_applier.compact_entries = settings.compact_entries
    return core
