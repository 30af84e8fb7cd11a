"""A node's peer daemon: composes the core, its shell, the outer state and the ranks.

Listens first and loads the rest afterwards. Must NOT import torch (a test looks), nor decide
anything that all peers must agree on: that is protocols/.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from lowcomm.checkpointer import Checkpointer
from lowcomm.config import FileConfig, RunConfig, check_node
from lowcomm.data.corpus import build_corpus
from lowcomm.identity import NodeDirectory, Record, exec_time, new_peer_id, node_name
from lowcomm.journal import Journal
from lowcomm.methods import method
from lowcomm.node_side import NodeSide
from lowcomm.replica import Replica, check_memory, free_memory_bytes
from lowcomm.reporting import report_metrics, status_json
from lowcomm.startup import (
    Restored,
    agreed_run,
    new_run_id,
    own_rank_state,
    restore,
    run_entry,
)
from peers.driver import Driver
from peers.faults import Fault, FaultInjector
from peers.link import Link
from peers.listening import Listening
from peers.mesh import Mesh
from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols.core import PeerCore
from protocols.errors import ConfigError, LowcommError, RefusedError
from protocols.hellos import Identity
from protocols.ids import PeerId, TensorSpec
from protocols.messages import Message

FINISH_TIMEOUT_S = 60.0
"""For the ranks' last evaluation after the run is over."""
LEAVE_TIMEOUT_S = 1.5
"""For the leader to write down that we leave."""
EXIT_CONFIG = 2
EXIT_CODES = {"finished": 0, "left": 0, "refused": 3, "failed": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How this daemon comes into the run."""

    kind: Literal["new", "join", "restore"]
    address: str = ""
    """Of any peer of the run, to join."""
    command: tuple[str, ...] = ()
    """The user's own training program; empty is lowcomm's worker."""
    fault: Fault | None = None


class Daemon:
    """`run()` once; returns the exit code. Implements peers.work.Listener."""

    def __init__(
        self, config: FileConfig, *, directory: Path, start: Start, listening: Listening
    ) -> None:
        """Takes the node's directory. Raises ConfigError."""
        self.config = config
        self.run_config: RunConfig | None = config.run
        self.replica: Replica | None = None
        self._start = start
        self._directory = NodeDirectory(directory)
        self._record = self._new_record()
        self._socket = listening.socket
        self.listen_cpu_s = listening.cpu_s
        me = Identity(
            peer=PeerId(self._record.peer),
            name=self._record.name,
            incarnation=self._record.incarnation,
            address=config.node.advertise or listening.address,
        )
        self._record = replace(self._record, address=me.address)
        self.journal = Journal(self._directory.path, peer=me.peer, name=me.name)
        self.core = PeerCore(me, join=start.kind == "join")
        self.driver = Driver(self.core, listener=self)
        self.mesh = Mesh(self.driver, on_chunk_sent=self._fault_hook())
        self.driver.mesh = self.mesh
        self.checkpointer = Checkpointer(
            self._directory.path,
            every_rounds=config.node.checkpoint_every_rounds,
            written=lambda path, round_: self.journal.write(
                "checkpoint", path=str(path), round=round_
            ),
            failed=lambda why: self.journal.write("note", topic="checkpoint", text=why),
        )
        self.node = NodeSide(self, command=start.command)
        self._restored: Restored | None = None
        self._rank_state: Path | None = None
        """What the ranks' optimizers had in an earlier life."""
        self._stop: c.Stop | None = None
        self._code = 0
        self._stopped = asyncio.Event()
        self._caught_up = False
        """The log has come to the entry that lets us in."""
        self._checking: asyncio.Future[None] | None = None

    # Life -----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until the run is finished, or this peer leaves it. Leaves nothing behind."""
        me = self.core.me
        self._note_start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, signal.Signals(number).name)
        try:
            await self.mesh.listen(self._socket)
            self.journal.write("listening", address=me.address, listen_cpu_s=self.listen_cpu_s)
            async with asyncio.TaskGroup() as group:
                driver = group.create_task(self._guarded(self.driver.run()), name="driver")
                tasks = [
                    driver,
                    group.create_task(self._guarded(self.node.run()), name="ranks"),
                    group.create_task(self._guarded(self._begin()), name="begin"),
                    group.create_task(report_metrics(self), name="report"),
                ]
                await self._stopped.wait()
                if self.core.stopped:
                    await driver  # The last outer step reaches the ranks.
                await self._wind_up()
                for task in tasks:
                    task.cancel()
        finally:
            await self.mesh.close()
            self.checkpointer.close()
            self.journal.close()
            self._directory.close()
        return self._code

    async def _guarded(self, life: Coroutine[object, object, None]) -> None:
        """Turn an operating error of one part into one line and the end of this daemon."""
        try:
            await life
        except ConfigError as error:
            self.stop(str(error), "failed", code=EXIT_CONFIG)
        except RefusedError as error:
            self.stop(str(error), "refused")
        except (LowcommError, OSError) as error:
            self.stop(str(error), "failed")

    async def _begin(self) -> None:
        """Start the run, take it up again, or go and join it."""
        if self._start.kind == "join":
            self.mesh.connect(self._start.address, peer="")
            return
        assert self.run_config is not None
        check_node(self.run_config, self.config.node)
        if self._start.kind == "restore":
            self._restored = await asyncio.to_thread(restore, self._directory.path, self.run_config)
            self._rank_state = self._restored.rank_state
            for why in self._restored.skipped:
                self.journal.write("note", topic="checkpoint", text=why)
        digest = await self._corpus(self.run_config)
        self.node.configure(self.run_config)
        if self._restored is None:
            layout = await self.node.initial_layout()
            self._check_memory(layout)
            self._hold(Replica(method(self.run_config.method), layout))
            digests = await self.node.initial_state()
            entry = None
        else:
            layout, digests = self._restored.replica.layout, self._restored.state_digests
            entry = self._restored.entry
            self._hold(self._restored.replica)
        run_id = self._record.run if self._restored is not None else new_run_id()
        self._remember(run_id)
        agreed = run_entry(self.run_config, run_id=run_id, corpus_digest=digest, layout=layout)
        self.driver.feed(v.RunAccepted(self.run_config.protocol))
        self.driver.feed(v.Bootstrap(agreed, entry, digests))

    def _hold(self, replica: Replica) -> None:
        self.replica = replica
        self.driver.arithmetic = replica
        self.journal.write("layout", params=sum(replica.sizes))

    def _check_memory(self, layout: Sequence[TensorSpec]) -> None:
        """Refuse with figures, before anything is allocated."""
        check_memory(
            layout,
            memory_max_bytes=self.config.node.memory_max_bytes,
            free_bytes=free_memory_bytes(),
        )

    async def _corpus(self, run: RunConfig) -> str:
        """Build or reuse this node's copy of the text; return its manifest's digest."""
        directory = self.corpus_directory
        corpus = await asyncio.to_thread(
            build_corpus, run.data, folder=self.config.node.corpus, directory=directory
        )
        return corpus.digest

    @property
    def corpus_directory(self) -> Path:
        return self._directory.path / "corpus"

    # The listener's side --------------------------------------------------------------------

    def check_run(self, run: e.Run) -> None:
        """We join: see whether this node can take part, in a task of its own."""
        task = asyncio.ensure_future(self._guarded(self._check_run(run)))
        self._checking = task

    async def _check_run(self, run: e.Run) -> None:
        if self._record.run and self._record.run != run.run:
            raise RefusedError(
                f"{self._directory.path} belongs to another run: use an empty directory"
            )
        agreed = agreed_run(run, self.config.run)
        check_node(agreed, self.config.node)
        self._rank_state = await asyncio.to_thread(own_rank_state, self._directory.path)
        digest = await self._corpus(agreed)
        if digest != run.corpus_digest:
            raise RefusedError(
                "this node's text is not the run's (another Python version, or other files): "
                "every node needs the same bytes"
            )
        self.run_config = agreed
        self._remember(run.run)
        self._check_memory(run.layout)
        self._hold(Replica(method(agreed.method), run.layout))
        self.node.configure(agreed)
        self.driver.feed(v.RunAccepted(agreed.protocol))

    def handle(self, command: c.Resume | c.Applied | c.Note | c.Stop) -> None:
        """What the core decided, beyond moving bytes."""
        match command:
            case c.Resume():
                self.node.resume(command)
            case c.Applied():
                self._tell(command)
            case c.Note(kind=kind, text=text):
                self.journal.write("note", topic=kind, text=text)
            case c.Stop(why=why, outcome=outcome):
                self.stop(why, outcome)

    def applied(self, fragment: int, round_: int, state_digest: str) -> None:
        """The outer step of a committed round is made."""
        assert self.replica is not None
        commit = self.core.members.commit(fragment, round_)
        if commit is not None:
            self.journal.write(
                "commit",
                fragment=fragment,
                round=round_,
                attempt=commit.attempt,
                roster=[x.peer for x in commit.contributors],
                tokens=sum(x.tokens for x in commit.contributors),
                counted=self.core.me.peer in [x.peer for x in commit.contributors],
                state_digest=state_digest,
                inner_step=self.core.members.inner_step,
            )
        if fragment == 0 and self.checkpointer.is_due(round_):
            self.checkpointer.begin(self.core, self.replica)

    def served(self, peer: PeerId, size_bytes: int) -> None:
        self.journal.write("snapshot_served", to=peer, size_bytes=size_bytes)

    def received_state(self, donor: PeerId, size_bytes: int, seconds: float) -> None:
        self.journal.write("snapshot_received", donor=donor, size_bytes=size_bytes, seconds=seconds)

    def _tell(self, command: c.Applied) -> None:
        """Log entries as events; and what follows from them for the ranks."""
        journal, entry, me = self.journal, command.entry, self.core.me.peer
        if isinstance(entry, e.Cut | e.Member):
            journal.names[entry.info.peer] = entry.info.name
            if entry.info.peer == me:
                self._caught_up = True
                self.node.provide(entry.info.slot, self._rank_state)
        if not self._caught_up:
            return  # History from before our time: others told it when it happened.
        match entry:
            case e.Member(info=info):
                journal.write(
                    "member", member=info.peer, member_name=info.name, index=command.index
                )
            case e.Left(peer=peer, why=why) | e.Lost(peer=peer, why=why):
                kind = "left" if isinstance(entry, e.Left) else "lost"
                name = self.core.name_of(peer)
                journal.write(kind, member=peer, member_name=name, why=why)
            case e.View(view=view, roster=roster, first_round=first):
                journal.write("view", view=view, roster=list(roster), first_round=first[0])
            case e.Attempt():
                journal.write(
                    "attempt",
                    fragment=entry.fragment,
                    round=entry.round,
                    attempt=entry.attempt,
                    roster=list(entry.roster),
                    why=entry.why,
                )
            case _:
                pass  # Commits are told when they are applied; the rest is no news for people.

    # Ending ---------------------------------------------------------------------------------

    def stop(self, why: str, outcome: c.Outcome, *, code: int | None = None) -> None:
        """The first reason counts."""
        if self._stop is None:
            self._stop = c.Stop(why, outcome)
            self._code = EXIT_CODES[outcome] if code is None else code
            self._stopped.set()

    async def _wind_up(self) -> None:
        """Let the ranks finish if the run is finished; keep what was reached."""
        assert self._stop is not None
        if self._stop.outcome == "finished":
            await self.node.wait_finished(FINISH_TIMEOUT_S)
        if self.replica is not None and self._stop.outcome != "refused":
            await self.checkpointer.finish(self.core, self.replica)
        sent, received = self.mesh.bytes_moved()
        if self._stop.outcome == "finished" and self.replica is not None:
            version, digest = self.replica.version(0)
            self.journal.write(
                "finished",
                outer_steps=version,
                bytes_sent=sent,
                bytes_received=received,
                state_digest=digest,
            )
        elif self._stop.outcome == "left":
            self.journal.write("stopped", why=self._stop.why)
        else:
            self.journal.record("stopped", why=self._stop.why)
            print(f"lowcomm: {self._stop.why}", file=sys.stderr)  # noqa: T201

    def _signalled(self, name: str) -> None:
        if self._stop is None and not self.core.leaving:
            self.driver.feed(v.LeaveRequested(name))
            asyncio.get_running_loop().call_later(LEAVE_TIMEOUT_S, self.stop, name, "left")

    # What people see ------------------------------------------------------------------------

    def _note_start(self) -> None:
        self._record = replace(self._record, bus=self.node.bus_endpoint)
        self._directory.write(self._record)
        self.journal.write(
            "start",
            pid=os.getpid(),
            exec_t=exec_time(),
            incarnation=self.core.me.incarnation,
            ranks=self.config.node.ranks,
            params=0,
        )

    def status(self) -> str:
        """JSON for `lowcomm status` and live views."""
        return status_json(self)

    # Helpers --------------------------------------------------------------------------------

    def _new_record(self) -> Record:
        """The same peer as before in this directory, in its next life."""
        old = self._directory.read()
        name = node_name(self.config.node.name)
        return Record(
            peer=old.peer if old else new_peer_id(name),
            name=name,
            incarnation=old.incarnation + 1 if old else 1,
            run=old.run if old else 0,
            leads=self._start.kind != "join",
            join=self._start.address,
            config=json.dumps(asdict(self.config)),
            command=self._start.command,
            pid=os.getpid(),
        )

    def _remember(self, run_id: int) -> None:
        self._record = replace(self._record, run=run_id)
        self._directory.write(self._record)

    def _fault_hook(self) -> Callable[[PeerId, Message, Link], None] | None:
        if self._start.fault is None:
            return None
        injector = FaultInjector(
            self._start.fault, lambda what: self.journal.write("fault", what=what)
        )
        return injector.chunk_sent
