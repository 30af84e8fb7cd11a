"""Raft: which peer leads, and which log entries are committed (protocol.md section 1).

Sources: Ongaro and Ousterhout 2014; Ongaro's thesis for pre-vote (9.6), check-quorum (6.2),
leadership transfer (3.10) and membership changes by one voter (4.1). Must NOT know what an entry
means beyond the voters, and must not send what its disk does not hold (durability.py).
"""

from collections.abc import Collection, Iterable

from protocols.interface.commands import Command, Send
from protocols.messages.log_entries import Elected, Entry, Restore
from protocols.messages.peer import Append, Appended, Control, HandOver, Vote, Voted
from protocols.messages.persisted import Saved, Snapshot
from protocols.raft.durability import Durability
from protocols.raft.election_timer import ElectionTimer
from protocols.raft.log import Log, Voters
from protocols.raft.replication import Replication
from protocols.raft.roles import Role, RoleChanges
from protocols.raft.snapshot_chunks import IncomingSnapshot
from protocols.types.clock import NEVER
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.types.limits import TERM_LEAP_MAX
from protocols.types.rules import ProtocolConfig


class Raft:
    """The Raft node of one peer. `take()` returns the commands that the last calls have led to."""

    def __init__(self, me: PeerId, saved: Saved | None = None, voters: Voters = ()) -> None:
        """`saved`: what an earlier incarnation left on the disk; `voters`: those of its
        snapshot."""
        self.me = me
        self.rules, self.run, self.log = ProtocolConfig(), 0, Log()
        self.term, self.vote, self.role = 0, "", Role.FOLLOWER
        self.role_changes = RoleChanges()
        self.leader: PeerId | None = None
        """The leader of the present term; None if it is not known."""
        self.commit_index = 0
        self.durable_index = 0
        """Index up to which our log is on our disk."""
        self._leader_durable = 0
        """Index up to which the leader's disk holds the same log as ours."""
        self.up, self.disk = set[PeerId](), Durability()
        self.replication = Replication(me, self.log)
        self.incoming = IncomingSnapshot()
        self._leader_down = False
        """The connection with the leader has ended; other peers may have noticed it too."""
        self.heard_at, self._timer = -NEVER, ElectionTimer(me)
        """When the leader was heard last, and the timer of the next election."""
        self._granted, self._quorum_at = set[PeerId](), NEVER
        self.handing_over = False
        """We have asked another voter to lead, and decide nothing unless it fails to."""
        self._out: list[Command] = []
        if saved is None:
            return
        self.term, self.vote = saved.term, saved.vote
        if saved.snapshot is not None:
            self.log.begin_at(saved.snapshot.index, saved.snapshot.term, voters)
            self.commit_index = saved.snapshot.index
            self.replication.snapshot = saved.snapshot
        for entry in saved.entries:
            self.log.add(entry)
        self.durable_index = self.log.last_index

    # Interface ------------------------------------------------------------------------------

    def begin(self, now: float, entries: Iterable[Entry]) -> None:
        """Found a run: the first entry names us as the only voter, so we lead at once."""
        assert self.log.last_index == 0, "this log has begun"
        self._vote(1, self.me)
        self._lead(now, first=entries)

    def seize(self, now: float, fork: Restore, *, after: int) -> None:
        """Go on without the other voters, with our log up to index `after`."""
        self.log.cut_off(after + 1)
        self.disk.log_changed(after + 1)
        self.durable_index = min(self.durable_index, after)
        self._vote(self.term + 1, self.me)
        self._become(Role.CANDIDATE, None)
        self._lead(now, first=(fork,))

    def take(self) -> list[Command]:
        """Commands since the last call; changes that must survive a crash are in a Persist."""
        out, self._out = self._out, []
        return self.disk.release(out, self.disk.collect(self.term, self.vote, self.log))

    def append(self, body: Entry) -> None:
        """Append an entry to the log; only a leader may."""
        assert self.role is Role.LEADER, "only the leader appends"
        entry = self.log.append(body, term=self.term)
        self.disk.log_changed(entry.index)
        self._out += self.replication.publish(self._header(), self.up)

    def serve(self, readers: Iterable[PeerId]) -> None:
        """As leader, replicate the log to exactly these peers from now on."""
        self._out += self.replication.follow(readers, self._header, self.up)

    def serve_from(self, peer: PeerId, index: int) -> None:
        """A reader reports that it has the log up to `index`."""
        self._out += self.replication.begin_from(peer, index, self._header())

    def relay(self, peers: Collection[PeerId]) -> None:
        """Relays bring the log to these peers from now on."""
        self._out += self.replication.relay(peers, self._header(), self.up)

    def connected(self, peer: PeerId, now: float) -> None:
        self.up.add(peer)
        self.replication.restart(peer)
        if self.role is Role.LEADER:
            self._out += self.replication.beat(peer, self._header())
        elif peer == self.leader:
            self._leader_down = False
            self._arm(now)
        elif self.role is Role.CANDIDATE and peer in self.log.voters:
            self._ask([peer], pre=False)  # Our question may have been lost.

    def disconnected(self, peer: PeerId, now: float) -> None:
        self.up.discard(peer)
        self.replication.restart(peer)
        if peer == self.leader and not self._leader_down:
            self._leader_down, grace_s = True, self.rules.reconnect_grace_s
            self._arm(now, least=grace_s, spread=grace_s)

    def receive(self, peer: PeerId, message: Control, now: float) -> None:
        """Handle a message of another peer. Raises RemoteProtocolError if it breaks the rules."""
        term = getattr(message, "term", 0)
        asks = isinstance(message, Vote)
        if asks and not message.pre and not message.urgent and self._follows(now):
            return  # Our leader lives: a peer that lost its connection must not disturb the run.
        answers_pre = isinstance(message, Voted) and message.pre and message.granted
        if term > self.term + TERM_LEAP_MAX and not isinstance(message, Append):
            return  # If we were away for so long, the leader sends its term as well.
        if term > self.term and not (asks and message.pre) and not answers_pre:
            self._step_down(now, term=term)
        match message:
            case Vote():
                self._asked(peer, message, now)
            case Voted():
                self._answered(peer, message, now)
            case Append():
                self._append(peer, message, now)
            case Appended():
                self._appended(peer, message, now)
            case HandOver():
                if term == self.term and peer == self.leader and self._may_stand:
                    self._stand(now, urgent=True)
            case _:
                raise AssertionError(f"no message of ours: {message!r}")

    def advance(self, now: float) -> None:
        """Do what is due: begin an election, or step down if no majority answers."""
        if self.role is Role.LEADER:
            if now >= self._quorum_at:
                self._check_quorum(now)
        elif now >= self._timer.deadline:
            if not self.log.voted_since(self.me, self.commit_index):
                self._timer.deadline = NEVER
            elif not self.disk.works:
                self._arm(now)  # No vote can be written to our disk.
            elif self.log.voters == (self.me,):
                self._stand(now, urgent=False)
            else:
                self._ask_first(now)
        self.disk.retry(now)

    def beat(self, peer: PeerId) -> list[Command]:
        """As leader, a heartbeat to this peer, if it is a reader."""
        speaks = self.leads and not self.disk.is_mute
        return self.replication.beat(peer, self._header()) if speaks else []

    def persisted(self, ticket: int, now: float) -> None:
        """All writes up to this ticket are on the disk."""
        end = self.disk.persisted(ticket)
        if end is not None:
            self.durable_index = min(end, self.log.last_index)
        if self.role is Role.LEADER:
            self._commit(now)
        else:
            self._conclude()

    def persist_failed(self, ticket: int, why: str, now: float) -> None:
        """The disk refused a write: nothing that depends on it is sent until the disk works
        again."""
        if not self.disk.is_under_way(ticket):
            return  # It was written after a write that failed.
        self.disk.failed(why, now, durable=self.durable_index, snapshot=self.replication.snapshot)
        if self.role is Role.LEADER:
            self._step_down(now)

    def installed(
        self, peer: PeerId, snapshot: Snapshot, voters: Voters, term: int, now: float
    ) -> None:
        """Adopt a complete snapshot of the leader of `term`; its image has been checked."""
        if term > self.term:
            self._step_down(now, term=term)
        self._heard(peer, now)
        if snapshot.index > self.commit_index:
            self.disk.log_changed(self.commit_index + 1)  # It may be another leader's log.
            self.durable_index = min(self.durable_index, self.commit_index)
            self.log.begin_at(snapshot.index, snapshot.term, voters)
            self.commit_index = snapshot.index
            self.replication.snapshot = snapshot
            self.disk.snapshot_taken(snapshot)
        self.disk.promise(peer, Appended(self.term, True, self.commit_index))

    def wait(self, now: float) -> None:
        """An earlier incarnation of this peer was a voter: begin an election if no leader is
        heard."""
        alone = self.log.voters == (self.me,)
        self._arm(now, least=0.0, spread=0.0) if alone else self._arm(now)

    def hand_over(self, *, but: Collection[PeerId]) -> bool:
        """Ask a voter that has our whole log to lead; False if there is none yet."""
        heirs = self.replication.complete(self.log.voters) & self.up - set(but)
        if self.role is Role.LEADER and heirs and not self.handing_over:
            self.handing_over = True
            self._out.append(Send(min(heirs), HandOver(self.term)))
        return self.handing_over

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADER

    @property
    def settled(self) -> bool:
        """We lead, and all entries of earlier terms are committed, so we may decide."""
        own_term = self.log.term_at(self.commit_index) == self.term
        return self.leads and own_term and not self.handing_over

    @property
    def reconfiguring(self) -> bool:
        """A change of the voters is not committed yet; there may be one at a time."""
        return self.log.reconfigured > self.commit_index

    @property
    def deadline(self) -> float:
        due = self._quorum_at if self.role is Role.LEADER else self._timer.deadline
        return min(due, self.disk.retry_at)

    # Elections ------------------------------------------------------------------------------

    @property
    def _may_stand(self) -> bool:
        return self.disk.works and self.log.voted_since(self.me, self.commit_index)

    def _follows(self, now: float) -> bool:
        """We lead, or heard our leader recently."""
        if self.role is Role.LEADER:
            return True
        recent = now < self.heard_at + self.rules.election_timeout_s
        return self.leader is not None and not self._leader_down and recent

    def _arm(self, now: float, *, least: float | None = None, spread: float | None = None) -> None:
        timeout = self.rules.election_timeout_s
        least = timeout if least is None else least
        self._timer.arm(now, self.term, least=least, spread=timeout if spread is None else spread)

    def _step_down(self, now: float, *, term: int = 0) -> None:
        """Become a follower: a newer `term` began, or no majority follows us."""
        if term:
            self._vote(term, "")
        self._become(Role.FOLLOWER, None)
        self._quorum_at, self.handing_over = NEVER, False
        self._arm(now)

    def _ask_first(self, now: float) -> None:
        self._become(Role.ASKING, None)
        self._granted = {self.me}
        self._arm(now, least=self.rules.election_timeout_s / 4)
        self._ask(self.log.voters, pre=True)

    def _stand(self, now: float, *, urgent: bool) -> None:
        self._vote(self.term + 1, self.me)
        self._become(Role.CANDIDATE, None)
        self._granted = set[PeerId]()
        self._arm(now)
        self.disk.promise(self.me, Voted(self.term, True, pre=False))
        self._ask(self.log.voters, pre=False, urgent=urgent)

    def _ask(self, peers: Iterable[PeerId], *, pre: bool, urgent: bool = False) -> None:
        term = self.term + 1 if pre else self.term
        question = Vote(term, self.log.last_index, self.log.last_term, pre, urgent)
        for peer in peers:
            if peer in self.up and pre:
                self._out.append(Send(peer, question))
            elif peer in self.up:
                self.disk.promise(peer, question)  # It contains our own vote.

    def _asked(self, peer: PeerId, vote: Vote, now: float) -> None:
        ours = (self.log.last_term, self.log.last_index)
        fits = (vote.last_term, vote.last_index) >= ours and vote.term >= self.term
        if vote.pre:
            granted = fits and vote.term > self.term and not self._follows(now)
            term = vote.term if granted else self.term
            self._out.append(Send(peer, Voted(term, granted, pre=True)))
            return
        granted = fits and vote.term == self.term and self.vote in ("", peer)
        if granted:
            if self.vote != peer:
                self._vote(self.term, peer)
            self._arm(now)
        self.disk.promise(peer, Voted(self.term, granted, pre=False))

    def _answered(self, peer: PeerId, answer: Voted, now: float) -> None:
        if not answer.granted or peer not in self.log.voters:
            return
        if answer.pre and self.role is Role.ASKING and answer.term == self.term + 1:
            self._granted.add(peer)
            if self.log.is_majority(self._granted):
                self._stand(now, urgent=False)
        elif not answer.pre and self.role is Role.CANDIDATE and answer.term == self.term:
            self._granted.add(peer)
            if self.log.is_majority(self._granted):
                self._lead(now)

    def _lead(self, now: float, first: Iterable[Entry] = ()) -> None:
        self._become(Role.LEADER, self.me)
        self.disk.mute()
        self._timer.deadline = NEVER
        self._quorum_at = now + self.rules.election_timeout_s
        self.replication.begin()
        for body in (*first, Elected(self.me)):
            self.append(body)

    def _check_quorum(self, now: float) -> None:
        if self.log.is_majority(self.replication.acknowledged | {self.me}):
            self.replication.acknowledged.clear()
            self._quorum_at = now + self.rules.election_timeout_s
            self.handing_over = False
        else:
            self._step_down(now)

    # Replication ----------------------------------------------------------------------------

    def _header(self) -> Append:
        return Append(self.run, self.term, 0, 0, (), self.commit_index, self.durable_index)

    def _append(self, peer: PeerId, append: Append, now: float) -> None:
        if append.term < self.term:
            self.disk.promise(peer, Appended(self.term, False, self.log.last_index))
            return
        if self.role is Role.LEADER:
            raise RemoteProtocolError(peer, "leads in a term in which we lead")
        self._heard(peer, now)
        held = self.log.term_at(append.previous_index)
        if append.previous_index < self.log.base:
            held = append.previous_term  # Our snapshot covers it, so it is committed.
        if held != append.previous_term:
            agrees = self.log.before_conflict(append.previous_index, floor=self.commit_index)
            self.disk.promise(peer, Appended(self.term, False, agrees))
            return
        first = self.log.merge(append.entries, peer, append, floor=self.commit_index)
        if first is not None:
            self.disk.log_changed(first)
            self.durable_index = min(self.durable_index, first - 1)
        last = append.previous_index + len(append.entries)
        self.commit_index = max(self.commit_index, min(append.commit_index, last))
        self._leader_durable = max(self._leader_durable, min(append.durable_index, last))
        self._conclude()
        self.disk.promise(peer, Appended(self.term, True, last))

    def _heard(self, peer: PeerId, now: float) -> None:
        """The leader of our term was heard."""
        self._become(Role.FOLLOWER, peer)
        self.heard_at = now
        self._leader_down = peer not in self.up
        self._arm(now)

    def _appended(self, peer: PeerId, answer: Appended, now: float) -> None:
        if self.role is Role.LEADER and answer.term == self.term:
            self._out += self.replication.answered(peer, answer, self._header)
            if self.commit_index < self.log.last_index:
                self._commit(now)

    def _commit(self, now: float) -> None:
        """Commit the entries of our own term that a majority holds, and all entries before them."""
        index = self.replication.held(self.durable_index)
        if index > self.commit_index and self.log.term_at(index) == self.term:
            self.commit_index = index
            self._out += self.replication.tell_commit(self._header(), self.up)
        self._out += self.replication.tell_durable(self._header(), self.up)
        if self.me not in self.log.voters and not self.reconfiguring:
            self._step_down(now)  # Our own loss of the vote is committed.

    def _conclude(self) -> None:
        """Commit entries of this term that are on the leader's disk and on ours, if we two are more
        than half of the voters: a round trip before the leader's message."""
        index = min(self._leader_durable, self.durable_index)
        new = index > self.commit_index and self.log.term_at(index) == self.term
        if new and self.leader and self.log.is_majority({self.me, self.leader}):
            self.commit_index = index

    def _become(self, role: Role, leader: PeerId | None) -> None:
        self.role_changes.note(self.role, role)
        self.role, self.leader, self._leader_down = role, leader, False

    def _vote(self, term: int, vote: str) -> None:
        self.term, self.vote = term, vote
        self._leader_durable = 0
        self.disk.vote_changed()
