"""A node's peer daemon: composes the core, its shell, the outer state and the ranks.

The command line opens the listening socket before it imports this module. Must NOT import torch (a
test checks this), nor decide anything that all peers must agree on (protocols/).
"""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lowcomm.checkpoints.checkpoint import CHECKPOINTS, Cut
from lowcomm.config.addresses import advertised, check_founder
from lowcomm.config.schema import FileConfig, RunConfig, check_node
from lowcomm.daemon.checkpoint_schedule import CheckpointSchedule
from lowcomm.daemon.event_writer import report, status_json, tell_end, tell_entry
from lowcomm.daemon.founding import refuse_joiners
from lowcomm.daemon.rank_control import RankControl
from lowcomm.daemon.revoke_command import revoke_json
from lowcomm.data.corpus import build_corpus
from lowcomm.exit_codes import EXIT_CONFIG, LEAVE_TIMEOUT_S, exit_code_of
from lowcomm.outer_state.replica import Replica
from lowcomm.outer_state.step_replica import StepReplica
from lowcomm.reports.event_log import EventLog
from lowcomm.startup import memory_budget, startup
from lowcomm.startup.admission import NodeAdmission
from lowcomm.startup.identity import NodeDirectory, exec_time
from lowcomm.startup.start_options import StartOptions
from peers.connections import Bulk, Mesh
from peers.driver import Driver
from peers.exchange import StateTaken, Told
from peers.fault_injection import FaultInjector
from peers.ipc import Question, Status
from peers.processes import available_memory_bytes
from peers.sockets import Listening, known_congestion
from peers.storage import FILE as WAL_FILE
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Chunk
from protocols.messages import log_entries as e
from protocols.peer import PeerCore
from protocols.state import encode_token
from protocols.types import ConfigError, LowcommError, PeerId, RefusedError, Stamp, TensorSpec

FINISH_TIMEOUT_S = 60.0
"""Seconds for the ranks' last evaluation after the run has finished."""


class Daemon:
    """The daemon of one node: call `run()` once; it returns the exit code. Implements
    peers.exchange.interfaces.Listener."""

    def __init__(
        self, config: FileConfig, *, directory: Path, start: StartOptions, listening: Listening
    ) -> None:
        """Lock the node's directory and open its log. Raises ConfigError."""
        self.config = config
        self.run_config: RunConfig | None = config.run
        self.replica: Replica | StepReplica | None = None
        self._start = start
        self.founds = start.kind == "new"  # This node founds the run.
        self._directory = NodeDirectory(directory)
        path = self._directory.path
        used = (path / WAL_FILE).exists() or any((path / CHECKPOINTS).glob("*"))
        if self.founds and used:
            raise ConfigError(
                f"{directory} holds the log or checkpoints of an earlier run: go on with "
                f"`lowcomm resume {directory}`, or start the new run elsewhere with "
                "--set node.directory=PATH"
            )
        self._wal, saved = startup.open_log(path)
        self._record = startup.new_record(
            self._directory,
            config,
            knows_log=saved is not None,
            join=encode_token(start.token) if start.token else start.address,
            command=start.command,
        )
        self._socket = listening.socket
        self.listen_cpu_s = listening.cpu_s
        me = Identity(
            peer=PeerId(self._record.peer),
            name=self._record.name,
            incarnation=self._record.incarnation,
            address=advertised(config.node, listening.address, start.address),
        )
        self._record = replace(self._record, address=me.address)
        self.event_log = EventLog(self._directory.path, peer=me.peer, name=me.name)
        note = self.event_log.note
        self.node_admission = NodeAdmission(path, config.node, token=start.token, note=note)
        if start.kind == "new":
            check_founder(me.address)
            self.node_admission.found(me, start.run_directory)
        kept, self._skipped = startup.kept(path, alone=None if start.address else saved)
        self.core = PeerCore(
            me,
            join=start.kind != "new",
            saved=saved,
            kept=kept,
            contact=start.address,
            rules=startup.known_rules(saved),
        )
        self.driver = Driver(self.core, listener=self, wal=self._wal)
        hook, congestion = self._fault_hook(), known_congestion(config.node.congestion)
        self.mesh = Mesh(self.driver.mesh_shell, on_chunk_sent=hook, congestion=congestion)
        self.driver.use(self.mesh)
        self.checkpoint_schedule = CheckpointSchedule(
            path,
            every_rounds=config.node.checkpoint_every_rounds,
            compute=self.driver.compute,
            written=self._checkpointed,
            failed=lambda why: note("checkpoint", why),
        )
        self.node = RankControl(self, command=start.command)
        self.rejoins_at = ""  # Where to join again, if our branch of the log was given up.
        self.ending: c.Stop | None = None
        """Why this peer ends; None while it runs."""
        self._code = self._signal = 0
        self._stopped = asyncio.Event()
        self._caught_up = False
        """We have read the log entry that admits this incarnation."""
        self._checking: asyncio.Future[None] | None = None

    # Lifetime -------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until the run has finished, or this peer leaves it. All processes, sockets and files
        are closed afterwards."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        self._note_start()
        try:
            async with asyncio.TaskGroup() as group:
                driver = group.create_task(self._guarded(self.driver.run()), name="driver")
                tasks = [
                    driver,
                    group.create_task(self._guarded(self.node.run()), name="ranks"),
                    group.create_task(self._guarded(self._begin()), name="begin"),
                    group.create_task(self._guarded(report(self)), name="report"),
                ]
                await self._stopped.wait()
                if self._start.kind == "new":
                    await refuse_joiners(self)
                await self._end_driver(driver)
                await self._wind_up()
                for task in tasks:
                    task.cancel()
        finally:
            await self.mesh.close()
            self.checkpoint_schedule.close()
            self.event_log.close()
            self._wal.close()
            self._directory.close()
        return self._code

    async def _guarded(self, life: Coroutine[object, object, None]) -> None:
        """If this task fails with an operating error, stop the daemon with its text as the
        reason."""
        try:
            await life
        except ConfigError as error:
            self.stop(str(error), "failed", code=EXIT_CONFIG)
        except RefusedError as error:
            self.stop(str(error), "refused")
        except (LowcommError, OSError) as error:
            self.stop(str(error), "failed")

    async def _begin(self) -> None:
        """Found the run, or start to search for it."""
        me = self.core.me
        await self.node_admission.enter(self.mesh, me, self._start.address, self.driver.feed)
        self.mesh.listen(self._socket)
        self.event_log.write("listening", address=me.address, listen_cpu_s=self.listen_cpu_s)
        for why in self._skipped:
            self.event_log.note("checkpoint", why)
        if not self.founds:
            self.driver.feed(v.DeadlineReached())  # The core starts to dial.
            return
        run = self.run_config
        assert run is not None
        check_node(run, self.config.node)
        digest = await self._corpus(run)
        self.node.configure(run)
        layout = await self.node.initial_layout()
        self._hold(run, layout)
        digests = await self.node.initial_state()
        run_id = startup.new_run_id()
        self._remember(run_id)
        agreed = await asyncio.to_thread(
            startup.run_entry,
            run,
            run_id=run_id,
            founder=self.core.me.peer,
            corpus_digest=digest,
            layout=layout,
        )
        self.driver.feed(startup.accepted(run))
        self.driver.feed(v.Bootstrap(agreed, digests))

    def _hold(self, run: RunConfig, layout: Sequence[TensorSpec]) -> None:
        """Create the outer state of the model. Before that, check that its memory fits:
        ConfigError, with the numbers."""
        peers = max(run.peers_min, len(self.core.run_state.receivers) + 1)
        memory_budget.check_memory(
            startup.memory_needed(run, layout, peers=peers, joins=self._start.kind != "new"),
            memory_max_bytes=self.config.node.memory_max_bytes,
            free_bytes=available_memory_bytes(),
        )
        self.replica = self.driver.data_plane.states = replica = startup.new_replica(run, layout)
        replica.checkpoints = self._directory.path / CHECKPOINTS
        if isinstance(replica, Replica):
            self.driver.data_plane.work = replica
        else:
            self.driver.begin_steps(self.node.step_shell(replica))
        self.event_log.write("layout", params=sum(replica.sizes))
        gc.freeze()  # These objects live on; each collection of them takes 20 to 50 ms.

    async def _corpus(self, run: RunConfig) -> str:
        """Build or reuse this node's copy of the text; return the digest of its manifest."""
        directory = self.corpus_directory
        corpus = await asyncio.to_thread(
            build_corpus, run.data, folder=self.config.node.corpus, directory=directory
        )
        return corpus.digest

    @property
    def path(self) -> Path:
        """This node's directory."""
        return self._directory.path

    @property
    def corpus_directory(self) -> Path:
        return self.path / "corpus"

    # The listener's side --------------------------------------------------------------------

    def check_run(self, run: e.Run) -> None:
        """A joiner has read which run this is: check in a task of its own whether this node can
        take part."""
        task = asyncio.ensure_future(self._guarded(self._check_run(run)))
        self._checking = task

    async def _check_run(self, run: e.Run) -> None:
        if self._record.run and self._record.run != run.run:
            raise RefusedError(
                f"{self._directory.path} holds another run: give this node a "
                "directory of its own (--set node.directory=PATH)"
            )
        agreed = startup.agreed_run(run, self.config.run)
        check_node(agreed, self.config.node)
        kept = await asyncio.to_thread(startup.own_rank_state, self._directory.path)
        self.checkpoint_schedule.kept_rank_state = kept
        digest = await self._corpus(agreed)
        if digest != run.corpus_digest:
            raise RefusedError(
                "this node's text is not the run's (another Python version, or other files): "
                "every node needs the same bytes"
            )
        layout = await asyncio.to_thread(startup.agreed_layout, run)
        self.run_config = agreed
        self._remember(run.run)
        self._hold(agreed, layout)
        self.node.configure(agreed)
        self.driver.feed(startup.accepted(agreed))

    def handle(self, command: Told) -> None:
        """Do a command of the core that does not move bytes."""
        match command:
            case c.Sign() | c.Answer() | c.GiveKey() | c.TakeKey():
                self.node_admission.do(command)
            case c.Resume():
                self.node.resume(command)
            case c.Leased():
                self.node.leased(command)
            case c.Applied():
                self._tell(command)
            case c.Note(kind=kind, text=text):
                self.event_log.note(kind, text)
            case c.Stop(why=why, outcome=outcome, contact=contact):
                self.rejoins_at = contact
                self.stop(why, outcome)

    def applied(self, stamp: Stamp, state_digest: str) -> None:
        """The outer step of this committed round is done."""
        assert self.replica is not None
        fragment, round_ = stamp.fragment, stamp.round
        if stamp.lineage != self.core.run_state.lineage:
            return  # A rollback took the round back meanwhile.
        commit = self.core.run_state.commit(fragment, round_)
        if commit is not None:
            self.event_log.write(
                "commit",
                fragment=fragment,
                round=round_,
                attempt=commit.attempt,
                roster=[x.peer for x in commit.contributors],
                tokens=sum(x.tokens for x in commit.contributors),
                counted=self.core.me.peer in [x.peer for x in commit.contributors],
                state_digest=state_digest,
                inner_step=self.core.run_state.inner_step,
                lineage=f"{stamp.lineage:016x}",
            )
        if fragment == 0 and self.checkpoint_schedule.is_due(round_):
            self.checkpoint_schedule.begin(self.core, self.replica)

    def _checkpointed(self, path: Path, cut: Cut) -> None:
        self.event_log.write("checkpoint", path=str(path), round=cut.round)
        self.driver.feed(v.Checkpointed(startup.kept_in(cut)))

    def reduced(self, stamp: Stamp, seconds: float) -> None:
        self.event_log.write("reduced", fragment=stamp.fragment, round=stamp.round, seconds=seconds)

    def served(self, peer: PeerId, size_bytes: int) -> None:
        self.event_log.write("snapshot_served", to=peer, size_bytes=size_bytes)

    def received_state(self, state: StateTaken) -> None:
        self.event_log.write("snapshot_received", **asdict(state))
        assert self.replica is not None
        self.node.provide(self.core.run_state.seats[self.core.me.peer].slot)
        self.checkpoint_schedule.begin(
            self.core, self.replica
        )  # If all nodes die, the state is on disk.

    def _tell(self, command: c.Applied) -> None:
        """Write an applied log entry to the event log, and do what follows from it for checkpoints
        and ranks."""
        event_log, entry, me = self.event_log, command.entry, self.core.me.peer
        if isinstance(entry, e.Run) and self.founds:
            assert self.replica is not None
            self.checkpoint_schedule.begin(self.core, self.replica)  # The initial state.
        if isinstance(entry, e.Restore):
            ended = {f"{branch.lineage:016x}" for branch in self.core.run_state.branches}
            self.checkpoint_schedule.take_back(entry.versions[0].round, ended=ended)
        if isinstance(entry, e.Cut | e.Member):
            event_log.names[entry.info.peer] = entry.info.name
            ours = (entry.info.peer, entry.info.incarnation)
            if ours == (me, self.core.me.incarnation):
                self._caught_up = True
                if isinstance(entry, e.Member):  # After a Cut, received_state does.
                    self.node.provide(entry.info.slot)
        if not self._caught_up:
            return  # Older entries: other nodes wrote events of them at the time.
        tokens = self.run_config.data.step_tokens if self.run_config is not None else 0
        tell_entry(event_log, command, self.core, step_tokens=tokens)

    # Ending ---------------------------------------------------------------------------------

    def stop(self, why: str, outcome: c.Outcome, *, code: int | None = None) -> None:
        """End this daemon. If it is ending already, the first reason stays."""
        if self.ending is None:
            self.ending = c.Stop(why, outcome)
            self._code = exit_code_of(outcome, signalled=self._signal) if code is None else code
            self._stopped.set()

    async def _end_driver(self, driver: asyncio.Task[None]) -> None:
        """If the core has stopped, wait until the last outer step has reached the ranks. If not,
        cancel the driver: another outer step would overwrite arrays that the last checkpoint
        reads."""
        if not self.core.stopped:
            driver.cancel()
        await asyncio.wait([driver])

    async def _wind_up(self) -> None:
        """If the run has finished, let the ranks finish; then write the last checkpoint and
        event."""
        assert self.ending is not None
        if self.ending.outcome == "finished":
            await self.node.wait_finished(FINISH_TIMEOUT_S)
        if self.replica is not None and self.ending.outcome != "refused":
            await self.checkpoint_schedule.finish(self.core, self.replica)
        tell_end(self, self.ending, kept=self._directory.path / startup.DROPPED)

    def _signalled(self, number: signal.Signals) -> None:
        if self.ending is not None or self.core.member_status.leaving:
            return
        self._signal = number
        if not self.node_admission.entered:
            self.stop(number.name, "left")  # No peer knows us yet, and nothing is sent unencrypted.
            return
        self.driver.feed(v.LeaveRequested(number.name))
        asyncio.get_running_loop().call_later(LEAVE_TIMEOUT_S, self.stop, number.name, "left")

    # Events and answers ---------------------------------------------------------------------

    def _note_start(self) -> None:
        self._record = replace(self._record, bus=self.node.bus_endpoint)
        self._directory.write(self._record)
        self.event_log.write(
            "start",
            pid=os.getpid(),
            exec_t=exec_time(),
            incarnation=self.core.me.incarnation,
            ranks=self.config.node.ranks,
            params=0,
        )

    def answer(self, question: Question) -> str:
        """The answer, in JSON, to `lowcomm status`, a live view or `lowcomm revoke`."""
        return status_json(self) if isinstance(question, Status) else revoke_json(self, question)

    # Helpers --------------------------------------------------------------------------------

    def _remember(self, run_id: int) -> None:
        self._record = replace(self._record, run=run_id)
        self._directory.write(self._record)

    def _fault_hook(self) -> Callable[[PeerId, Chunk, Bulk], None] | None:
        if self._start.fault is None:
            return None
        injector = FaultInjector(
            self._start.fault, lambda what: self.event_log.write("fault", what=what)
        )
        return injector.chunk_sent
