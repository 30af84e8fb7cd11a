"""Up to which index the log is committed: by the voters' signed acknowledgements if the run is
encrypted, so that a leader cannot claim more; else by the leader's word.

Must NOT count copies of an entry of an earlier term: a newer leader may still replace it (the Raft
paper, figure 8).
"""

from dataclasses import dataclass, field

from protocols.messages.raft import Acknowledgement, Append, Appended
from protocols.raft.durability import Durability
from protocols.raft.log import Log, Voters, voters_after
from protocols.raft.mandate import HeldStatement, LeaderProofs
from protocols.raft.replication import Replication
from protocols.raft.term_state import TermState
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId


def as_leader(log: Log, term: int, held_index: int, commit_index: int) -> int:
    """Commit the entries of our own term that a majority holds (up to `held_index`), and all
    entries before them."""
    if held_index > commit_index and log.term_at(held_index) == term:
        return held_index
    return commit_index


def as_follower(
    log: Log, state: TermState, me: PeerId, durable_index: int, commit_index: int
) -> int:
    """Commit entries of this term that are on the leader's disk and on ours, if we two are more
    than half of the voters: a round trip before the leader's message."""
    index = min(state.leader_durable, durable_index)
    new = index > commit_index and log.term_at(index) == state.term
    if new and state.leader and log.is_majority({me, state.leader}):
        return index
    return commit_index


@dataclass(slots=True)
class Commitment:
    """What one peer knows of the voters' disks in the present term. The leader knows it from their
    answers, other peers from the leader. Raises RemoteProtocolError for a false signature."""

    replication: Replication
    disk: Durability
    state: TermState
    checked_number: int = 0
    """Number of signatures that were checked, in all terms."""
    matched: int = 0
    """Index up to which our log equals the leader's."""
    _term: int = 0
    """The term that all this is about."""
    _told: int = 0
    """Index up to which the log is committed, as the leader of a run without encryption says."""
    _checked: dict[PeerId, Acknowledgement] = field(default_factory=dict[PeerId, Acknowledgement])
    """By voter, its newest acknowledgement of our log with a valid signature."""
    _differing: dict[PeerId, Acknowledgement] = field(default_factory=dict[PeerId, Acknowledgement])
    """By voter, its newest valid acknowledgement of a log that is not ours."""
    _claimed: dict[PeerId, Acknowledgement] = field(default_factory=dict[PeerId, Acknowledgement])
    """Those that are not checked: our log may not reach so far yet."""
    _own: Acknowledgement | None = None
    _shown: tuple[Acknowledgement, ...] = ()
    """What `shown` returned last; () if that has changed."""

    @property
    def _me(self) -> PeerId:
        return self.replication.me

    @property
    def _log(self) -> Log:
        return self.replication.log

    @property
    def _proofs(self) -> LeaderProofs:
        return self.replication.proofs

    # Events ---------------------------------------------------------------------------------

    def begin_term(self) -> None:
        """The term may be another one than at the last call."""
        if self.state.term == self._term:
            return
        self._term, self.matched, self._told = self.state.term, 0, 0
        self._own, self._shown = None, ()
        for table in (self._checked, self._differing, self._claimed):
            table.clear()

    def answered(self, peer: PeerId, answer: Appended, commit_index: int) -> None:
        """As leader: the answer of a reader."""
        held = answer.held
        if not answer.matches or held is None or peer not in self._log.voters:
            return
        if held.voter != peer:
            raise RemoteProtocolError(peer, f"acknowledges the log in the name of {held.voter}")
        self.begin_term()
        self.matched = self._log.last_index
        self._claimed[peer] = held
        self._check(peer, commit_index)

    def merged(self, leader: PeerId, append: Append, commit_index: int) -> None:
        """As follower: our log has the leader's entries now. It is doubted if a majority has
        acknowledged another one: this leader sent us entries that it sent to no other peer."""
        self.begin_term()
        last = append.previous_index + len(append.entries)
        self.matched = max(self.matched, last)
        if not self._proofs.required:
            state = self.state
            state.leader_durable = max(state.leader_durable, min(append.durable_index, last))
            self._told = max(self._told, min(append.commit_index, last))
            return
        if append.held:
            self._claimed = {each.voter: each for each in append.held}
        self._check(leader, commit_index)
        others = {voter: held.index for voter, held in self._differing.items()}
        if _majority_index(self._log.voters, others):
            self._differing.clear()
            self.matched, self._log.doubted = commit_index, True

    def answer(self, index: int, commit_index: int) -> Appended:
        """Our answer to the leader, sent when our log is on our disk: up to `index` it equals the
        leader's."""
        if self._log.doubted:
            return Appended(self.state.term, False, commit_index, doubts=True)
        self.begin_term()
        return Appended(self.state.term, True, index, self._acknowledge(index))

    # Questions ------------------------------------------------------------------------------

    def committed(self, commit_index: int) -> int:
        """The index up to which entries are committed, as far as this peer knows now."""
        self.begin_term()
        log, state, durable = self._log, self.state, self.disk.durable_index
        if state.leads:
            self.matched = log.last_index
        if self._proofs.required:
            return as_leader(log, state.term, self._held_index(), commit_index)
        if not state.leads:
            return max(as_follower(log, state, self._me, durable, commit_index), self._told)
        return as_leader(log, state.term, self.replication.held(durable), commit_index)

    def shown(self) -> tuple[Acknowledgement, ...]:
        """Checked acknowledgements, and our own for our log on the disk. They prove all that is
        committed in this term. () if the run is not encrypted."""
        if not self._proofs.required:
            return ()
        self.begin_term()
        own = self._acknowledge(min(self.disk.durable_index, self.matched))
        if not self._shown:
            valid = {**self._checked, self._me: own}
            self._shown = tuple(
                held for voter in sorted(self._log.voters) if (held := valid.get(voter))
            )
        return self._shown

    def proof(self, index: int) -> tuple[Acknowledgement, ...]:
        """Acknowledgements that prove to a learner that our log is committed up to `index`, as we
        know it is, the shortest first; () if there are not enough."""
        self.shown()
        voters, log = self._log.voters_at(index), self._log
        valid = [*self._checked.values(), *([self._own] if self._own is not None else ())]
        reach = [held for held in valid if held.index >= index and held.voter in voters]
        enough = len(voters) // 2 + 1
        if len(reach) < enough or log.term_at(index) != self._term:
            return ()
        return tuple(sorted(reach, key=lambda held: held.index)[:enough])

    def is_proved(self, append: Append) -> bool:
        """Has a majority acknowledged our log with these relayed entries up to the commit index?
        The voters are those up to there: a single voter vouches for later entries."""
        self.begin_term()
        log, previous, index = self._log, append.previous_index, append.commit_index
        begin, end = max(previous, log.base), previous + len(append.entries)
        if not begin < index <= end or append.entries[index - previous - 1].term != self._term:
            return False
        voters = log.voters_at(begin)
        for entry in append.entries[begin - previous : index - previous]:
            voters = voters_after(voters, entry.body)
        reach = set[PeerId]()
        for held in append.held:
            if index <= held.index <= end and held.voter in voters:
                log_hash = log.hash_with(previous, append.entries[: held.index - previous])
                if held.log_hash == log_hash and self._is_signed(held):
                    reach.add(held.voter)
        return 2 * len(reach) > len(voters)

    # Acknowledgements -----------------------------------------------------------------------

    def _acknowledge(self, index: int) -> Acknowledgement | None:
        """Our signed acknowledgement up to `index`; None if we do not vote, or nothing has to be
        proved."""
        log, proofs = self._log, self._proofs
        votes = proofs.required and self._me in log.voters
        if not votes or not index or index < log.base:
            return None
        log_hash = log.hash_at(index)
        if self._own is None or (self._own.index, self._own.log_hash) != (index, log_hash):
            signature = proofs.sign(HeldStatement(self._term, index, log_hash))
            self._own = Acknowledgement(self._me, index, log_hash, signature)
            self._shown = ()
        return self._own

    def _check(self, sender: PeerId, commit_index: int) -> None:
        """Check claimed signatures; `sender` showed them. A peer that does not vote checks only
        those that commit more: it proves nothing to others."""
        for held in sorted(self._claimed.values(), key=lambda held: held.index, reverse=True):
            if held.index > self.matched:
                continue
            del self._claimed[held.voter]
            if not self._is_needed(held, commit_index):
                continue
            if not self._is_signed(held):
                why = f"shows a false acknowledgement of {held.voter} up to {held.index}"
                raise RemoteProtocolError(sender, why)
            self.checked_number += 1
            equal = held.log_hash == self._log.hash_at(held.index)
            (self._checked if equal else self._differing)[held.voter] = held
            self._shown = ()

    def _is_needed(self, held: Acknowledgement, commit_index: int) -> bool:
        log, known = self._log, self._checked.get(held.voter)
        if held.voter == self._me or held.voter not in log.voters or held.index < log.base:
            return False
        if known is not None and held.index <= known.index:
            return False
        relays = self._me in log.voters and held.index >= commit_index
        return relays or held.index > max(commit_index, self._held_index())

    def _held_index(self) -> int:
        """Index up to which more than half of the voters hold our log."""
        own = min(self.disk.durable_index, self.matched)
        ends = {voter: held.index for voter, held in self._checked.items()}
        return _majority_index(self._log.voters, {**ends, self._me: own})

    def _is_signed(self, held: Acknowledgement) -> bool:
        said = HeldStatement(self._term, held.index, held.log_hash)
        return self._proofs.is_signed(held.voter, said, held.signature)


def _majority_index(voters: Voters, ends: dict[PeerId, int]) -> int:
    """The index that more than half of the voters reach, by voter in `ends`."""
    found = sorted((ends.get(voter, 0) for voter in voters), reverse=True)
    return found[len(found) // 2] if found else 0
