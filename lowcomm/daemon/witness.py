"""`lowcomm witness`: a peer that votes on the run's log and does nothing else (protocol.md 2).

It runs the same core and shell as a node's daemon, without ranks, outer state or data. Must NOT
import torch, nor hold an array (startup/startup.py imports numpy): it must run on a small machine.
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowcomm.config.addresses import advertised
from lowcomm.config.schema import FileConfig, RunConfig
from lowcomm.daemon.event_writer import report_traffic, tell_entry, tell_traffic
from lowcomm.daemon.gauges import figures_of, served
from lowcomm.daemon.shutdown import Shutdown
from lowcomm.daemon.witness_bus import witness_answer, witness_bus
from lowcomm.reports.event_log import EventLog
from lowcomm.startup import agreement, startup
from lowcomm.startup.admission import NodeAdmission
from lowcomm.startup.identity import NodeDirectory, RunningRecord, exec_time
from lowcomm.startup.start_options import contacts
from peers.connections import Mesh
from peers.driver import Driver
from peers.exchange import StateTaken, Told
from peers.ipc import Question, serve
from peers.sockets import BoundSocket
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Run
from protocols.peer import PeerCore
from protocols.state import Token, encode_token
from protocols.types import ConfigError, LowcommError, PeerId, RefusedError, Stamp

if TYPE_CHECKING:
    from peers.metrics import Figures


class WitnessDaemon:
    """The daemon of a witness: call `run()` once; it returns the exit code. Implements
    peers.exchange.interfaces.Listener."""

    def __init__(
        self,
        config: FileConfig,
        *,
        directory: Path,
        address: str,
        token: Token | None,
        listening: BoundSocket,
    ) -> None:
        """Lock the directory and open its log. `address`: the address of any peer of the run;
        `token`: the token to join with, if this node has no certificate.

        Raises ConfigError.
        """
        node_directory = NodeDirectory(directory)
        self._wal, saved = startup.open_log(node_directory.path)
        record = startup.new_record(
            node_directory,
            config,
            knows_log=saved is not None,
            join=encode_token(token) if token else address,
            witness=True,
        )
        self._listening = listening
        me = Identity(
            peer=PeerId(record.peer),
            name=record.name,
            incarnation=record.incarnation,
            address=advertised(config.node, listening.address, address),
            witness=True,
        )
        self._record = RunningRecord(node_directory, replace(record, address=me.address))
        self._record.write()
        self.event_log = EventLog(node_directory.path, peer=me.peer, name=me.name)
        rules = agreement.known_rules(saved)
        note, path = self.event_log.note, node_directory.path
        self._node_admission = NodeAdmission(
            path, config.node, token=token, contact=address, note=note, witness=True
        )
        self.core = PeerCore(
            me,
            join=True,
            saved=saved,
            contacts=contacts(address, token),
            rules=rules,
            signatures=self._node_admission.signatures,
        )
        self._driver = Driver(self.core, listener=self, wal=self._wal)
        self._mesh = Mesh(self._driver.mesh_shell)
        self._driver.use(self._mesh)
        self._shutdown = Shutdown(self.core, self._driver, self._node_admission)
        self._metrics = config.node.metrics
        self._agreed: RunConfig | None = None
        self._caught_up = False

    @property
    def rejoins_at(self) -> str:
        """The address at which to join again, if our branch of the log was given up; else ""."""
        ending = self._shutdown.ending
        return ending.contact if ending is not None else ""

    async def run(self) -> int:
        """Run until the run ends, or a signal or a command ends this witness. All sockets and files
        are closed afterwards."""
        me, requested = self.core.me, self._shutdown.requested
        self.event_log.write(
            "start",
            pid=os.getpid(),
            exec_t=exec_time(),
            incarnation=me.incarnation,
            ranks=0,
            params=0,
        )
        self._shutdown.listen_for_signals()
        try:
            async with asyncio.TaskGroup() as group:
                bus = group.create_task(self._answer(), name="bus")
                counters = self._driver.counters
                driver = group.create_task(self._drive(), name="driver")
                report = group.create_task(self._report(), name="report")
                await requested.wait()
                if self.core.stopped:
                    await driver
                tell_traffic(self.event_log, counters)
                for task in (driver, report, bus):
                    task.cancel()
        finally:
            await self._mesh.close()
            await self._node_admission.close()
            self._tell_end()
            self.event_log.close()
            self._wal.close()
            directory = self._record.directory
            directory.close()
        return self._shutdown.code

    async def _enter(self) -> None:
        me = self.core.me
        here = await self._node_admission.enter(self._mesh, me, self._driver.feed)
        self._record.remember_contact(here)
        self._mesh.listen(self._listening.socket)
        self.event_log.write("listening", address=me.address, listen_cpu_s=self._listening.cpu_s)

    async def _answer(self) -> None:
        """Answer `lowcomm status` and other commands until cancelled."""
        loop = asyncio.get_running_loop()

        def left() -> None:
            self._shutdown.leave("asked to leave")

        def answer(asked: Question) -> str:
            faults = self._mesh.dial_faults()
            return witness_answer(self.core, self._driver.feed, asked, loop.time(), faults=faults)

        try:
            with witness_bus() as (bus, endpoint):
                self._record.remember_bus(endpoint)
                await serve(bus, answer, left)
        except (ConfigError, OSError) as error:
            self._shutdown.end_daemon(f"its bus cannot be made: {error}", "failed")

    async def _report(self) -> None:
        """Write traffic events until cancelled, and serve Prometheus if configured."""

        def figures() -> "Figures":
            driver = self._driver
            return figures_of(driver.counters, driver.discarded, self._agreed, {})

        try:
            async with served(self._metrics, self.event_log, figures):
                await report_traffic(self.event_log, self._driver.counters)
        except ConfigError as error:
            self._shutdown.end_daemon(str(error), "failed")

    async def _drive(self) -> None:
        try:
            await self._enter()
            self._driver.feed(v.DeadlineReached())  # The core starts to dial.
            await self._driver.run()
        except ConfigError as error:
            self._shutdown.end_daemon(str(error), "failed")
        except RefusedError as error:
            self._shutdown.end_daemon(str(error), "refused")
        except (LowcommError, OSError) as error:
            self._shutdown.end_daemon(str(error), "failed")

    # The listener's side --------------------------------------------------------------------

    def check_run(self, run: Run) -> None:
        """Check that the run is the same as before, and take its timing. A witness needs nothing
        else of it."""
        record, directory = self._record.record, self._record.directory
        known = record.run
        if known and known != run.run:
            why = (
                f"{directory.path} holds another run: give this node a "
                "directory of its own (--set node.directory=PATH)"
            )
            self._shutdown.end_daemon(why, "refused")
            return
        self._record.remember_run(run.run)
        try:
            agreed = agreement.agreed_run(run, None)
        except RefusedError as error:
            self._shutdown.end_daemon(str(error), "refused")
        else:
            self._agreed = agreed
            self._driver.feed(v.RunAccepted(agreed.protocol))

    def handle(self, command: Told) -> None:
        match command:
            case c.CheckProof() | c.AdmissionAnswer() | c.Trust():
                self._node_admission.do(command)
            case c.Applied():
                core, agreed = self.core, self._agreed
                self._caught_up |= core.me.peer in core.run_state.witnesses
                if self._caught_up:
                    tokens = agreed.data.step_tokens if agreed is not None else 0
                    tell_entry(self.event_log, command, core, step_tokens=tokens)
            case c.Observation(kind=kind, text=text):
                self.event_log.note(kind, text)
            case c.Stop(why=why, outcome=outcome, contact=contact):
                self._shutdown.end_daemon(why, outcome, contact=contact)
            case c.Resume() | c.Leased():
                raise AssertionError("a witness has no ranks")

    def applied(self, stamp: Stamp, state_digest: str) -> None:
        raise AssertionError("a witness has no outer state")

    def reduced(self, stamp: Stamp, seconds: float) -> None:
        raise AssertionError("a witness has no outer state")

    def served(self, peer: PeerId, size_bytes: int) -> None:
        raise AssertionError("a witness has no state to give")

    def received_state(self, state: StateTaken) -> None:
        raise AssertionError("a witness asks for no state")

    # Ending ---------------------------------------------------------------------------------

    def _tell_end(self) -> None:
        ending = self._shutdown.ending
        if ending is None:
            return  # A programming error is propagating.
        if ending.outcome in ("refused", "failed"):
            self.event_log.record("stopped", why=ending.why)
            print(f"lowcomm: {ending.why}", file=sys.stderr)  # noqa: T201
        else:
            self.event_log.write("stopped", why=ending.why)
