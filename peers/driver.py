"""The driver: the asynchronous shell around one core. It feeds events and does commands.

It joins the mesh (connections), the core (decisions) and RoundWork (arithmetic, in one worker
thread). Sending never waits: messages go into bounded outboxes. Must NOT decide anything.
"""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from peers.connections.frames import Frame
from peers.connections.mesh import Mesh
from peers.exchange.buffer_release import BufferReleases
from peers.exchange.data_plane import DataPlane
from peers.exchange.interfaces import Listener, RoundWork, StateStore
from peers.exchange.outbound import Stream
from peers.metrics.counters import Counters
from peers.steps.step_shell import StepCommand, StepShell
from peers.storage.wal import Wal
from peers.storage.wal_writer import WalWriter
from peers.transfer.state_transfer import StateTransfers
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import refusal
from protocols.messages import peer as m
from protocols.peer import PeerCore
from protocols.types import PROTOCOL_VERSION, LowcommError, PeerId, Stamp

T = TypeVar("T")
AT_ONCE = (v.StepMade, v.StepReceived, v.StepApplied)
Job = tuple[Callable[[], object], Callable[[object], None] | None]
"""(work for the worker thread, callback in the event loop for its result). Without a callback the
work is done in the event loop, in the order of the jobs."""


class Driver:
    """`run()` until the core stops. Implements MeshOwner."""

    def __init__(self, core: PeerCore, *, listener: Listener, wal: Wal) -> None:
        self.core = core
        self.data_plane = DataPlane(
            core,
            feed=self.feed,
            note=lambda why: listener.handle(c.Note("damaged", why)),
            failed=self._fail,
        )
        self.mesh: Mesh | None = None
        self.counters = Counters()
        self.step_shell: StepShell | None = None
        """The shell of a stepwise run, once its sizes are known."""
        self._listener = listener
        self._inbox: asyncio.Queue[v.Event] = asyncio.Queue()
        self._waiting = False
        """`run` waits for an event, and has done all commands of the last one."""
        self._wakes_at = 0.0
        """The end of that wait, by the event loop's clock."""
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        self._closed_because = ""
        """Why no peer is accepted; "" if the log decides."""
        self._lineage = 0
        """Lineage of the last applied entry."""
        self._losses = self._losses_taken = 0
        """How often the ranks were lost: fed to the core, and handled by it."""
        self._buffer_releases = BufferReleases(self._release)
        self._wal_writer = WalWriter(wal, self.feed)
        self.snapshots = StateTransfers(
            core, listener=listener, shell=self, data_plane=self.data_plane
        )

    # Interface ------------------------------------------------------------------------------

    def use(self, mesh: Mesh) -> None:
        """Set the mesh, which is made after this object, before `run`."""
        self.mesh = mesh
        self.data_plane.wake = mesh.wake

    def feed(self, event: v.Event) -> None:
        """Queue an event for the core. An event of a step is handled at once if the core is idle,
        since a hop through the inbox costs as much as a small payload."""
        self._losses += isinstance(event, v.TrainersLost)
        if self._waiting and isinstance(event, AT_ONCE) and self._inbox.empty():
            self._take(event)
            if self.core.stopped or self.core.deadline < self._wakes_at:
                self._inbox.put_nowait(v.DeadlineReached())
        else:
            self._inbox.put_nowait(event)

    async def run(self) -> None:
        """Run until Stop, of which the listener is told before. Raises errors of the arithmetic.

        However it ends, the worker thread has ended, and no further event is handled."""
        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="work") as thread:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._work(thread), name="work")
                    group.create_task(self._wal_writer.run(), name="log")
                    await self._decide()
                    self._wal_writer.stop()
                    # Jobs that were begun are finished: the last step, its result.
                    self._jobs.put_nowait(None)
        except ExceptionGroup as group:
            first, *others = group.exceptions
            if others:
                raise
            raise first from None  # The text of a single error may be one line for a person.
        finally:
            self._waiting = False  # If cancelled, the core has not stopped.
            self.snapshots.close()
            self._buffer_releases.close()

    @property
    def discarded(self) -> int:
        """Payloads that were dropped: of no open round, unwanted, or damaged (I3)."""
        steps = self.step_shell.payloads.refused if self.step_shell is not None else 0
        return self.snapshots.transfer.refused + self.data_plane.discarded + steps

    @property
    def work(self) -> RoundWork:
        assert self.data_plane.work is not None, "the core asked for arithmetic before RunAccepted"
        return self.data_plane.work

    @property
    def states(self) -> StateStore:
        assert self.data_plane.states is not None, "the core asked for a state before RunAccepted"
        return self.data_plane.states

    # Implements peers.steps.step_shell.StepHost
    # ------------------------------------------------------

    def send(self, peer: PeerId, stream: Stream) -> None:
        self._sent(peer, self.data_plane.send(peer, stream))

    def compute(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self._job(work, done)

    def in_turn(self, action: Callable[[], None]) -> None:
        self._jobs.put_nowait((action, None))

    # The loops ------------------------------------------------------------------------------

    async def _decide(self) -> None:
        while not self.core.stopped:
            self._wakes_at = self.core.deadline
            self._waiting = True
            try:
                async with asyncio.timeout_at(
                    self._wakes_at if self._wakes_at < float("inf") else None
                ):
                    event = await self._inbox.get()
            except TimeoutError:
                event = v.DeadlineReached()
            assert self._waiting, "an event that was handled at once has failed"
            self._take(event)

    def _take(self, event: v.Event) -> None:
        """Handle an event and do its commands; not reentrant (`_waiting`)."""
        self._waiting = False
        now = asyncio.get_running_loop().time()
        if v.is_pulse(event):
            last = self.counters.last_heartbeat(event.peer, now)
            late_s = self.core.links.failure_detector.late_s(event.peer, last, now)
            if late_s is not None:
                self.counters.heartbeat(now, late_s=late_s)
        commands = self.core.handle(event, now)
        self._losses_taken += isinstance(event, v.TrainersLost)
        if isinstance(event, v.SliceBegun | v.SliceReceived | v.ResultReceived):
            self.data_plane.decided(event, commands)
        elif isinstance(event, v.CellReceived):
            self.snapshots.transfer.decided(event, commands)
        elif isinstance(event, v.StepReceived) and self.step_shell is not None:
            self.step_shell.decided(event, commands)
        for command in commands:
            self._do(command)
        self._waiting = True

    async def _work(self, thread: ThreadPoolExecutor) -> None:
        """One job at a time: a copy for a joiner never falls between two halves of a step."""
        loop = asyncio.get_running_loop()
        while (job := await self._jobs.get()) is not None:
            compute, done = job
            if done is None:
                compute()
            else:
                done(await loop.run_in_executor(thread, compute))

    # Commands -------------------------------------------------------------------------------

    def _do(self, command: c.Command) -> None:
        mesh = self.mesh
        assert mesh is not None
        match command:
            case c.Send(peer=peer, message=message):
                self._sent(peer, mesh.send(peer, message))
            case c.Persist():
                self._wal_writer.write(command)
            case c.Connect(peer=peer, address=address, via=via):
                mesh.connect(address, peer=peer, via=via)
            case c.Disconnect(peer=peer, why=why):
                mesh.disconnect(peer, why)
            case c.CheckRun(run=run):
                self._listener.check_run(run)
            case c.SendSlice(peer=peer):
                self._sent(peer, self.data_plane.send_slice(command))
            case c.SendResult(peer=peer):
                self._sent(peer, self.data_plane.send_result(command))
            case c.ReducePart():
                self.data_plane.reduce(command)
            case c.DropSlices(fragment=fragment, round=round_):
                self.data_plane.drop_slices(fragment, round_)
            case c.DropResult(stamp=stamp, part=part):
                self.data_plane.drop_result(stamp, part)
            case c.ReleaseRound(fragment=fragment, round=round_):
                size = self.states.state_bytes(fragment)
                self._buffer_releases.put_off(fragment, round_, copied_bytes=size)
            case c.Discard():
                pass  # The exchange has not kept this payload.
            case c.Resume():
                losses = self._losses_taken  # After the outer steps that it shows to the ranks.
                self.in_turn(lambda: self._resume(command, losses))
            case c.Leased():  # With the results of this event, and no earlier one.
                self.in_turn(lambda: self._listener.handle(command))
            case c.MakeStep() | c.SendStep() | c.ApplyStep() | c.LoadBase() | c.ReleaseSteps():
                self._step(command)
            case c.Applied(lineage=lineage):
                self._listener.handle(command)
                if lineage != self._lineage:
                    # After contributions of the earlier lineage, before those of this one.
                    self._lineage = lineage
                    self._buffer_releases.make()  # Releases of rounds of the earlier lineage.
                    self.in_turn(self._restored)
            case c.Note() | c.Stop():
                self._listener.handle(command)
            case c.Sign() | c.Answer() | c.GiveKey() | c.TakeKey():
                self._listener.handle(command)
            case _ if isinstance(command, c.TransferCommand):
                self.snapshots.do(command)
            case _:
                self._compute(command)

    def _step(self, command: StepCommand) -> None:
        assert self.step_shell is not None, "the core makes steps before RunAccepted"
        self.step_shell.do(command)

    def _compute(self, command: c.Command) -> None:
        """Queue a command that needs arithmetic for the worker thread, in order."""
        match command:
            case c.Encode(fragment=fragment, round=round_):
                self._buffer_releases.make(fragment)  # The next result is applied as it arrives.
                # After the outer steps on which it builds. No two contributions have the same name.
                name = secrets.token_hex(16)
                self._jobs.put_nowait(
                    (lambda: self.data_plane.encode(fragment, round_, name), None)
                )
            case c.ApplyRound(stamp=stamp, borders=borders):
                parts, terms = self.data_plane.parts(stamp, len(borders) - 1)
                seconds = self.data_plane.seconds(stamp)
                if seconds is not None:
                    self._listener.reduced(stamp, seconds)
                self._job(
                    lambda: self.work.apply(stamp, borders, parts, terms),
                    lambda digest: self._applied(stamp, digest),
                )
            case c.SkipRound(stamp=stamp):
                self._job(
                    lambda: self.work.skip(stamp), lambda digest: self._applied(stamp, digest)
                )
            case c.AdoptKept(fragment=fragment, round=round_):
                lineage = self.core.run_state.lineage
                self._job(
                    lambda: self.states.adopt_kept(fragment, round_, lineage=lineage),
                    lambda digest: self.feed(v.KeptAdopted(fragment, round_, digest)),
                )
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _job(self, compute: Callable[[], T], done: Callable[[T], None]) -> None:
        self._jobs.put_nowait((compute, cast(Callable[[object], None], done)))

    def _release(self, fragment: int, round_: int) -> None:
        """Free results after the steps that read them: their memory is reused."""
        self._job(
            lambda: self.work.settle(fragment), lambda _: self.data_plane.release(fragment, round_)
        )

    def _resume(self, command: c.Resume, losses: int) -> None:
        """`losses`: losses of ranks that the core knew of at its decision. The ranks that wait for
        this result may be lost by now, and new ones be ready. These must not take it: they would go
        on from parameters that they do not have, and take their own result as the answer to their
        first contribution, with its samples leased twice."""
        if losses == self._losses:
            self._listener.handle(command)

    def _restored(self) -> None:
        """Drop the payloads of all other lineages: they are old."""
        self.data_plane.restored(self.core.run_state.lineage)

    def _fail(self, error: LowcommError) -> None:
        """Our own arithmetic has failed: `run` raises the error."""

        def raise_it() -> None:
            raise error

        self._jobs.put_nowait((raise_it, None))

    def _applied(self, stamp: Stamp, digest: str) -> None:
        self._listener.applied(stamp, digest)
        self.feed(v.RoundApplied(stamp, digest))

    def _sent(self, peer: PeerId, fits: bool) -> None:
        """A peer with a full outbox gets a new connection, and everything that it needs again."""
        if not fits and self.mesh is not None:
            self.mesh.drop(peer, "too slow: its outbox is full")

    # The mesh's side ------------------------------------------------------------------------

    def hello(self) -> m.Hello:
        me, run, leader = self.core.me, self.core.raft.run, self.core.connectivity.leader_address()
        return m.Hello(PROTOCOL_VERSION, run, me.peer, me.name, me.incarnation, me.address, leader)

    def refuse_all(self, why: str) -> None:
        """Accept no peer any more: connected ones get the reason now, others when they connect."""
        assert self.mesh is not None
        self._closed_because = why
        for peer in list(self.mesh.sessions):
            self.mesh.send(peer, m.Refused(why))

    def refusal(self, hello: m.Hello) -> str:
        core = self.core
        if self._closed_because:
            return self._closed_because
        life = core.links.life(hello.peer, 0)
        return refusal(hello, me=core.me, run=core.raft.run, run_state=core.run_state, life=life)

    def connected(self, hello: m.Hello) -> None:
        assert self.mesh is not None
        session = self.mesh.sessions[hello.peer]
        self.counters.follow(hello.peer, session.control, session)
        self.data_plane.meet(hello.peer, hello.incarnation, far=session.far)
        self.snapshots.connected()
        self.feed(v.PeerConnected(hello.peer, hello.incarnation, hello.address, hello.leader))

    def disconnected(self, peer: PeerId, why: str) -> None:
        self.counters.unfollow(peer)
        self.data_plane.forget(peer)
        self.snapshots.transfer.forget(peer)
        if self.step_shell is not None:
            self.step_shell.payloads.forget(peer)
        self.feed(v.PeerDisconnected(peer, why))

    def received(self, peer: PeerId, message: m.Control) -> None:
        self.feed(v.MessageReceived(peer, message))

    def is_revoked(self, peer: PeerId) -> bool:
        return peer in self.core.run_state.spendings.revoked

    def barred(self, peer: PeerId, why: str) -> None:
        self.feed(v.Barred(peer, why))

    def is_member(self, peer: PeerId) -> bool:
        return peer in self.core.run_state.readers

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None:
        self.counters.relayed(source, sink, size)

    def admission_asked(self, number: int, admit: m.Admit) -> None:
        if self._closed_because and self.mesh is not None:
            self.mesh.answer(number, m.NotAdmitted(self._closed_because, True))
        else:
            self.feed(v.AdmitAsked(number, admit))

    def refused(self, why: str) -> None:
        if self.core.raft.run:  # Other peers are known: this one may only be away.
            self._listener.handle(c.Note("dial", why))
        else:
            self._listener.handle(c.Stop(why, "refused"))

    def next_chunk(self, peer: PeerId) -> Frame | None:
        frame = self.data_plane.next_chunk(peer)
        if frame is not None and not isinstance(frame[0], m.StateChunk):
            self.snapshots.pace.moved(memoryview(frame[1]).nbytes)
        return frame

    def padding_bytes(self, peer: PeerId) -> int:
        return self.data_plane.padding_bytes(peer)

    def payload_sent(self, peer: PeerId, chunk: m.Chunk, size: int) -> None:
        self.counters.sent(peer, chunk, size)

    def place(self, peer: PeerId, chunk: m.Chunk, size: int) -> memoryview | None:
        if isinstance(chunk, m.StateChunk):
            return self.snapshots.transfer.place(peer, chunk, size)
        if isinstance(chunk, m.Padding):
            return None
        place: memoryview | None = None
        if not isinstance(chunk, m.StepChunk):
            place = self.data_plane.inbound.place(peer, chunk, size)
        elif self.step_shell is not None:
            place = self.step_shell.payloads.place(peer, chunk, size)
        if place is not None:
            self.snapshots.pace.moved(size)  # Unwanted payload does not slow state transfers down.
        return place

    def payload_received(self, peer: PeerId, chunk: m.Chunk, size: int, *, kept: bool) -> None:
        self.counters.received(peer, chunk, size, kept=kept or isinstance(chunk, m.Padding))

    def chunk_received(self, peer: PeerId, chunk: m.Chunk) -> None:
        if isinstance(chunk, m.StateChunk):
            self.snapshots.transfer.arrived(peer, chunk)
        elif isinstance(chunk, m.PieceChunk):
            self.data_plane.inbound.arrived(peer, chunk)
        elif isinstance(chunk, m.StepChunk) and self.step_shell is not None:
            self.step_shell.payloads.arrived(peer, chunk)
