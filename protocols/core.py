"""One peer's mind: events and the time go in, commands come out.

Composes the log and its elections (raft), what the log says (membership), this peer's rounds and,
while it leads, the decisions (office). Must NOT await, read a clock, draw random numbers or touch
bytes.
"""

from protocols import commands as c
from protocols import ending, quiet, wire
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.clock import NEVER
from protocols.company import COMPANY, Company
from protocols.config import ProtocolConfig
from protocols.errors import LogError, RemoteProtocolError
from protocols.gate import GATE, Gate
from protocols.government import Government
from protocols.hellos import Identity
from protocols.ids import PeerId
from protocols.links import Links
from protocols.log_messages import RAFT, RELAY
from protocols.logbook import Logbook
from protocols.office import Office
from protocols.participant import Participant
from protocols.relaying import Relaying
from protocols.rounds import FragmentRounds
from protocols.storage import Saved

BETWEEN_PEERS = (m.Fetch, m.FetchSteps, m.FetchState, m.FetchLeaves, m.NoState, m.Leaves)


class PeerCore:
    """`handle(event, now) -> commands`; call again with DeadlineReached at `deadline`."""

    def __init__(
        self,
        me: Identity,
        *,
        join: bool,
        saved: Saved | None = None,
        kept: m.Kept | None = None,
        contact: str = "",
        rules: ProtocolConfig | None = None,
    ) -> None:
        """`join` False: we start the run. `contact` is where somebody of it listens.

        `saved` is what an earlier life left of the log, `kept` what is in its newest checkpoint,
        `rules` those of the run where they are known: else they come with RunAccepted.
        Raises LogError if `saved` makes no sense.
        """
        self.me = me
        self.book = Logbook(me.peer, saved)
        self.raft, self.members = self.book.raft, self.book.members
        self.part = Participant(me, self.members, founds=not join, kept=kept)
        self.standing = self.part.standing
        self.links = Links(contact, mine=me.address)
        self.relaying = Relaying(self.book, self.links)
        self.government = Government(self.raft, self.members, self.links)
        self.gate = Gate(me.peer, self.members, self.links)
        self.company = Company(me, self.raft, self.members, self.part, self.links, self.government)
        self.stopped = False
        self.deadline = NEVER
        """Absolute time at which something happens by itself, as of the last event."""
        self.patience = NEVER
        """Of our rounds and decisions, as of the last look: quiet events do not change it."""
        self._awake = False
        self._contact = contact
        self._out: list[c.Command] = []
        self.told_myself = 0
        """Messages of a leader to itself: they make decisions possible."""
        self._rules(rules or ProtocolConfig())

    # Interface ------------------------------------------------------------------------------

    def handle(self, event: v.Event, now: float) -> list[c.Command]:
        """Take one event; return what the shell has to do, in order."""
        self._out = []
        if self.stopped:
            return []
        pace = self.part.pace if now < self.deadline else None
        if pace is not None and (commands := pace.take(event, now)) is not None:
            if isinstance(event, v.StepReceived):
                self.links.liveness.heard(event.sender, now)
            self.patience = min(self.patience, pace.due)
            self.deadline = min(self.deadline, pace.due)
            return commands
        if not self._awake:
            self._wake(now)
        elif quiet.is_heartbeat(event):
            self._take(event, now)  # No deadline comes nearer, and none goes before it is due.
            return self._out
        before, last_index = quiet.mark(self.raft), self.raft.log.last_index
        try:
            self._take(event, now)
        except RemoteProtocolError as error:
            self._out.append(c.Note("misbehaviour", str(error)))
            self._out.append(self.company.closed(PeerId(error.peer), error.why, now))
        if self.stopped:
            return self._out
        same = before == quiet.mark(self.raft)
        if not (same and quiet.is_beat(event) and last_index == self.raft.log.last_index):
            if not (same and quiet.is_inner(event, self, now)):
                self._tend(now)
                same = before == quiet.mark(self.raft)
            same = same and quiet.is_quiet(event, self, now)
        if same:
            for command in self.raft.take():
                self._emit(command, now)
            self.deadline = self._next_deadline(looked=False)
            return self._out
        if not (quiet.is_report(event, self, now) and self._is_only_noted(now)):
            while not self.stopped and self._progress(now):
                pass
        self.deadline = self._next_deadline(looked=True)
        return [*self.standing.drawing.news(), *self._out]

    @property
    def rounds(self) -> list[FragmentRounds]:
        """Our part in the rounds of each fragment."""
        return self.part.rounds

    @property
    def office(self) -> Office | None:
        """What we hold while we lead."""
        return self.government.office

    @property
    def leads(self) -> bool:
        return self.raft.leads

    @property
    def leader_id(self) -> PeerId | None:
        """Whom we follow (or we ourselves); None while nobody leads, as far as we know."""
        return self.raft.leader

    def name_of(self, peer: PeerId) -> str:
        """What people call a peer."""
        info = self.members.seats.get(peer)
        return info.name if info else peer.rpartition(".")[0] or peer

    @property
    def finished(self) -> bool:
        """Every fragment's last round is applied here."""
        return self.part.finished

    # Events ---------------------------------------------------------------------------------

    def _wake(self, now: float) -> None:
        """The first event of a life: go on from what the earlier one knew."""
        self._awake = True
        known = self.book.known
        for peer, address in known.items():
            if address and address != self.me.address:
                self._out.append(self.links.dial(peer, address))
        if self._contact:
            self._out.append(c.Connect(PeerId(""), self._contact))
        if self.members.run is not None:
            self._out += self.part.began(self.members.run, now)
            self._rules(self.rules)
        if known:
            self.raft.wait(now)

    def _take(self, event: v.Event, now: float) -> None:
        match event:
            case v.MessageReceived():
                self.links.liveness.heard(event.peer, now)
                self._message(event.peer, event.message, now)
            case v.Bootstrap():
                self._bootstrap(event, now)
            case v.RunAccepted():
                self.part.accepted(event)
                self._rules(event.rules)
            case v.PeerConnected():
                self._out += self.company.connected(event, now)
                self.relaying.connected(event.peer)
            case v.PeerDisconnected():
                self._out += self.company.disconnected(event, now)
            case v.Persisted():
                self.raft.persisted(event.ticket, now)
            case v.PersistFailed():
                if self.raft.disk.works:
                    self._out.append(c.Note("disk", f"the log cannot be written: {event.why}"))
                self.raft.persist_failed(event.ticket, wire.one_line(event.why), now)
            case v.SliceBegun() | v.SliceReceived() | v.ResultReceived() | v.StepReceived():
                self.links.liveness.heard(event.sender, now)
                self._out += self.part.payload(event)
            case v.CellReceived():
                self.links.liveness.heard(event.sender, now)
                self._out += self.part.cell(event, now)
            case v.LeaveRequested():
                hears, over = self.company.reaches_who_decides, self.finished
                why = wire.one_line(event.why) or "asked to leave"
                self._stop(ending.when_asked(self.standing, why, reachable=hears, finished=over))
            case v.DeadlineReached():
                pass
            case _ if isinstance(event, v.GateEvent):
                self._out += self.gate.take(event, self.leader_id, now)
            case _:
                self._out += self.part.local(event, now)

    def _bootstrap(self, event: v.Bootstrap, now: float) -> None:
        self.raft.run = event.run.run
        try:
            self.raft.begin(now, [event.run, e.Member(self.me.info(0))])
        except LogError as error:
            self._stop(c.Stop(str(error), "failed"))
            return
        self.part.initial_digests = event.state_digests

    def _message(self, peer: PeerId, message: m.Control, now: float) -> None:
        if self.company.keeps_out(peer, message):
            pass
        elif isinstance(message, COMPANY):
            self._out += self.company.take(peer, message, now)
        elif isinstance(message, RAFT):
            self.book.receive(peer, message, now)
        elif isinstance(message, m.Install):
            lineage = self.members.lineage
            if self.book.install(peer, message, now):
                self._jumped(now, lineage=lineage)
        elif isinstance(message, m.Refused):
            if self.raft.run and (peer != self.leader_id or self.leads):
                raise RemoteProtocolError(peer, f"refuses us and does not lead: {message.why}")
            self._stop(c.Stop(f"refused by {self.name_of(peer)}: {message.why}", "refused"))
        elif isinstance(message, GATE):
            self._out += self.gate.heard(peer, message, leads=self.leads)
        elif isinstance(message, BETWEEN_PEERS):
            self._out += self.part.asked(peer, message, now)
        elif isinstance(message, m.ReadLog):
            if self.office is not None:
                self.office.asked(peer, message.index)
        elif isinstance(message, m.Hurry):
            if self.government.is_led_by(peer):  # It says so once, and goes on leading.
                self.part.hurried(message.stamp)
        elif self.office is None or isinstance(message, RELAY):
            self.relaying.take(peer, message, now)
        else:
            for who, diverged in self.office.take(peer, message, now):
                self._out.append(c.Note("diverged", f"{self.name_of(who)} {diverged}"))

    # The log --------------------------------------------------------------------------------

    def _jumped(self, now: float, *, lineage: int) -> None:
        """A snapshot took us over entries that we never saw; `lineage` was ours before."""
        deadline = now + self.rules.transfer_timeout_s
        self._out += self.part.jumped(deadline=deadline, lineage=lineage, now=now)
        self._rules(self.rules)
        self._stop(ending.when_jumped(self.standing, finished=self.finished))

    def _apply_committed(self, now: float) -> None:
        """What a majority has on its disks holds from now on, here too."""
        try:
            while not self.stopped and (entry := self.book.next_entry()) is not None:
                self._applied(entry, now)
        except LogError as error:
            self._stop(c.Stop(f"{error}: nobody can go on from it", "failed"))

    def _applied(self, entry: e.LogEntry, now: float) -> None:
        """An entry holds now."""
        body = entry.body
        counted = isinstance(body, e.Commit) and any(
            term.peer == self.me.peer for term in body.contributors
        )
        self._out.append(c.Applied(entry.index, body, self.members.lineage, counted))
        match body:
            case e.Run():
                self._out += self.part.began(body, now)
                self._rules(self.rules)
            case e.Cut():
                deadline = now + self.rules.transfer_timeout_s
                self._out += self.part.cut(entry.index, body, deadline=deadline, now=now)
                self._out += self.links.mend(self.me.peer, self.members.receivers)
            case e.Member():
                self.part.came(body.info.peer)
            case e.Restore():
                self._out += self.part.restored(now)
            case e.Left() | e.Lost():
                self._gone(body, now)
            case e.Commit():
                self._out += self.part.committed(body, now)
            case _:
                pass

    def _gone(self, body: e.Left | e.Lost, now: float) -> None:
        if body.peer == self.me.peer:
            if self.standing.leaving:
                self._stop(ending.when_out(self.standing, finished=self.finished))
            self.part.lost(now)
            return
        if self.book.returns(body.peer) or self.company.reads_on(body.peer):
            pass  # An earlier life of ours, or of theirs, saw it go; or it has to read that.
        elif isinstance(body, e.Left) and body.peer in self.links.up:
            self.links.left(body.peer)
        else:
            self._out.append(self.links.gone(body.peer, body.why))
            self.raft.disconnected(body.peer, now)
        self.part.gone(body.peer, now)

    # What follows ---------------------------------------------------------------------------

    def _tend(self, now: float) -> None:
        """What is due, whatever happened."""
        for command in self.company.watch(now):
            if isinstance(command, c.Stop):
                self._stop(command)
            else:
                self._out.append(command)
        self.raft.advance(now)

    def _is_only_noted(self, now: float) -> bool:
        """Nothing came of a report but what the leader remembers, or does by itself."""
        before = quiet.reached(self)
        return before == self._govern(now) and not self.government.is_hopeless(now)

    def _progress(self, now: float) -> bool:
        """One step; False when nothing changed that could allow another."""
        before = self._govern(now)
        self._report(now)
        connected, leader = self.links.up, self.leader_id
        if not self.raft.leads and leader not in connected:
            leader = None
        hears = self.relaying.listener(leader)
        ours = self.part.advance(now, connected, hears)
        for command in (*ours, *self.relaying.advance(now, leader)):
            self._emit(command, now)
        if leader is not None and before == quiet.reached(self) and self.government.owes_word():
            self._emit(c.Send(leader, m.Told(self.raft.term)), now)
        if self.government.is_hopeless(now):
            self._stop(ending.without_state())
        if self.finished:
            self._stop(ending.when_finished(self.standing, leads=self.leads))
        return before != quiet.reached(self)

    def _govern(self, now: float) -> tuple[object, ...]:
        """Elections, decisions, and what they commit, until nothing follows; how far we are."""
        before, after = None, quiet.reached(self)
        while before != after and not self.stopped:
            if self.government.follow(now):
                self.part.new_leader()
                self.relaying.new_leader()
            office = self.government.office
            self._out += self.gate.advance(office, self.leader_id, now)
            if office is not None and not self._going(now):
                office.decide(now, lacks_state=self.standing.catchup.needed)
                for command in office.orders(now):
                    self._emit(command, now)
            for command in self.raft.take():
                self._emit(command, now)
            self._apply_committed(now)
            before, after = after, quiet.reached(self)
        return after

    def _going(self, now: float) -> bool:
        """A leader that wants to leave hands over first; nobody else could write it down."""
        if not self.standing.leaving or self.finished:
            return self.company.gives_way(now)
        if self.office is not None and self.office.is_last:
            self._stop(ending.when_out(self.standing, finished=False))
            return True
        going = self.office.leader.unfit if self.office is not None else ()
        return self.raft.hand_over(but=going)

    def _emit(self, command: c.Command, now: float) -> None:
        """What we tell ourselves arrives at once."""
        if isinstance(command, c.Send) and command.peer == self.me.peer:
            self.told_myself += self.office is not None
            self._message(self.me.peer, command.message, now)
        else:
            self._out.append(command)

    def _report(self, now: float) -> None:
        """Tell the leader how we stand."""
        leader = self.leader_id
        if leader is None or not (self.raft.leads or leader in self.links.up):
            return
        hears = self.relaying.listener(leader) or leader
        for report in self.standing.news(self.raft.disk.why, hears):
            self._emit(c.Send(hears if isinstance(report, m.Kept) else leader, report), now)

    def _stop(self, stop: c.Stop | None) -> None:
        if stop is not None and not self.stopped:
            self.stopped = True
            self._out.append(stop)

    # Helpers --------------------------------------------------------------------------------

    def _next_deadline(self, *, looked: bool) -> float:
        if looked:
            leader = self.office.deadline if self.office and self.raft.settled else NEVER
            self.patience = min(self.part.deadline, leader, self.gate.deadline)
        lines = min(self.relaying.deadline, self.links.deadline)
        return min(self.patience, self.company.deadline, lines, self.raft.deadline)

    def _rules(self, rules: ProtocolConfig) -> None:
        self.rules = self.links.liveness.rules = self.raft.rules = rules
        self.part.rules(rules)
        if self.office is not None:
            self.office.leader.rules = rules
