"""PeerCore, the protocol of one peer: events and the time go in, commands come out.

It composes Raft, the replicated state, this peer's rounds and, while it leads, the leader's
decisions. Must NOT await, read a clock, draw random numbers or touch bytes.
"""

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.raft import RAFT, RELAY
from protocols.peer import shutdown, wakeups
from protocols.peer.certificates import ABOUT_CERTIFICATES
from protocols.peer.connectivity import CONNECTIVITY
from protocols.peer.passes import Passes
from protocols.types.errors import LogError, RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.wire import codec

HEARTBEATS = (m.Heartbeat, m.HeartbeatReply)
LINKS = (m.UnreachedMembers, m.Leave, m.PassedReports)
"""Messages that may tell a leader about links between other peers."""
BETWEEN_PEERS = (
    *(m.Fetch, m.FetchSteps, m.FetchState, m.FetchLeaves, m.NoState, m.Leaves),
    m.BlocksWanted,
)
NO_NEWS = (m.Fetch, m.FetchSteps, m.BlocksWanted)
"""Questions between peers that are answered, and change nothing."""


class PeerCore(Passes):
    """The core: `handle(event, now)` returns commands; call it with DeadlineReached at
    `deadline`."""

    # Interface ------------------------------------------------------------------------------

    def handle(self, event: v.Event, now: float) -> list[c.Command]:
        """Take one event at time `now` (seconds); return the commands for the shell, in order."""
        self._out = []
        if self.stopped:
            return []
        if not self._awake:
            self._wake(now)
        if now >= self.deadline:
            self.raised |= sum(part for part, due in self._due.items() if now >= due)
        try:
            self._take(event, now)
        except RemoteProtocolError as error:
            self._out.append(c.Observation("misbehaviour", str(error)))
            self._out.append(self.connectivity.closed(PeerId(error.peer), error.why, now))
            self.raised = wakeups.ALL
        self.look(now)
        return self._out

    @property
    def linked_peers(self) -> set[PeerId]:
        """The peers that this one has a connection with."""
        return self.links.up

    def name_of(self, peer: PeerId) -> str:
        """The name of a peer for people."""
        seats = self.run_state.seats
        info = seats.get(peer)
        return info.name if info else peer.rpartition(".")[0] or peer

    # Events ---------------------------------------------------------------------------------

    def _wake(self, now: float) -> None:
        """The first event of an incarnation: go on from the saved log of the earlier one."""
        self._awake, self.raised = True, wakeups.ALL
        known = self.log_applier.known
        for peer, address in known.items():
            if address and address != self.me.address:
                self._out.append(self.links.dial(peer, address))
        if contact := self.links.discovery.contact:
            self._out.append(c.Connect(PeerId(""), contact))
        if self.run_state.run is not None:
            self._out += self.part.began(self.run_state.run, now)
            self._rules(self.rules)
        if known:
            self.election.wait(now)

    def _take(self, event: v.Event, now: float) -> None:
        """Change the state that an event concerns, and wake the parts that read it; by default
        all."""
        self.raised |= wakeups.AFTER.get(type(event), wakeups.ALL)
        if self.certificates.acts:
            # Any event may change whether a majority can be reached.
            self.raised |= wakeups.CERTIFICATES
        match event:
            # The most frequent events come first.
            case v.StepReceived():
                self.failure_detector.heard(event.sender, now)
                self.raised |= self._step_came(event)
            case v.MessageReceived():
                self.failure_detector.heard(event.peer, now)
                self._message(event.peer, event.message, now)
            case v.BytesReceived():
                self.failure_detector.heard(event.peer, now)
                self.raft.sign_of_life(event.peer, now)
            case v.StepMade() | v.StepApplied() | v.BaseLoaded():
                self.part.stepped(event, now)
            case v.Bootstrap():
                self._bootstrap(event, now)
            case v.RunAccepted():
                self.part.accepted(event)
                self._rules(event.rules)
            case v.PeerConnected():
                self._out += self.connectivity.connected(event, now)
                self.log_relay.connected(event.peer)
            case v.PeerDisconnected():
                self._out += self.connectivity.disconnected(event, now)
            case v.Persisted():
                self.raft.persisted(event.write_number, now)
                self.member_status.watch_disk(self.disk.why)
            case v.PersistFailed():
                if self.disk.works:
                    self._out.append(
                        c.Observation("disk", f"the log cannot be written: {event.why}")
                    )
                self.raft.persist_failed(event.write_number, codec.one_line(event.why), now)
                self.member_status.watch_disk(self.disk.why)
            case v.SliceBegun() | v.SliceReceived() | v.ResultReceived():
                self.failure_detector.heard(event.sender, now)
                self._out += self.all_rounds.payload(event)
                if self.all_rounds.woken:
                    self.raised |= wakeups.SOME_ROUNDS
            case v.CellReceived():
                self.failure_detector.heard(event.sender, now)
                self._out += self.part.recovery.cell(event, now)
            case v.ContactRefused(why=why):
                self._no_way_in(why)
            case v.LeaveRequested():
                hears, over = self.connectivity.reaches_who_decides, self.finished
                why = codec.one_line(event.why) or "asked to leave"
                self._stop(
                    shutdown.when_asked(self.member_status, why, reachable=hears, finished=over)
                )
            case v.DeadlineReached():
                pass
            case _ if isinstance(event, v.GateEvent):
                self._out += self.certificates.handle_event(event, self.leader_id, now)
            case v.BlocksReceived():
                self._out += self.part.local(event, now)
                if self.all_rounds.woken:
                    self.raised |= wakeups.SOME_ROUNDS
            case _:
                self._out += self.part.local(event, now)

    def _bootstrap(self, event: v.Bootstrap, now: float) -> None:
        self.raft.run = event.run.run
        try:
            own = [event.admission] if event.admission is not None else []
            self.raft.found_run(now, [event.run, *own, e.Member(self.me.info(0))])
        except LogError as error:
            self._stop(c.Stop(str(error), "failed"))
            return
        self.part.initial_digests = event.state_digests

    def _step_came(self, event: v.StepReceived) -> int:
        """The parts that a payload of a step wakes. A payload of no use is dropped and counted
        (I3)."""
        steps, known = self.part.steps, event.sender in self.run_state.receivers
        if not known or steps is None or not steps.received(event):
            self._out.append(c.Discard(event))
            return 0
        return wakeups.NEXT_STEP if steps.fast_path.awake else 0

    def _message(self, peer: PeerId, message: m.Control, now: float) -> None:
        if isinstance(message, HEARTBEATS) and peer in self.failure_detector.watched:
            pass  # Only its arrival counts, which was noted before.
        elif isinstance(message, m.Blocks):
            pass  # The shell took it, if it was asked for.
        elif self.connectivity.keeps_out(peer, message):
            pass
        elif isinstance(message, CONNECTIVITY):
            self._out += self.connectivity.handle_message(peer, message, now)
            if not isinstance(message, HEARTBEATS):
                self.raised |= (
                    wakeups.ALL if isinstance(message, m.OnBranch) else wakeups.CONNECTIVITY
                )
        elif isinstance(message, RAFT):
            had = self.replication.match(peer)
            self.log_applier.receive(peer, message, now)
            self.raised |= wakeups.RAFT
            led_term, more = self.led_term, self.replication.match(peer) != had
            if (
                more
                and led_term is not None
                and led_term.awaits_log_of(peer, self.member_status.leaving)
            ):
                self.raised |= wakeups.LED_TERM
        elif isinstance(message, m.Install):
            lineage = self.run_state.lineage
            if self.log_applier.install(peer, message, now):
                self._jumped(now, lineage=lineage)
            self.raised |= wakeups.ALL
        elif isinstance(message, m.Refused):
            self._refused(peer, message)
        elif isinstance(message, ABOUT_CERTIFICATES):
            self._out += self.certificates.heard(peer, message, leads=self.leads)
            self.raised |= wakeups.ASKED_TO_LET_IN
        elif isinstance(message, BETWEEN_PEERS):
            self._out += self.part.asked(peer, message, now)
            if not isinstance(message, NO_NEWS):
                self.raised |= wakeups.TRANSFERRED
        elif isinstance(message, m.ReadLog):
            if self.led_term is not None:
                self.led_term.asked(peer, message.index)
                self.raised |= wakeups.LED_TERM
        elif isinstance(message, m.ContributeNow):
            if self.leadership.is_led_by(peer):  # The leader sends it once.
                self.all_rounds.hurried(message.stamp)
        elif self.led_term is None or isinstance(message, RELAY):
            self.log_relay.handle_message(peer, message, now)
            if isinstance(message, m.Relay | m.Via):
                self.raised |= wakeups.ALL  # Another peer gets our reports from now on.
            elif isinstance(message, RELAY) or peer in self.log_relay.share:
                self.raised |= wakeups.RELAYED
        else:
            self.raised |= wakeups.MISSED if isinstance(message, LINKS) else wakeups.REPORTED
            for found, diverged in self.led_term.handle_report(peer, message, now):
                self._out.append(c.Observation("diverged", f"{self.name_of(found)} {diverged}"))

    def _refused(self, peer: PeerId, message: m.Refused) -> None:
        """A peer refuses this one. Once this peer has begun to read the log, only the log ends it,
        or most of the voters that say that it is revoked (revoked_peers.py)."""
        if not self.raft.run:
            self._no_way_in(f"refused by {self.name_of(peer)}: {message.why}")
            return
        if message.revoked:
            self._out += self.links.barred_by(peer, message.why)
        raise RemoteProtocolError(peer, f"refuses us: {message.why}")

    def _no_way_in(self, why: str) -> None:
        """An address that a person gave is of no use: try the next one."""
        if self.raft.run:
            self._out.append(
                c.Observation("dial", why)
            )  # Other peers are known; this one may be away.
        elif self._further:
            contact = self.links.discovery.contact = self._further.pop(0)
            self._out.append(c.Observation("dial", f"{why}: trying {contact}"))
            self._out.append(c.Connect(PeerId(""), contact))
        else:
            self._stop(c.Stop(why, "refused"))

    # The log --------------------------------------------------------------------------------

    def _jumped(self, now: float, *, lineage: int) -> None:
        """A snapshot replaced entries that this peer has not applied; `lineage`: ours before it."""
        deadline = now + self.rules.transfer_timeout_s
        self._out += self.part.jumped(deadline=deadline, lineage=lineage, now=now)
        self._rules(self.rules)
        shutdown.when_rolled_back(self.member_status, finished=self.finished)
        self._stop(shutdown.when_kicked(self._kick))
        self._stop(shutdown.when_jumped(self.member_status, finished=self.finished))

    @property
    def _kick(self) -> e.Steered | None:
        """The act that has removed this incarnation of this peer."""
        return self.run_state.orders.kick_of(self.me.peer, self.me.incarnation)

    def _apply_committed(self, now: float) -> None:
        """Apply the newly committed entries."""
        try:
            while not self.stopped and (entry := self.log_applier.next_entry()) is not None:
                self._applied(entry, now)
        except LogError as error:
            self._stop(c.Stop(f"{error}: no peer can go on from it", "failed"))

    def _applied(self, entry: e.LogEntry, now: float) -> None:
        """React to a committed entry."""
        body = entry.body
        counted = isinstance(body, e.Commit) and any(
            term.peer == self.me.peer for term in body.contributors
        )
        self._out.append(c.Applied(entry.index, body, self.run_state.lineage, counted))
        match body:
            case e.Run():
                self._out += self.part.began(body, now)
                self._rules(self.rules)
            case e.Cut():
                deadline = now + self.rules.transfer_timeout_s
                self._out += self.part.cut(entry.index, body, deadline=deadline, now=now)
                self._out += self.links.mend(self.me.peer, self.run_state.receivers)
            case e.Member():
                self.part.came(body.info.peer)
            case e.Restore():
                self._out += self.part.restored(now)
                shutdown.when_rolled_back(self.member_status, finished=self.finished)
            case e.Left() | e.Lost():
                self._gone(body, now)
            case e.Commit():
                self._out += self.part.committed(body, now)
            case e.Steered():
                self._rules(self.rules)
                self._stop(shutdown.when_kicked(self._kick))
            case _:
                pass

    def _gone(self, body: e.Left | e.Lost, now: float) -> None:
        if body.peer == self.me.peer:
            if self.member_status.leaving:
                self._stop(shutdown.when_out(self.member_status, finished=self.finished))
            self.part.lost(now)
            return
        revoked_peers = self.connectivity.revoked_peers
        if self.log_applier.returns(body.peer) or revoked_peers.reads_on(body.peer):
            # The entry is about an earlier incarnation, or the peer has to read it by itself.
            pass
        elif body.peer in self.links.up and (isinstance(body, e.Left) or self._is_kicked(body)):
            self.links.left(body.peer)
        else:
            self._out.append(self.links.gone(body.peer, body.why))
            self.raft.disconnected(body.peer, now)
        self.part.recovery.gone(body.peer)

    def _is_kicked(self, body: e.Lost) -> bool:
        """Does the peer stop by itself, once it has read why it is out?"""
        seat = self.run_state.seats.get(body.peer)
        orders = self.run_state.orders
        return seat is not None and orders.kick_of(body.peer, seat.incarnation) is not None
