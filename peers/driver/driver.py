"""The driver: the asynchronous shell around one core. It feeds events and does commands.

It joins the mesh (connections), the core (decisions) and RoundWork (arithmetic, in one worker
thread). Sending never waits: messages go into bounded outboxes. Must NOT decide anything.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from peers.connections.mesh import Mesh
from peers.driver.job_queue import JobQueue
from peers.driver.mesh_shell import MeshShell
from peers.driver.round_jobs import RoundJobs
from peers.exchange.data_plane import DataPlane
from peers.exchange.interfaces import Listener, StateStore
from peers.exchange.outbound import Stream
from peers.metrics.counters import Counters
from peers.steps.step_shell import StepCommand, StepShell
from peers.storage.wal import Wal
from peers.storage.wal_writer import WalWriter
from peers.transfer.state_transfer import StateTransfers
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.peer import PeerCore
from protocols.types import PeerId

T = TypeVar("T")
AT_ONCE = (v.StepMade, v.StepReceived, v.StepApplied)


class Driver:
    """`run()` until the core stops. Implements StepHost and TransferHost."""

    def __init__(self, core: PeerCore, *, listener: Listener, wal: Wal) -> None:
        self.core = core
        self._jobs = JobQueue()
        self.data_plane = DataPlane(
            core,
            feed=self.feed,
            note=lambda why: listener.handle(c.Observation("damaged", why)),
            failed=self._jobs.fail,
        )
        self.snapshots = StateTransfers(
            core, listener=listener, shell=self, data_plane=self.data_plane
        )
        self.mesh_shell = MeshShell(
            core,
            listener=listener,
            data_plane=self.data_plane,
            snapshots=self.snapshots,
            feed=self.feed,
        )
        self.step_shell: StepShell | None = None
        """The shell of a stepwise run, once its sizes are known."""
        self._round_jobs = RoundJobs(
            core, listener=listener, data_plane=self.data_plane, jobs=self._jobs, feed=self.feed
        )
        self._listener = listener
        self._inbox: asyncio.Queue[v.Event] = asyncio.Queue()
        self._waiting = False
        """`run` waits for an event, and has done all commands of the last one."""
        self._wakes_at = 0.0
        """The end of that wait, by the event loop's clock."""
        self._wal_writer = WalWriter(wal, self.feed)

    # Interface ------------------------------------------------------------------------------

    def use(self, mesh: Mesh) -> None:
        """Set the mesh, which is made after this object, before `run`."""
        self.mesh_shell.mesh = mesh
        outbounds = self.data_plane.outbounds
        outbounds.wake = mesh.wake

    def begin_steps(self, step_shell: StepShell) -> None:
        """The run is stepwise, and its sizes are known."""
        self.step_shell = step_shell
        self.mesh_shell.step_payloads = step_shell.payloads

    def feed(self, event: v.Event) -> None:
        """Queue an event for the core. An event of a step is handled at once if the core is idle,
        since a hop through the inbox costs as much as a small payload."""
        if isinstance(event, v.TrainersLost):
            self._round_jobs.ranks_lost()
        if self._waiting and isinstance(event, AT_ONCE) and self._inbox.empty():
            self._handle_event(event)
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
                    group.create_task(self._jobs.run(thread), name="work")
                    group.create_task(self._wal_writer.run(), name="log")
                    await self._decide()
                    self._wal_writer.stop()
                    # Jobs that were begun are finished: the last step, its result.
                    self._jobs.stop()
        except ExceptionGroup as group:
            first, *others = group.exceptions
            if others:
                raise
            raise first from None  # The text of a single error may be one line for a person.
        finally:
            self._waiting = False  # If cancelled, the core has not stopped.
            self.snapshots.close()
            self._round_jobs.close()

    @property
    def discarded(self) -> int:
        """Payloads that were dropped: of no open round, unwanted, or damaged (I3)."""
        step_shell, transfer = self.step_shell, self.snapshots.transfer
        steps = step_shell.payloads.refused if step_shell is not None else 0
        return transfer.refused + self.data_plane.discarded + steps

    @property
    def counters(self) -> Counters:
        """What was sent and received, by peer."""
        return self.mesh_shell.counters

    # Implements StepHost and TransferHost -----------------------------------------------------

    @property
    def states(self) -> StateStore:
        return self._round_jobs.states

    def send(self, peer: PeerId, stream: Stream) -> None:
        outbounds = self.data_plane.outbounds
        self.mesh_shell.sent(peer, outbounds.send(peer, stream))

    def compute(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self._jobs.compute(work, done)

    def in_turn(self, action: Callable[[], None]) -> None:
        self._jobs.in_turn(action)

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
            self._handle_event(event)

    def _handle_event(self, event: v.Event) -> None:
        """Handle an event and do its commands; not reentrant (`_waiting`)."""
        self._waiting = False
        now = asyncio.get_running_loop().time()
        if v.is_pulse(event):
            self.mesh_shell.heard(event, now)
        commands = self.core.handle(event, now)
        if isinstance(event, v.TrainersLost):
            self._round_jobs.loss_taken()
        if isinstance(event, v.SliceBegun | v.SliceReceived | v.ResultReceived):
            self.data_plane.decided(event, commands)
        elif isinstance(event, v.CellReceived):
            self.snapshots.decided(event, commands)
        elif isinstance(event, v.StepReceived) and self.step_shell is not None:
            self.step_shell.decided(event, commands)
        for command in commands:
            self._do(command)
        self._waiting = True

    # Commands -------------------------------------------------------------------------------

    def _do(self, command: c.Command) -> None:
        match command:
            case c.Send() | c.Connect() | c.Disconnect():
                self.mesh_shell.do(command)
            case c.Persist():
                self._wal_writer.write(command)
            case c.CheckRun(run=run):
                self._listener.check_run(run)
            case c.SendSlice(peer=peer):
                self.mesh_shell.sent(peer, self.data_plane.send_slice(command))
            case c.SendResult(peer=peer):
                self.mesh_shell.sent(peer, self.data_plane.send_result(command))
            case (
                c.AskBlocks()
                | c.SendBlocks()
                | c.CompareBlocks()
                | c.AskCopies()
                | c.CompareCopies()
            ):
                self.mesh_shell.block_checks.do(command)
            case c.ReducePart():
                self.data_plane.reduce(command)
            case c.DropSlices(fragment=fragment, round=round_):
                self.data_plane.drop_slices(fragment, round_)
                self.mesh_shell.block_checks.drop_fragment(fragment)
            case c.DropResult(stamp=stamp, part=part):
                self.data_plane.drop_result(stamp, part)
            case c.Discard():
                pass  # The exchange has not kept this payload.
            case c.Encode() | c.ApplyRound() | c.SkipRound() | c.AdoptKept() | c.ReleaseRound():
                self._round_jobs.do(command)
            case c.Applied() | c.Resume() | c.Leased():
                self._round_jobs.do(command)
            case c.MakeStep() | c.SendStep() | c.ApplyStep() | c.LoadBase() | c.ReleaseSteps():
                self._step(command)
            case c.Observation() | c.Stop():
                self._listener.handle(command)
            case c.CheckProof() | c.AdmissionAnswer() | c.Trust():
                self._listener.handle(command)
            case _:  # A TransferCommand: there is no other one.
                self.snapshots.do(command)

    def _step(self, command: StepCommand) -> None:
        assert self.step_shell is not None, "the core makes steps before RunAccepted"
        self.step_shell.do(command)
