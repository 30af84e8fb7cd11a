"""State of a leader that exists only during its term: the state after the whole log, and its
decisions.

Must NOT apply anything for this peer itself: a decision holds for it, as for all peers, once it is
committed.
"""

from protocols.acts.statements import goes
from protocols.interface.commands import Command, Observation, Send
from protocols.leader.decisions import Leader
from protocols.leader.joins import Joins
from protocols.leader.peer_accounts import Accounts, keep_only
from protocols.leader.relay_plan import RelayPlan
from protocols.leader.reports import Reports
from protocols.leader.step_views import StepViews
from protocols.leader.voters import VOTERS_MAX
from protocols.links.connections import Connections
from protocols.messages.log_entries import Entry, Left, Lost, SignedAct, TokenSpent
from protocols.messages.peer import ContributeNow, Control, PassedReports
from protocols.raft.node import Raft
from protocols.state import transitions
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.errors import LogError, RemoteProtocolError
from protocols.types.ids import PeerId


class LeadershipTerm:
    """Created when this peer wins an election; dropped when its term ends."""

    def __init__(self, raft: Raft, applied: RunState, links: Connections, now: float) -> None:
        head = transitions.copy(applied)
        for entry in raft.log.since(head.index + 1):
            transitions.apply(head, entry)
        self.reports = reports = Reports(raft.me, head)
        self.joins = joins = Joins(raft.me, head, reports, Accounts(links))
        self.head = head
        self.term = raft.term
        self.leader = Leader(
            head,
            reports,
            joins,
            raft,
            StepViews(raft.me, head),
            since=now,
            began_with=frozenset(head.readers),
        )
        self.askers: set[PeerId] = set()
        """Connected peers outside the log that read it."""
        self.frozen = False
        """Nothing is decided, since another branch of the log was met (peer/branches.py)."""
        self.relay_plan = RelayPlan(raft, links, head, reports)
        self._raft = raft
        self._links = links
        self._notes, self._undecided = list[Command](), ""
        for peer, info in head.readers.items():
            if links.life(peer, 0) > info.incarnation:
                self.leader.restarted(peer)
            if peer != raft.me and peer not in links.up:
                links.failure_detector.disconnected(peer, "is not connected with the leader", now)

    def append(self, body: Entry) -> bool:
        """Append a decision and send it to all readers. False if no peer could read the entry: then
        nothing has changed, and `orders` notes each reason once."""
        try:
            entry = self._raft.append(body)
        except LogError as error:
            why = f"not decided: {error}"
            if why != self._undecided:
                self._undecided, self._notes = why, [*self._notes, Observation("log", why)]
            return False
        if isinstance(body, Left | Lost) and body.peer in self._raft.up:
            self.askers.add(body.peer)  # The peer has to read that it is out.
        if isinstance(body, SignedAct) and (out := goes(body)) is not None:
            self.joins.gone(out)  # The peer may have asked to get in before.
        transitions.apply(self.head, entry)
        return True

    @property
    def deadline(self) -> float:
        """The next time at which a decision is possible without a report; NEVER while frozen."""
        decides = NEVER if self.frozen else self.leader.deadline()
        return min(decides, self.relay_plan.deadline)

    def connected(self, peer: PeerId, incarnation: int) -> None:
        # The earlier connection may have ended unnoticed, with the peer's last report on it.
        self.leader.disconnected(peer)
        readers = self.head.readers
        known = readers.get(peer)
        if known is not None and known.incarnation < incarnation:
            self.leader.restarted(peer)
        if known is None and peer in self.head.seats:
            self.askers.add(peer)  # It may not have read yet that it is out.
        self.relay_plan.connected(peer)

    def disconnected(self, peer: PeerId) -> None:
        self.relay_plan.disconnected(peer)
        self.askers.discard(peer)
        self.leader.disconnected(peer)
        if peer not in self.head.readers:
            # A peer that left may report a checkpoint, which no peer can use any more.
            self.joins.forget_checkpoint(peer)

    def forget_others(self) -> None:
        """Forget peers that are neither in the log nor connected, and cannot reconnect."""
        leader, readers, connected = self.leader, self.head.readers, self._links.peers
        known = readers.keys() | connected.keys() | {self._raft.me}
        for part in (leader.accounts, leader.joins, leader.reports, self.relay_plan):
            part.keep(known)
        keep_only(known, leader.removals.leaves_since, leader.sample_leases.wants)

    def awaits_log_of(self, peer: PeerId, leaving: str) -> bool:
        """Is a decision possible once this peer has our log? It may get a vote, or lead after
        us."""
        log = self._raft.log
        if peer in log.voters:
            return bool(leaving) or not self._links.mine  # Joiners cannot dial this peer.
        return len(log.voters) < VOTERS_MAX

    def has_spent(self, entry: TokenSpent) -> bool:
        """Has our whole log this use of a token?"""
        spendings = self.head.spendings
        return spendings.has(entry)

    def spend(self, entry: TokenSpent) -> None:
        """Append this use of a token with the next decisions, unless our log has it."""
        if not self.has_spent(entry):
            self.joins.spendings[entry.peer] = entry

    def readers(self) -> set[PeerId]:
        """The readers of the log: all peers in it, and those that asked for it."""
        return {*self.head.readers, *self.askers}

    def asked(self, peer: PeerId, index: int) -> None:
        """A peer outside the log asks to read it."""
        self.askers.add(peer)
        self.relay_plan.disconnected(peer)
        self._raft.serve(self.readers(), begin_from={peer: index})

    def handle_report(self, peer: PeerId, message: Control, now: float) -> list[tuple[PeerId, str]]:
        """Handle a report, or several from a relay. Returns peers that differ from the majority,
        and how.

        Raises RemoteProtocolError after all valid reports are handled.
        """
        if peer in self.head.revoked or self._is_kicked(peer):
            return []  # Its reports do not count after that entry, relayed or not.
        if self._is_of_earlier_life(peer):
            return []
        if not isinstance(message, PassedReports):
            diverged = self.leader.handle_report(peer, message, now)
            return [(peer, diverged)] if diverged else []
        found: list[tuple[PeerId, str]] = []
        wrong: list[RemoteProtocolError] = []
        for report in self.relay_plan.reported(peer, message):
            try:
                found += self.handle_report(report.peer, report.message, now)
            except RemoteProtocolError as error:
                wrong.append(error)
        if wrong:
            raise wrong[0]
        return found

    def _is_kicked(self, peer: PeerId) -> bool:
        """Was the connected incarnation of this peer removed? It may not have read that yet."""
        seat = self.head.seats.get(peer)
        life = self._links.life(peer, seat.incarnation if seat is not None else 0)
        return self.head.orders.kick_of(peer, life) is not None

    def _is_of_earlier_life(self, peer: PeerId) -> bool:
        """Has the log a later incarnation of this peer than the connected one? The new one joined
        under an earlier leader, and the connection with the old one has not ended here yet: its
        reports are not about the new incarnation."""
        seats = self.head.seats
        known = seats[peer].incarnation if peer in seats else 0
        return self._links.life(peer, known) < known

    @property
    def is_last(self) -> bool:
        """Is no other peer in, or asks to get in, and can all peers that left read that?"""
        raft, asking, receivers = self._raft, self.joins.joins, self.head.receivers
        all_holds = raft.commit_index == raft.log.last_index
        return all_holds and receivers.keys() | asking.keys() <= {raft.me}

    def orders(self, now: float) -> list[Command]:
        """Messages to single peers beyond the log."""
        notes, self._notes = self._notes, []
        raft = self._raft
        if not raft.settled:
            return notes
        late = self.reports.late(raft.up | {raft.me}, raft.rules.quorum)
        hurry: list[Command] = [Send(peer, ContributeNow(stamp)) for peer, stamp in late]
        return [*notes, *hurry, *self.relay_plan.orders(now)]

    def decide(self, now: float, *, lacks_state: bool = False) -> bool:
        """Append all entries that can be decided now; True if there was one.

        `lacks_state`: this peer waits for a state itself. Its present state must not count:
        otherwise peers that hold the run's state could leave. (In a stepwise run this peer takes
        back its report itself.)
        """
        found = False
        if lacks_state and not self.head.stepwise:
            self.reports.forget_states(self._raft.me)
        while self._may_decide and (body := self.leader.next_entry(now)) is not None:
            if not self.append(body):
                break  # It may be decided after the next event: no loop here.
            found = True
        self._raft.serve(self.readers())
        return found

    @property
    def _may_decide(self) -> bool:
        return self._raft.settled and not self.frozen
