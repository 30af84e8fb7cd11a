"""One peer's mind: events and the time go in, commands come out.

Composes the log, what it says (membership), this peer's rounds and, at the leader, the decisions.
Must NOT await, read a clock, draw random numbers or touch bytes. In this version the leader is
the peer that started the run; nothing but `leads` and `_append` knows that.
"""

from protocols import commands as c
from protocols import ending
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.admission import Admission
from protocols.config import ProtocolConfig
from protocols.errors import LogError, RemoteProtocolError
from protocols.feed import Feed
from protocols.fencing import Fence
from protocols.hellos import Identity
from protocols.ids import PeerId, Stamp
from protocols.leader import Leader
from protocols.links import Links
from protocols.log import Log
from protocols.membership import Membership
from protocols.reports import Reports
from protocols.rounds import FragmentRounds
from protocols.standing import Standing
from protocols.wire import one_line


class PeerCore:
    """`handle(event, now) -> commands`; call again with DeadlineReached at `deadline`."""

    def __init__(self, me: Identity, *, join: bool) -> None:
        """`join` False: we start the run and lead it."""
        self.me = me
        self.rules = ProtocolConfig()
        self.log = Log()
        self.members = Membership()
        self.rounds: list[FragmentRounds] = []
        self.standing = Standing(me, self.members, leads=not join)
        self.links = Links(me, leads=not join)
        self.leader: Leader | None = None
        if not join:
            reports = Reports(me.peer, self.members)
            admission = Admission(me.peer, self.members, reports)
            self.leader = Leader(me.peer, self.members, self.rules, reports, admission)
        self.stopped = False
        self.since = 0.0
        """When we first read of the run (for people)."""
        self._feed = Feed(self.log)
        self._out: list[c.Command] = []

    # Interface ------------------------------------------------------------------------------

    def handle(self, event: v.Event, now: float) -> list[c.Command]:
        """Take one event; return what the shell has to do, in order."""
        self._out = []
        if self.stopped:
            return []
        try:
            self._take(event, now)
        except RemoteProtocolError as error:
            self._note("misbehaviour", str(error))
            peer = PeerId(error.peer)
            self._feed.forget(peer)
            self._out.append(self.links.close(peer, error.why, now))
        if not self.stopped:
            self._advance(now)
        return self._out

    @property
    def deadline(self) -> float:
        """Absolute time at which something happens by itself."""
        times = [self.links.deadline, self.standing.catchup.deadline]
        times += [rounds.deadline for rounds in self.rounds]
        if self.leader is not None:
            times.append(self.leader.deadline())
        return min(times)

    @property
    def leads(self) -> bool:
        return self.leader is not None

    @property
    def leader_id(self) -> PeerId | None:
        """Whom we follow (or we ourselves); None while we look for it."""
        return self.links.seeking.leader

    def leader_address(self) -> str:
        """Where the leader listens, for our hello; "" when we do not know."""
        return self.links.seeking.address

    def name_of(self, peer: PeerId) -> str:
        """What people call a peer."""
        info = self.members.seats.get(peer)
        return info.name if info else peer.rpartition(".")[0] or peer

    @property
    def finished(self) -> bool:
        """Every fragment's last round is applied here."""
        return bool(self.rounds) and all(rounds.finished for rounds in self.rounds)

    @property
    def leaving(self) -> str:
        """Why we are going, if we are."""
        return self.standing.leaving

    # Events ---------------------------------------------------------------------------------

    def _take(self, event: v.Event, now: float) -> None:
        match event:
            case v.Bootstrap():
                self._bootstrap(event, now)
            case v.RunAccepted():
                self.standing.accepted = True
                self._rules(event.rules)
            case v.PeerConnected():
                self._connected(event, now)
            case v.PeerDisconnected():
                self._feed.forget(event.peer)
                self.standing.catchup.disconnected(event.peer)
                self.links.liveness.disconnected(event.peer, event.why, now)
            case v.MessageReceived():
                self.links.liveness.heard(event.peer, now)
                self._message(event.peer, event.message, now)
            case v.SliceReceived() | v.ResultReceived():
                self.links.liveness.heard(event.sender, now)
                known = event.sender in self.members.receivers
                if not (known and any(r.received(event) for r in self._of(event.stamp))):
                    self._out.append(c.Discard(event))
            case v.StateReceived():
                self.links.liveness.heard(event.sender, now)
                if event.fragment < len(self.rounds):
                    rounds = self.rounds[event.fragment]
                    self._out += self.standing.state_received(event, rounds, now)
            case v.LeaveRequested():
                why, up = one_line(event.why) or "asked to leave", self.links.leader_is_up
                self._stop(
                    ending.when_asked(self.standing, why, reachable=up, finished=self.finished)
                )
            case v.DeadlineReached():
                pass
            case _:
                self._local(event, now)

    def _local(self, event: v.Event, now: float) -> None:
        """What our own ranks and our own arithmetic report."""
        match event:
            case v.TrainersReady():
                self.standing.trainers.ready = True
            case v.TrainersAble():
                self.standing.trainers.able = True
            case v.TrainersLost():
                self.standing.trainers.lost(one_line(event.why))
                for rounds in self.rounds:
                    rounds.trainers_lost()
            case v.ContributionReady():
                self._out += self.rounds[event.fragment].contribute(
                    tokens=event.tokens, steps=event.steps, now=now
                )
            case v.Encoded():
                self.rounds[event.fragment].encoded(event.round, event.manifest)
            case v.PartReduced():
                fragment = self.rounds[event.stamp.fragment]
                fragment.part_reduced(event.stamp, event.part, event.digest)
            case v.RoundApplied():
                rounds = self.rounds[event.fragment]
                self._out += rounds.applied(event.round, event.state_digest)
                self._out += self.standing.applied(rounds, now)
                self._out += self.standing.check_digest(rounds, now)
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _bootstrap(self, event: v.Bootstrap, now: float) -> None:
        assert self.leader is not None
        assert not self.log.entries
        try:
            self._append(event.run, now)
            if event.restore is not None:
                self._append(event.restore, now)
        except LogError as error:
            self._stop(c.Stop(str(error), "failed"))
            return
        for rounds, digest in zip(self.rounds, event.state_digests, strict=True):
            rounds.version = self.members.committed(rounds.fragment)
            rounds.state_digest = digest
        self._append(e.Member(self.me.info(self.members.slot_of(self.me.peer))), now)

    def _connected(self, event: v.PeerConnected, now: float) -> None:
        peer = event.peer
        self._out += self.links.connected(event, now)
        self._feed.forget(peer)
        for rounds in self.rounds:
            rounds.forget(peer)
        self.standing.catchup.disconnected(peer)
        known = self.members.receivers.get(peer)
        if self.leader is None and self.leader_id == peer:
            self.standing.leader_connected()
        elif self.leader is not None and known and known.incarnation < event.incarnation:
            self.leader.lose(peer, "restarted", left=False)

    def _message(self, peer: PeerId, message: m.Control, now: float) -> None:
        if isinstance(message, m.Append):
            self._read(peer, message, now)
        elif isinstance(message, m.Refused):
            if peer != self.leader_id or self.leads:
                raise RemoteProtocolError(peer, f"refuses us and does not lead: {message.why}")
            self._stop(c.Stop(f"refused by {self.name_of(peer)}: {message.why}", "refused"))
        elif isinstance(message, m.Fetch):
            for rounds in self._of(message.stamp) if peer in self.members.receivers else []:
                self._out += rounds.fetched(peer, message.stamp, message.part)
        elif isinstance(message, m.FetchState):
            self.standing.catchup.wanted(peer, message.index)
        elif isinstance(message, m.NoState):
            self.standing.no_state(peer, message.index, now)
        elif isinstance(message, m.Heartbeat):
            if peer == self.leader_id and message.index > self.log.last_index:
                self.standing.lacks_log = True
        elif isinstance(message, m.ReadLog):
            if self.leads:
                self._out += self._feed.read(peer, message.index)
        else:
            if isinstance(message, m.Ready) and peer in self.members.receivers:
                for rounds in self._of(message.stamp):
                    rounds.peer_ready(message.stamp, peer)
            if self.leader is not None:
                diverged = self.leader.take(peer, message, now)
                if diverged:
                    self._note("diverged", f"{self.name_of(peer)} {diverged}")

    def _read(self, peer: PeerId, message: m.Append, now: float) -> None:
        """Take over what the leader appended."""
        if peer != self.leader_id:
            raise RemoteProtocolError(peer, "appends to the log and does not lead")
        if self.log.run and message.run != self.log.run:
            raise RemoteProtocolError(peer, "appends to the log of another run")
        try:
            for entry in self.log.accept(message.entries, sender=peer):
                self._apply(entry, now)
        except LogError as error:
            self._stop(c.Stop(f"{error}; {self.name_of(peer)} wrote it", "failed"))

    # The log --------------------------------------------------------------------------------

    def _append(self, body: e.Entry, now: float) -> None:
        """The sequencer's right: the entry holds as soon as it stands in our log."""
        entry = self.log.append(body)
        self._out += self._feed.publish(entry)
        self._apply(entry, now)

    def _apply(self, entry: e.LogEntry, now: float) -> None:
        self.members.apply(entry, self.log.lineage)
        body = entry.body
        counted = isinstance(body, e.Commit) and any(
            term.peer == self.me.peer for term in body.contributors
        )
        self._out.append(c.Applied(entry.index, body, counted))
        match body:
            case e.Run():
                self.since = now
                self.rounds = [
                    FragmentRounds(self.me.peer, Fence(self.members, f), body.outer_steps)
                    for f in range(self.members.fragments)
                ]
                self._rules(self.rules)
                if not self.leads:
                    self._out.append(c.CheckRun(body))
            case e.Cut():
                self._cut(entry.index, body, now)
            case e.Left() | e.Lost():
                self._gone(body, now)
            case e.Commit():
                rounds = self.rounds[body.fragment]
                self._out += self.standing.check_digest(rounds, now)
            case _:
                pass

    def _cut(self, index: int, cut: e.Cut, now: float) -> None:
        deadline = now + self.rules.transfer_timeout_s
        ours = self.standing.cut(index, cut, deadline=deadline, now=now)
        if not ours:
            return
        self._out += ours
        for version in cut.versions:
            self.rounds[version.fragment].awaited = version.round
        # Later ones dial us; we dial whoever was there before.
        for info in self.members.receivers.values():
            if info.peer not in (self.me.peer, *self.links.up):
                self._out.append(self.links.dial(info.peer, info.address))

    def _gone(self, body: e.Left | e.Lost, now: float) -> None:
        if body.peer == self.me.peer:
            if self.leaving:
                self._stop(ending.when_out(self.standing, finished=self.finished))
            elif not self.standing.catchup.asking:
                # We live: our work is rebased, not lost.
                self.standing.ask_cut("declared lost", now)
            return
        self._feed.forget(body.peer)
        self._out.append(self.links.gone(body.peer, body.why))
        if self.standing.catchup.gone(body.peer):
            self.standing.ask_cut("the donor is gone", now)

    # What follows ---------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Do everything that is possible now: each step may make another one possible."""
        self._watch(now)
        if self.standing.catchup.is_late(now):
            self.standing.ask_cut("the transfer took too long", now)
        while not self.stopped and self._progress(now):
            pass

    def _progress(self, now: float) -> bool:
        """One step; False when nothing changed that could allow another."""
        before = self._mark()
        while self.leader is not None and (body := self.leader.next_entry(now)) is not None:
            self._append(body, now)
        self._out += self.standing.start_training(self.rounds)
        told_myself = self._report(now)
        connected, catchup = frozenset(self.links.up), self.standing.catchup
        self._out += catchup.request(connected)
        versions = [rounds.version for rounds in self.rounds]
        self._out += catchup.serve(versions, self.log.last_index, now)
        leader = self.leader_id if self.leads or self.leader_id in connected else None
        for rounds in self.rounds:
            for command in rounds.advance(now, connected, leader, stay=catchup.holding):
                if isinstance(command, c.Send) and command.peer == self.me.peer:
                    self._message(self.me.peer, command.message, now)
                    told_myself = True
                else:
                    self._out.append(command)
            if rounds.behind and not catchup.needed:
                self.standing.ask_cut("results of missed rounds are gone", now)
        if self.leader is not None and self.leader.admission.lost_state:
            self._stop(ending.without_state())
        if self.finished:
            self._stop(ending.when_finished(self.standing, leads=self.leads))
        return told_myself or before != self._mark()

    def _mark(self) -> tuple[object, ...]:
        """Equal before and after a step that changed nothing."""
        able, asking = self.standing.trainers.able, self.standing.catchup.asking
        return (len(self._out), self.log.last_index, able, asking, self.leaving)

    def _watch(self, now: float) -> None:
        """Peers that went away or fell silent; then what keeps the others."""
        for loss in self.links.liveness.lost(now):
            self._feed.forget(loss.peer)
            if self.leader is not None:
                self.leader.lose(loss.peer, loss.why, left=False)
                if loss.silent and loss.peer not in self.members.receivers:
                    self._out.append(self.links.gone(loss.peer, loss.why))
            elif loss.peer == self.leader_id:
                name = self.name_of(loss.peer)
                self._stop(
                    ending.without_leader(self.standing, name, loss.why, finished=self.finished)
                )
            else:
                self._out += self.links.renew(loss)
        self._out += self.links.keep_up(now, self.log.last_index)

    def _report(self, now: float) -> bool:
        """Tell the leader how we stand; True if that is ourselves."""
        if self.leader is None and not self.links.leader_is_up:
            return False
        news = self.standing.news(self.log.last_index)
        for report in news:
            if self.leader is not None:
                self.leader.take(self.me.peer, report, now)
            else:
                self._out.append(c.Send(self.leader_id or PeerId(""), report))
        return self.leads and bool(news)

    def _stop(self, stop: c.Stop | None) -> None:
        if stop is not None and not self.stopped:
            self.stopped = True
            self._out.append(stop)

    # Helpers --------------------------------------------------------------------------------

    def _rules(self, rules: ProtocolConfig) -> None:
        self.rules = self.links.liveness.rules = rules
        for rounds in self.rounds:
            rounds.stall.after_s = rules.reduction_timeout_s / 2
        if self.leader is not None:
            self.leader.rules = rules

    def _of(self, stamp: Stamp) -> list[FragmentRounds]:
        return self.rounds[stamp.fragment : stamp.fragment + 1]

    def _note(self, kind: str, text: str) -> None:
        self._out.append(c.Note(kind, text))
