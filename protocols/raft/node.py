"""Raft: one peer's replicated log, and which of its entries are committed (protocol.md section 1).

Sources: Ongaro and Ousterhout 2014; Ongaro's thesis for membership changes by one voter (4.1).
Elections are in election.py. Must NOT know what an entry means beyond the voters, and must not send
what its disk does not hold (durability.py).
"""

from collections.abc import Collection, Iterable, Mapping

from protocols.interface.commands import Command, Send
from protocols.messages.log_entries import Elected, Entry, LogEntry, Restore
from protocols.messages.peer import Append, Appended, Control, HandOver, Leads, Vote, Voted
from protocols.messages.persisted import Saved, Snapshot
from protocols.raft.commitment import Commitment
from protocols.raft.durability import Durability
from protocols.raft.election import Election
from protocols.raft.log import EMPTY_HASH, Log, Voters
from protocols.raft.mandate import ChangeStatement, LeaderProofs, NoProofs
from protocols.raft.replication import Replication
from protocols.raft.term_state import Role
from protocols.types.errors import LogError, RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig


class Raft:
    """The Raft node of one peer; `take_commands` returns the commands of the last calls."""

    def __init__(
        self,
        me: PeerId,
        saved: Saved | None = None,
        base: tuple[Voters, bytes] = ((), EMPTY_HASH),
        proofs: LeaderProofs | None = None,
    ) -> None:
        """`saved`: what an earlier incarnation left on the disk; `base`: voters and hash of the log
        at its snapshot; `proofs`: None if the run is not encrypted."""
        self.me = me
        self.rules, self.run, self.log = ProtocolConfig(), 0, Log()
        self.commit_index = 0
        self.up, self.disk = set[PeerId](), Durability()
        self.proofs = proofs or NoProofs()
        self.proofs.read(self.log)
        snapshot = saved.snapshot if saved is not None else None
        self.replication = Replication(me, self.log, self.proofs, snapshot)
        self._out: list[Command] = []
        shared = (self.disk, self.replication, self.proofs)
        self.election = Election(*shared, up=self.up, out=self._out)
        self.term_state = self.election.state
        """The same object; code that runs with each event reads it, not the properties below."""
        self.commitment = Commitment(self.replication, self.disk, self.term_state)
        if saved is None:
            return
        self.term_state.begin_term(saved.term, saved.vote)
        if snapshot is not None:
            self.log.begin_at(snapshot.index, snapshot.term, *base)
            self.commit_index = snapshot.index
        for entry in saved.entries:
            self.log.add(entry)
        self.disk.loaded(self.log.last_index)

    # Interface ------------------------------------------------------------------------------

    def found_run(self, now: float, entries: Iterable[Entry]) -> None:
        """Found a run: the first entry names us as the only voter, so we lead at once."""
        assert self.log.last_index == 0, "this log has begun"
        self.election.vote(1, self.me)
        self._lead(now, first=entries)

    def seize(self, now: float, fork: Restore, *, after: int) -> None:
        """Go on without the other voters, with our log up to index `after`."""
        self.log.cut_off(after + 1)
        self.disk.log_changed(after + 1)
        self.election.vote(self.term + 1, self.me)
        self.term_state.become(Role.CANDIDATE, None)
        self._lead(now, first=(fork,))

    def take_commands(self, now: float) -> list[Command]:
        """Commands since the last call; changes that must survive a crash are in a Persist."""
        out, state = self._out.copy(), self.term_state
        self._out.clear()
        return self.disk.release(out, self.disk.collect(state.term, state.vote, self.log, now))

    def append(self, body: Entry) -> LogEntry:
        """Append an entry to the log; only a leader may."""
        assert self.leads, "only the leader appends"
        sign = self.proofs.sign
        entry = self.log.append(body, term=self.term, sign=lambda x: sign(ChangeStatement(x)))
        self.disk.log_changed(entry.index)
        self._out += self.replication.publish(self._header(), self.up)
        return entry

    def serve(
        self, readers: Iterable[PeerId], *, begin_from: Mapping[PeerId, int] | None = None
    ) -> None:
        """As leader, replicate the log to exactly these peers from now on. `begin_from`: by reader,
        the index up to which it reports to have the log."""
        self._out += self.replication.follow(readers, self._header, self.up)
        for peer, index in (begin_from or {}).items():
            self._out += self.replication.begin_from(peer, index, self._header())

    def compact(self, snapshot: Snapshot, *, to: int) -> None:
        """Drop the entries up to index `to`; readers that lack them get the snapshot."""
        self.log.compact(to)
        self.replication.snapshot = snapshot
        self.disk.snapshot_taken(snapshot)

    def relay(self, peers: Collection[PeerId]) -> None:
        """Relays bring the log to these peers from now on."""
        self._out += self.replication.relay(peers, self._header(), self.up)

    def connected(self, peer: PeerId, now: float) -> None:
        self.up.add(peer)
        self.replication.restart(peer)
        if self.leads:
            self._out += self.replication.beat(peer, self._header())
        else:
            self.election.connected(peer, now)

    def disconnected(self, peer: PeerId, now: float, *, lives: bool = False) -> None:
        """`lives`: its process has not ended."""
        self.up.discard(peer)
        self.replication.restart(peer)
        self.election.disconnected(peer, now, lives=lives)

    def sign_of_life(self, peer: PeerId, now: float) -> None:
        """Something arrived of this peer that is no message of Raft yet."""
        if peer == self.leader and not self.leads:
            self.election.heard(peer, now)

    def receive(self, peer: PeerId, message: Control, now: float) -> None:
        """Handle a message of another peer. Raises RemoteProtocolError if it breaks the rules."""
        if peer == self.term_state.refused and getattr(message, "term", 0) == self.term:
            if isinstance(message, Append):  # We follow it again in a newer term, if it is elected.
                self._out.append(Send(peer, Appended(self.term + 1, False, self.log.last_index)))
            return
        if isinstance(message, Leads):
            self._shown(peer, message, now)
            return
        if isinstance(message, Append) and not self.is_proved(peer, message.term):
            self._doubt(peer, message)
            return
        if not self.election.admits(peer, message, now):
            return
        match message:
            case Vote():
                self.election.asked(peer, message, now)
            case Voted():
                if self.election.answered(peer, message, now):
                    self._lead(now)
            case Append():
                self._append(peer, message, now)
            case Appended():
                if self.leads and message.term == self.term:
                    self._out += self.replication.answered(peer, message, self._header)
                    self.commitment.answered(peer, message, self.commit_index)
                    if self.commit_index < self.log.last_index:
                        self._commit(now)
            case HandOver():
                self.election.asked_to_lead(peer, message, now, self.commit_index)
            case _:
                raise AssertionError(f"no message of ours: {message!r}")

    def is_proved(self, peer: PeerId, term: int) -> bool:
        """Has the peer proved that it leads this term? True for an old term, which is refused."""
        if peer == self.term_state.refused and term == self.term:
            return False
        old = not self.proofs.required or term < self.term
        return old or (term == self.term and peer == self.term_state.proved)

    def advance(self, now: float) -> None:
        """Do what is due: elections, another attempt of a failed disk, and what a disk that hangs
        leads to."""
        if self.disk.hangs(now):
            self._resign(now)
        self.election.advance(now, self.commit_index)
        self.disk.retry(now)

    def beat(self, peer: PeerId) -> list[Command]:
        """As leader, a heartbeat to this peer, if it is a reader."""
        speaks = self.leads and not self.disk.is_mute
        return self.replication.beat(peer, self._header()) if speaks else []

    def persisted(self, write_number: int, now: float) -> None:
        """All writes up to this number are on the disk."""
        self.disk.persisted(write_number, now)
        self._commit(now)

    def persist_failed(self, write_number: int, why: str, now: float) -> None:
        """The disk refused a write: nothing that depends on it is sent until the disk works
        again."""
        if not self.disk.is_under_way(write_number):
            return  # It was written after a write that failed.
        self.disk.failed(why, now, snapshot=self.replication.snapshot)
        self._resign(now)

    def installed(
        self, peer: PeerId, snapshot: Snapshot, base: tuple[Voters, bytes], term: int, now: float
    ) -> None:
        """Adopt a complete snapshot of the leader of `term`; its image, which names voters and hash
        of the log (`base`), has been checked."""
        if term > self.term:
            self.election.step_down(now, term=term)
        self.election.heard(peer, now)
        if snapshot.index > self.commit_index:
            self.disk.log_changed(self.commit_index + 1)  # It may be another leader's log.
            self.log.begin_at(snapshot.index, snapshot.term, *base)
            self.commit_index = snapshot.index
            self.replication.snapshot = snapshot
            self.disk.snapshot_taken(snapshot)
        self.disk.promise(peer, self.commitment.answer(self.commit_index, self.commit_index))

    @property
    def term(self) -> int:
        return self.term_state.term

    @property
    def leader(self) -> PeerId | None:
        """The leader of the present term; None if it is not known."""
        return self.term_state.leader

    @property
    def leads(self) -> bool:
        return self.term_state.leads

    @property
    def settled(self) -> bool:
        """We lead, and all entries of earlier terms are committed, so we may decide."""
        state = self.term_state
        own_term = self.log.term_at(self.commit_index) == state.term
        return state.leads and own_term and not self.election.handing_over

    @property
    def reconfiguring(self) -> bool:
        """A change of the voters is not committed yet; there may be one at a time."""
        return self.log.reconfigured > self.commit_index

    @property
    def deadline(self) -> float:
        return min(self.election.deadline, self.disk.deadline)

    # Replication ----------------------------------------------------------------------------

    def _lead(self, now: float, first: Iterable[Entry] = ()) -> None:
        self.election.lead(now)
        for body in first:
            self.append(body)
        claims = self.election.claims
        self.append(Elected(self.me, claims.ballots(self.term, self.me)))

    def _resign(self, now: float) -> None:
        """Our disk fails: a voter that has our whole log leads at once, else an election begins."""
        self.election.hand_over(but=())
        if self.term_state.role is not Role.FOLLOWER:
            self.election.step_down(now)  # A candidate, too: its own vote may be late by hours.

    def _header(self) -> Append:
        ends, held = (self.commit_index, self.disk.durable_index), self.commitment.shown()
        return Append(self.run, self.term, 0, 0, (), *ends, held)

    def _shown(self, peer: PeerId, leads: Leads, now: float) -> None:
        """A peer shows that it leads. Raises RemoteProtocolError if that proves nothing."""
        if not self.proofs.required and self.log.last_index:
            return
        if leads.term < self.term or (self.run and leads.run != self.run):
            return
        if leads.term == self.term and self.leads:
            raise RemoteProtocolError(peer, "leads in a term in which we lead")
        if not self.proofs.proves(leads.mandate, peer, leads.term):
            why = f"claims to lead term {leads.term} without the votes of a majority"
            raise RemoteProtocolError(peer, why)
        if leads.term > self.term:
            self.election.step_down(now, term=leads.term)
        self.term_state.proved = peer
        claims = self.election.claims
        claims.proved(peer)
        self.election.heard(peer, now)

    def _doubt(self, peer: PeerId, append: Append) -> None:
        """Ask a peer for the proof that it leads. Raises RemoteProtocolError if it never comes."""
        claims = self.election.claims
        claims.doubt(peer, append.term)
        self._out.append(Send(peer, Appended(append.term, False, self.log.last_index)))

    def _append(self, peer: PeerId, append: Append, now: float) -> None:
        if append.term < self.term:
            self.disk.promise(peer, Appended(self.term, False, self.log.last_index))
            return
        if self.leads:
            raise RemoteProtocolError(peer, "leads in a term in which we lead")
        self.election.heard(peer, now)
        held = self.log.term_at(append.previous_index)
        if append.previous_index < self.log.base:
            held = append.previous_term  # Our snapshot covers it, so it is committed.
        if held != append.previous_term:
            agrees = self.log.before_conflict(append.previous_index, floor=self.commit_index)
            self.disk.promise(peer, Appended(self.term, False, agrees))
            return
        try:
            first = self.log.merge(append.entries, peer, append, floor=self.commit_index)
            if first is not None:
                self.disk.log_changed(first)
            self.commitment.merged(peer, append, self.commit_index)
        except (LogError, RemoteProtocolError):
            claims = self.election.claims
            claims.lied(peer, now)
            self.term_state.refused = peer
            self.election.step_down(now)
            raise
        last = append.previous_index + len(append.entries)
        self._commit(now)
        self.disk.promise(peer, self.commitment.answer(last, self.commit_index))

    def _commit(self, now: float) -> None:
        """Commit the entries that may be committed now, and send the news as leader."""
        index = self.commitment.committed(self.commit_index)
        if not self.leads:
            self.commit_index = index
            return
        if index > self.commit_index:
            self.commit_index = index
            self._out += self.replication.tell_commit(self._header(), self.up)
        self._out += self.replication.tell_durable(self._header(), self.up)
        if self.me not in self.log.voters and not self.reconfiguring:
            self.election.step_down(now)  # Our own loss of the vote is committed.
