"""A node's peer daemon: composes the core, its shell, the outer state and the ranks.

The command line opens the listening socket before it imports this module. Must NOT import torch (a
test checks this), nor decide anything that all peers must agree on (protocols/).
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from lowcomm.checkpoints.checkpoint import CHECKPOINTS, CheckpointCut
from lowcomm.config.addresses import advertised, check_founder
from lowcomm.config.schema import FileConfig
from lowcomm.daemon.acts import act_json
from lowcomm.daemon.bootstrap import enter_run, found_run, refuse_joiners
from lowcomm.daemon.checkpoint_command import checkpoint_json
from lowcomm.daemon.event_writer import report, status_json, tell_end, tell_entry
from lowcomm.daemon.shutdown import Shutdown
from lowcomm.daemon.token_list import audit_json, tokens_json
from lowcomm.rank_control.checkpoint_schedule import CheckpointSchedule
from lowcomm.rank_control.context import DaemonContext
from lowcomm.rank_control.rank_control import RankControl
from lowcomm.reports.event_log import EventLog
from lowcomm.startup import agreement, startup
from lowcomm.startup.admission import NodeAdmission
from lowcomm.startup.identity import NodeDirectory, RunningRecord, exec_time
from lowcomm.startup.start_options import StartOptions
from peers.connections import Bulk, Mesh
from peers.driver import Driver
from peers.exchange import StateTaken, Told
from peers.fault_injection import FaultInjector, Lie
from peers.ipc import ListActs, ListTokens, MakeCheckpoint, Question, Status
from peers.sockets import BoundSocket, known_congestion
from peers.storage import FILE as WAL_FILE
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Chunk
from protocols.messages import log_entries as e
from protocols.peer import PeerCore
from protocols.state import encode_token
from protocols.types import ConfigError, PeerId, Stamp

FINISH_TIMEOUT_S = 60.0
"""Seconds for the ranks' last evaluation after the run has finished."""


class Daemon:
    """The daemon of one node: call `run()` once; it returns the exit code. Implements
    peers.exchange.interfaces.Listener."""

    def __init__(
        self, config: FileConfig, *, directory: Path, start: StartOptions, listening: BoundSocket
    ) -> None:
        """Lock the node's directory and open its log. Raises ConfigError."""
        self._directory = NodeDirectory(directory)
        path, founds = self._directory.path, start.kind == "new"
        _check_unused(directory, founds=founds)
        self._wal, saved = startup.open_log(path)
        record = startup.new_record(
            self._directory,
            config,
            knows_log=saved is not None,
            join=encode_token(start.token) if start.token else start.address,
            command=start.command,
        )
        self._socket = listening.socket
        me = Identity(
            peer=PeerId(record.peer),
            name=record.name,
            incarnation=record.incarnation,
            address=advertised(config.node, listening.address, start.address),
        )
        self._record = RunningRecord(self._directory, replace(record, address=me.address))
        event_log = EventLog(path, peer=me.peer, name=me.name)
        note = event_log.note
        self.node_admission = NodeAdmission(
            path, config.node, token=start.token, contact=start.address, note=note
        )
        if founds:
            check_founder(me.address)
            self.node_admission.found(me, start.run_directory)
        kept, self._skipped = startup.kept(path, alone=None if start.address else saved)
        core = PeerCore(
            me,
            join=not founds,
            saved=saved,
            kept=kept,
            contacts=start.contacts,
            rules=agreement.known_rules(saved),
            signatures=self.node_admission.signatures,
        )
        driver = Driver(core, listener=self, wal=self._wal)
        self.context = context = DaemonContext(
            config=config,
            path=path,
            founds=founds,
            listen_cpu_s=listening.cpu_s,
            core=core,
            driver=driver,
            mesh=_mesh(driver, start, event_log, known_congestion(config.node.congestion)),
            event_log=event_log,
            checkpoint_schedule=CheckpointSchedule(
                path,
                node=config.node,
                compute=driver.compute,
                written=self._checkpointed,
                failed=lambda why: note("checkpoint", why),
            ),
            run_config=config.run,
        )
        driver.use(context.mesh)
        self.shutdown = ends = Shutdown(core, driver, self.node_admission)
        stop, leave = ends.end_daemon, ends.leave
        self.ranks = RankControl(context, start=start, stop=stop, leave=leave, answer=self.answer)
        self.rejoins_at = ""  # Where to join again, if our branch of the log was given up.
        self._caught_up = False
        """We have read the log entry that admits this incarnation."""
        self._checking: asyncio.Future[None] | None = None

    # Lifetime -------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until the run has finished, or this peer leaves it. All processes, sockets and files
        are closed afterwards."""
        context, guarded = self.context, self.shutdown.guarded
        self.shutdown.listen_for_signals()
        self._note_start()
        try:
            async with asyncio.TaskGroup() as group:
                driver = group.create_task(guarded(context.driver.run()), name="driver")
                tasks = [
                    driver,
                    group.create_task(guarded(self.ranks.run()), name="ranks"),
                    group.create_task(guarded(self._begin()), name="begin"),
                    group.create_task(guarded(report(context, self.ranks.group)), name="report"),
                ]
                requested = self.shutdown.requested
                await requested.wait()
                if context.founds:
                    await refuse_joiners(context, self.shutdown.ending)
                await self._end_driver(driver)
                await self._wind_up()
                for task in tasks:
                    task.cancel()
        finally:
            if self._checking is not None:  # Its thread may write into the directory.
                self._checking.cancel()
                await asyncio.wait([self._checking])
            await context.mesh.close()
            await self.node_admission.close()
            context.checkpoint_schedule.close()
            context.event_log.close()
            self._wal.close()
            self._directory.close()
        return self.shutdown.code

    async def _begin(self) -> None:
        """Found the run, or start to search for it."""
        context = self.context
        me, feed = context.core.me, context.driver.feed
        self._record.remember_contact(await self.node_admission.enter(context.mesh, me, feed))
        context.mesh.listen(self._socket)
        context.event_log.write("listening", address=me.address, listen_cpu_s=context.listen_cpu_s)
        for why in self._skipped:
            context.event_log.note("checkpoint", why)
        if context.founds:
            await found_run(context, self.ranks, self._record, self.node_admission)
        else:
            feed(v.DeadlineReached())  # The core starts to dial.

    # The listener's side --------------------------------------------------------------------

    def check_run(self, run: e.Run) -> None:
        """A joiner has read which run this is: check in a task of its own whether this node can
        take part."""
        check = enter_run(self.context, self.ranks, self._record, run)
        self._checking = asyncio.ensure_future(self.shutdown.guarded(check))

    def handle(self, command: Told) -> None:
        """Do a command of the core that does not move bytes."""
        event_log, rounds = self.context.event_log, self.ranks.rounds
        match command:
            case c.CheckProof() | c.AdmissionAnswer() | c.Trust():
                self.node_admission.do(command)
            case c.Resume():
                rounds.resume(command)
            case c.Leased():
                rounds.leased(command)
            case c.Applied():
                self._tell(command)
            case c.Observation(kind=kind, text=text):
                event_log.note(kind, text)
            case c.Stop(why=why, outcome=outcome, contact=contact):
                self.rejoins_at = contact
                self.shutdown.end_daemon(why, outcome)

    def applied(self, stamp: Stamp, state_digest: str) -> None:
        """The outer step of this committed round is done."""
        context = self.context
        assert context.replica is not None
        core, fragment, round_ = context.core, stamp.fragment, stamp.round
        if stamp.lineage != core.run_state.lineage:
            return  # A rollback took the round back meanwhile.
        commit = core.run_state.commit(fragment, round_)
        if commit is not None:
            context.event_log.write(
                "commit",
                fragment=fragment,
                round=round_,
                attempt=commit.attempt,
                roster=[x.peer for x in commit.contributors],
                tokens=sum(x.tokens for x in commit.contributors),
                counted=core.me.peer in [x.peer for x in commit.contributors],
                state_digest=state_digest,
                inner_step=core.run_state.inner_step,
                lineage=f"{stamp.lineage:016x}",
            )
        if fragment == 0 and context.checkpoint_schedule.is_due(round_):
            # Of a round that comes again after a rollback; the ranks have not got its result yet.
            context.checkpoint_schedule.fresh_rank_state(round_)
            context.checkpoint_schedule.begin_writing(core, context.replica)

    def _checkpointed(self, path: Path, cut: CheckpointCut) -> None:
        event_log, driver = self.context.event_log, self.context.driver
        event_log.write("checkpoint", path=str(path), round=cut.round)
        driver.feed(v.Checkpointed(startup.kept_in(cut)))

    def reduced(self, stamp: Stamp, seconds: float) -> None:
        event_log = self.context.event_log
        event_log.write("reduced", fragment=stamp.fragment, round=stamp.round, seconds=seconds)

    def served(self, peer: PeerId, size_bytes: int) -> None:
        event_log = self.context.event_log
        event_log.write("snapshot_served", to=peer, size_bytes=size_bytes)

    def received_state(self, state: StateTaken) -> None:
        context, core = self.context, self.context.core
        context.event_log.write("snapshot_received", **asdict(state))
        assert context.replica is not None
        self.ranks.provide(core.run_state.seats[core.me.peer].slot)
        # If all nodes die, the state is on disk.
        context.checkpoint_schedule.begin_writing(core, context.replica)

    def _tell(self, command: c.Applied) -> None:
        """Write an applied log entry to the event log, and do what follows from it for checkpoints
        and ranks."""
        context, core, entry = self.context, self.context.core, command.entry
        if isinstance(entry, e.Run) and context.founds:
            assert context.replica is not None
            # The initial state.
            context.checkpoint_schedule.begin_writing(core, context.replica)
        if isinstance(entry, e.Restore):
            context.checkpoint_schedule.take_back(entry.versions[0].round, core.run_state)
        if isinstance(entry, e.Cut | e.Member):
            context.event_log.names[entry.info.peer] = entry.info.name
            ours = (entry.info.peer, entry.info.incarnation)
            if ours == (core.me.peer, core.me.incarnation):
                self._caught_up = True
                if isinstance(entry, e.Member):  # After a Cut, received_state does.
                    self.ranks.provide(entry.info.slot)
        if not self._caught_up:
            return  # Older entries: other nodes wrote events of them at the time.
        run = context.run_config
        tokens = run.data.step_tokens if run is not None else 0
        tell_entry(context.event_log, command, core, step_tokens=tokens)

    # Ending ---------------------------------------------------------------------------------

    async def _end_driver(self, driver: asyncio.Task[None]) -> None:
        """If the core has stopped, wait until the last outer step has reached the ranks. If not,
        cancel the driver: another outer step would overwrite arrays that the last checkpoint
        reads."""
        core = self.context.core
        if not core.stopped:
            driver.cancel()
        await asyncio.wait([driver])

    async def _wind_up(self) -> None:
        """If the run has finished, let the ranks finish; then write the last checkpoint and
        event."""
        context, ending = self.context, self.shutdown.ending
        assert ending is not None
        if ending.outcome == "finished":
            await self.ranks.wait_finished(FINISH_TIMEOUT_S)
        if context.replica is not None and ending.outcome != "refused":
            await context.checkpoint_schedule.finish(context.core, context.replica)
        kept = context.path / startup.DROPPED
        tell_end(context, ending, contact=self.rejoins_at, kept=kept)

    # Events and answers ---------------------------------------------------------------------

    def _note_start(self) -> None:
        context, group = self.context, self.ranks.group
        me, rendezvous = context.core.me, group.rendezvous
        self._record.remember_bus(rendezvous.bus_endpoint)
        event_log = self.context.event_log
        event_log.write(
            "start",
            pid=os.getpid(),
            exec_t=exec_time(),
            incarnation=me.incarnation,
            ranks=context.node.ranks,
            params=0,
        )

    def answer(self, question: Question) -> str:
        """The answer, in JSON, to a question of a command or a live view."""
        context = self.context
        if isinstance(question, Status):
            return status_json(context, self.ranks.group)
        if isinstance(question, ListTokens):
            return tokens_json(context.core.run_state)
        if isinstance(question, ListActs):
            return audit_json(context.core.run_state)
        if isinstance(question, MakeCheckpoint):
            return checkpoint_json(context, question)
        return act_json(context.core, context.driver.feed, question)


def _check_unused(directory: Path, *, founds: bool) -> None:
    """Raises ConfigError on a founder if another run has left its state here."""
    if founds and ((directory / WAL_FILE).exists() or any((directory / CHECKPOINTS).glob("*"))):
        raise ConfigError(
            f"{directory} holds the log or checkpoints of an earlier run: go on with "
            f"`lowcomm resume {directory}`, or start the new run elsewhere with "
            "--set node.directory=PATH"
        )


def _mesh(driver: Driver, start: StartOptions, event_log: EventLog, congestion: str) -> Mesh:
    """The node's connections, and the fault that it was told to have."""
    hook: Callable[[PeerId, Chunk, Bulk], None] | None = None
    if isinstance(start.fault, Lie):
        driver.data_plane.reducer.falsify = start.fault.falsify
    elif start.fault is not None:
        injector = FaultInjector(start.fault, lambda what: event_log.write("fault", what=what))
        hook = injector.chunk_sent
    return Mesh(driver.mesh_shell, on_chunk_sent=hook, congestion=congestion)
