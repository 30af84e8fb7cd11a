"""One peer's mind: events and the time go in, commands come out.

Composes the log, what it says (membership), this peer's rounds and, at the leader, the decisions.
Must NOT await, read a clock, draw random numbers or touch bytes. In this version the leader is
the peer that started the run; nothing but `leads` and `_append` knows that.
"""

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.catchup import Catchup
from protocols.config import ProtocolConfig
from protocols.errors import RemoteProtocolError
from protocols.hellos import Identity
from protocols.ids import PeerId, PeerInfo, Stamp
from protocols.leader import Leader
from protocols.liveness import Liveness
from protocols.log import Log
from protocols.membership import Membership
from protocols.rounds import FragmentRounds, PartResult


class PeerCore:
    """`handle(event, now) -> commands`; call again with DeadlineReached at `deadline`."""

    def __init__(self, me: Identity, *, join: bool) -> None:
        self.me = me
        self.join = join
        """False: we start the run and lead it."""
        self.rules = ProtocolConfig()
        self.log = Log()
        self.members = Membership()
        self.rounds: list[FragmentRounds] = []
        self.liveness = Liveness(self.rules)
        self.liveness.patient = join
        self.leader = Leader(me.peer, self.members, self.rules) if not join else None
        self.leader_id: PeerId | None = None if join else me.peer
        self.catchup = Catchup("new" if join else "")
        self.accepted = not join
        """Our shell looked at the agreed run and takes part in it."""
        self.readers: set[PeerId] = set()
        """Who follows our log on its present connection."""
        self.trainers_ready = False
        self.started = False
        self.able = False
        self.stopped = False
        self.leaving = ""
        self._out: list[c.Command] = []
        self._now = 0.0

    # Interface ------------------------------------------------------------------------------

    def handle(self, event: v.Event, now: float) -> list[c.Command]:
        """Take one event; return what the shell has to do, in order."""
        self._out, self._now = [], now
        if self.stopped:
            return []
        try:
            self._take(event, now)
        except RemoteProtocolError as error:
            self._note("misbehaviour", str(error))
            self._out.append(c.Disconnect(PeerId(error.peer), error.why))
            self.liveness.disconnected(PeerId(error.peer), error.why, now)
        self._advance(now)
        return self._out

    @property
    def deadline(self) -> float:
        """Absolute time at which something happens by itself."""
        times = [
            self.liveness.deadline(),
            self.catchup.deadline,
            *(r.deadline for r in self.rounds),
        ]
        if self.leader is not None:
            times.append(self.leader.deadline())
        return min(times)

    @property
    def leads(self) -> bool:
        return self.leader is not None

    def leader_address(self) -> str:
        """Where the leader listens, for our hello; "" when we do not know."""
        if self.leads:
            return self.me.address
        info = self.members.receivers.get(self.leader_id) if self.leader_id else None
        return info.address if info else ""

    def name_of(self, peer: PeerId) -> str:
        """What people call a peer."""
        info = self.members.seats.get(peer)
        return info.name if info else peer.rpartition(".")[0] or peer

    @property
    def finished(self) -> bool:
        """Every fragment's last round is applied here."""
        return bool(self.rounds) and all(rounds.finished for rounds in self.rounds)

    # Events ---------------------------------------------------------------------------------

    def _take(self, event: v.Event, now: float) -> None:
        match event:
            case v.Bootstrap():
                self._bootstrap(event, now)
            case v.RunAccepted():
                self.accepted = True
                self._rules(event.rules)
            case v.PeerConnected():
                self._connected(event, now)
            case v.PeerDisconnected():
                self.liveness.disconnected(event.peer, event.why, now)
            case v.MessageReceived():
                self.liveness.heard(event.peer, now)
                self._message(event.peer, event.message, now)
            case v.SliceReceived() | v.ResultReceived() | v.StateReceived():
                self.liveness.heard(event.sender, now)
                self._payload(event)
            case v.LeaveRequested():
                self._leave(event.why)
            case v.DeadlineReached():
                pass
            case _:
                self._local(event)

    def _local(self, event: v.Event) -> None:
        """What our own ranks and our own arithmetic report."""
        match event:
            case v.TrainersReady():
                self.trainers_ready = True
            case v.TrainersAble():
                self._able()
            case v.TrainersLost():
                self.trainers_ready = self.started = False
                for rounds in self.rounds:
                    rounds.trainers_lost()
                if self.able:
                    self.able = False
                    self._tell_leader(m.Unable(event.why))
            case v.ContributionReady():
                self._out += self.rounds[event.fragment].contribute(
                    tokens=event.tokens, steps=event.steps
                )
                self._able()
            case v.Encoded():
                self.rounds[event.fragment].encoded(event.round, event.manifest)
            case v.PartReduced():
                fragment = self.rounds[event.stamp.fragment]
                fragment.part_reduced(event.stamp, event.part, event.digest)
            case v.RoundApplied():
                rounds = self.rounds[event.fragment]
                self._out += rounds.applied(event.round, event.state_digest)
                self._out += self.catchup.serve([r.version for r in self.rounds])
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _bootstrap(self, event: v.Bootstrap, now: float) -> None:
        assert self.leader is not None
        assert not self.log.entries
        self._append(event.run, now)
        if event.restore is not None:
            self._append(event.restore, now)
        for rounds, digest in zip(self.rounds, event.state_digests, strict=True):
            rounds.version = self.members.committed(rounds.fragment)
            rounds.state_digest = digest
        me = self.me
        info = PeerInfo(me.peer, me.name, me.incarnation, me.address, self.members.slot_of(me.peer))
        self._append(e.Member(info), now)

    def _connected(self, event: v.PeerConnected, now: float) -> None:
        self.liveness.connected(event.peer, now)
        self.readers.discard(event.peer)
        for rounds in self.rounds:
            rounds.forget(event.peer)
        known = self.members.receivers.get(event.peer)
        if self.leader is not None:
            if known is not None and known.incarnation < event.incarnation:
                self.leader.lose(event.peer, "restarted", left=False)
            return
        if self.leader_id is None and event.leader == event.address:
            self.leader_id = event.peer
        if self.leader_id is None and event.leader:
            self._out.append(c.Connect(PeerId(""), event.leader))
        elif self.leader_id == event.peer:
            self.catchup.asked = False
            self._tell_leader(m.ReadLog(self.log.last_index))
            if self.able:
                self._tell_leader(m.Able())

    def _message(self, peer: PeerId, message: m.Control, now: float) -> None:
        if isinstance(message, m.Append):
            if peer != self.leader_id:
                raise RemoteProtocolError(peer, "appends to the log and does not lead")
            for entry in self.log.accept(message.entries, sender=peer):
                try:
                    self._apply(entry, now)
                except RemoteProtocolError as error:
                    raise RemoteProtocolError(peer, f"its log {error.why}") from error
        elif isinstance(message, m.Refused):
            self._stop(f"refused by {self.name_of(peer)}: {message.why}", "refused")
        elif isinstance(message, m.Fetch):
            for rounds in self._of(message.stamp):
                self._out += rounds.fetched(peer, message.stamp, message.part)
        elif isinstance(message, m.Heartbeat):
            if peer == self.leader_id and message.index > self.log.last_index:
                self._tell_leader(m.ReadLog(self.log.last_index))
        elif isinstance(message, m.ReadLog):
            if self.leads:
                self.readers.add(peer)
                self._send_log(peer, message.index)
        else:
            if isinstance(message, m.Ready):
                for rounds in self._of(message.stamp):
                    rounds.peer_ready(message.stamp, peer)
            if self.leader is not None:
                diverged = self.leader.take(peer, message, now)
                if diverged:
                    self._note("diverged", f"{self.name_of(peer)} {diverged}")

    def _payload(self, event: v.SliceReceived | v.ResultReceived | v.StateReceived) -> None:
        if isinstance(event, v.StateReceived):
            self._state_received(event)
            return
        keep = False
        for rounds in self._of(event.stamp) if event.sender in self.members.members else []:
            if isinstance(event, v.SliceReceived):
                if event.contributor.peer != event.sender:
                    raise RemoteProtocolError(event.sender, "sends somebody else's contribution")
                keep = rounds.slice_received(event.stamp, event.part, event.contributor)
            else:
                result = PartResult(event.contributors, event.digest)
                keep = rounds.result_received(event.stamp, event.part, result)
        if not keep:
            self._out.append(c.Discard(event))

    def _state_received(self, event: v.StateReceived) -> None:
        version = self.catchup.expected(event.cut_index, event.fragment)
        if version is None:
            return
        if version.state_digest != event.state_digest:
            self._note(
                "transfer", f"{self.name_of(event.sender)} sent a state that is not the cut's"
            )
            self._ask_cut("the donor's state did not match its digest")
            return
        self._out.append(c.AdoptState(event.cut_index, event.fragment, version.round))
        rounds = self.rounds[event.fragment]
        self._out += rounds.state_received(version.round, version.state_digest)
        if self.catchup.arrived(event.fragment):
            self._tell_leader(m.CaughtUp(event.cut_index))

    # The log --------------------------------------------------------------------------------

    def _append(self, body: e.Entry, now: float) -> None:
        """The sequencer's right: the entry holds as soon as it stands in our log."""
        entry = self.log.append(body)
        for peer in sorted(self.liveness.up & self.readers):
            self._out.append(c.Send(peer, m.Append(self.log.run, (entry,))))
        self._apply(entry, now)

    def _send_log(self, peer: PeerId, index: int) -> None:
        while entries := self.log.after(index):
            self._out.append(c.Send(peer, m.Append(self.log.run, tuple(entries))))
            index = entries[-1].index

    def _apply(self, entry: e.LogEntry, now: float) -> None:
        self.members.apply(entry, self.log.lineage)
        body = entry.body
        counted = isinstance(body, e.Commit) and any(
            x.peer == self.me.peer for x in body.contributors
        )
        self._out.append(c.Applied(entry.index, body, counted))
        match body:
            case e.Run():
                self.rounds = [
                    FragmentRounds(self.me.peer, f, self.members, body.outer_steps)
                    for f in range(len(body.fragment_elements))
                ]
                self._rules(self.rules)
                if not self.leads:
                    self._out.append(c.CheckRun(body))
            case e.Cut():
                self._cut(entry.index, body, now)
            case e.Left() | e.Lost():
                self._gone(body)
            case e.Commit():
                self._check_digest(body)
            case _:
                pass

    def _cut(self, index: int, cut: e.Cut, now: float) -> None:
        if cut.info.peer == self.me.peer:
            self._out += self.catchup.granted(index, cut, now + self.rules.transfer_timeout_s)
            # Later ones dial us; we dial whoever was there before.
            for info in self.members.receivers.values():
                if info.peer not in (self.me.peer, *self.liveness.up):
                    self._out.append(c.Connect(info.peer, info.address))
        elif cut.donor == self.me.peer:
            self.catchup.owe(index, cut)
            self._out += self.catchup.serve([r.version for r in self.rounds])

    def _gone(self, body: e.Left | e.Lost) -> None:
        if body.peer == self.me.peer:
            if self.leaving:
                self._stop(self.leaving, "finished" if self.finished else "left")
            else:
                self._ask_cut("declared lost")  # We live: our work is rebased, not thrown away.
            return
        self.liveness.gone(body.peer)
        self._out.append(c.Disconnect(body.peer, body.why))
        self.catchup.gone(body.peer)

    def _check_digest(self, commit: e.Commit) -> None:
        """I1: the majority's state before this round must be ours."""
        rounds = self.rounds[commit.fragment]
        if not commit.previous_state_digest or rounds.version != commit.round - 1:
            return
        if rounds.state_digest != commit.previous_state_digest:
            self._note("diverged", f"our state at round {rounds.version} is not the majority's")
            self._ask_cut("diverged")

    # What follows ---------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Do everything that is possible now: each step may make another one possible."""
        self._watch(now)
        while not self.stopped and self._progress(now):
            pass
        if self.stopped:
            return
        if any(r.behind for r in self.rounds) and not self.catchup.needed:
            self._ask_cut("results of missed rounds are gone")
        self._join(now)
        self._finish()

    def _progress(self, now: float) -> bool:
        """One step; False when nothing changed that could allow another."""
        before = (self.log.last_index, self.able, self.started)
        while self.leader is not None and (body := self.leader.next_entry(now)) is not None:
            self._append(body, now)
        self._start_training()
        connected = frozenset(self.liveness.up)
        leader = self.leader_id if self.leads or self.leader_id in connected else None
        told_myself = False
        for rounds in self.rounds:
            for command in rounds.advance(now, connected, leader):
                if isinstance(command, c.Send) and command.peer == self.me.peer:
                    self._message(self.me.peer, command.message, now)
                    told_myself = True
                else:
                    self._out.append(command)
        return told_myself or before != (self.log.last_index, self.able, self.started)

    def _watch(self, now: float) -> None:
        """Heartbeats, and peers that went away or fell silent."""
        for peer in self.liveness.due_heartbeats(now):
            self._out.append(c.Send(peer, m.Heartbeat(self.log.last_index)))
        for peer, why in self.liveness.lost(now):
            if self.leader is not None:
                self.leader.lose(peer, why, left=False)
            elif peer == self.leader_id and self.finished:
                self._stop("finished", "finished")
            elif peer == self.leader_id:
                self._stop(
                    f"the sequencer {self.name_of(peer)} is gone ({why}); this version cannot "
                    "elect another: continue with `lowcomm resume`",
                    "failed",
                )

    def _join(self, now: float) -> None:
        if now >= self.catchup.deadline:
            self._ask_cut("the transfer took too long")
        catchup = self.catchup
        ready = self.accepted and self.leader_id in self.liveness.up
        if ready and catchup.asking and not catchup.asked:
            catchup.asked, catchup.since = True, now
            me = self.me
            self._tell_leader(m.Join(me.name, me.incarnation, me.address, catchup.asking))

    def _ask_cut(self, why: str) -> None:
        self.able = False
        self.catchup.ask(why)

    def _start_training(self) -> None:
        """Ranks get their first parameters when we are a member and rounds may begin."""
        if not self.trainers_ready or self.me.peer not in self.members.members:
            return
        views = self.members.views
        if not views:
            self._able()
        elif not self.started and all(r.version >= 0 for r in self.rounds):
            self.started = True
            in_roster = self.me.peer in views[-1].roster
            for rounds in self.rounds:
                self._out += rounds.start(first=not in_roster)

    def _able(self) -> None:
        if not self.able and self.me.peer in self.members.members:
            self.able = True
            self._tell_leader(m.Able())

    def _finish(self) -> None:
        """Everybody goes when it has applied the last round; the leader goes last."""
        if not self.finished or self.leaving:
            return
        if not self.leads:
            self._leave("finished")
        elif self.members.receivers.keys() <= {self.me.peer}:
            self._stop("finished", "finished")

    def _leave(self, why: str) -> None:
        self.leaving = why
        if self.leads:
            self._stop(why, "left")
        elif self.me.peer in self.members.receivers and self.leader_id in self.liveness.up:
            self._tell_leader(m.Leave(why))
        else:
            self._stop(why, "left")

    def _stop(self, why: str, outcome: c.Outcome) -> None:
        if not self.stopped:
            self.stopped = True
            self._out.append(c.Stop(why, outcome))

    # Helpers --------------------------------------------------------------------------------

    def _rules(self, rules: ProtocolConfig) -> None:
        self.rules = self.liveness.rules = rules
        for rounds in self.rounds:
            rounds.stall_after_s = rules.reduction_timeout_s / 2
        if self.leader is not None:
            self.leader.rules = rules

    def _tell_leader(self, message: m.Control) -> None:
        if self.leader is not None:
            self.leader.take(self.me.peer, message, self._now)
        elif self.leader_id is not None:
            self._out.append(c.Send(self.leader_id, message))

    def _of(self, stamp: Stamp) -> list[FragmentRounds]:
        return self.rounds[stamp.fragment : stamp.fragment + 1]

    def _note(self, kind: str, text: str) -> None:
        self._out.append(c.Note(kind, text))
