"""What peers say about terms: signed votes, and claims that are believed to a certain degree.

A voter that stood for election, or voted, can follow its old leader no more, so the leader must
begin a newer term for it. But one liar must not be able to end each term at once. Must NOT change a
term (election.py).
"""

from dataclasses import dataclass, field

from protocols.messages.log_entries import Ballot
from protocols.messages.peer import Vote
from protocols.raft.mandate import HeirStatement, LeaderProofs, VoteStatement
from protocols.raft.term_state import TermState
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId

PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 600.0
"""Seconds between two elections that a leader begins since another peer claims a newer term: twice
as long each time."""
DISTRUST_S = 60.0
"""Seconds without our vote for a leader that has lied: enough for the election of another one."""
DOUBTS_MAX = 16
"""Appends in a row of a peer that has not shown the votes for it. Some may be under way when it is
asked for them."""


@dataclass(slots=True)
class Claims:
    """The words of one peer and of all others."""

    proofs: LeaderProofs
    granted: dict[PeerId, bytes] = field(default_factory=dict[PeerId, bytes])
    """Voters that have answered our question for their votes with yes, and their signatures."""
    later_term: int = 0
    """The highest term that was claimed in a refusal: the next election is about a higher one."""
    _believed_at: float = 0.0
    """From then on a leader begins a newer term if another peer claims one."""
    _pause_s: float = PAUSE_MIN_S
    _liars: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """By peer that sent an invalid log as leader, until when it gets no vote of ours."""
    _doubts: dict[PeerId, int] = field(default_factory=dict[PeerId, int])

    # Signed ---------------------------------------------------------------------------------

    def vote(self, term: int, candidate: PeerId) -> bytes:
        """Our signature under our vote."""
        return self.proofs.sign(VoteStatement(term, candidate))

    def is_vote(self, voter: PeerId, term: int, candidate: PeerId, signature: bytes) -> bool:
        """Has this voter signed its vote? One without a signature would prove nothing to others."""
        return self.proofs.is_signed(voter, VoteStatement(term, candidate), signature)

    def ballots(self, term: int, me: PeerId) -> tuple[Ballot, ...]:
        """The votes that we (`me`) have in this term, our own among them; () if they prove
        nothing."""
        if not self.proofs.required:
            return ()
        votes = {me: self.vote(term, me), **self.granted}
        return tuple(Ballot(voter, signature) for voter, signature in sorted(votes.items()))

    def wish(self, term: int, heir: PeerId) -> bytes:
        """Our signature, as the leader of `term`, under the wish that this peer leads next."""
        return self.proofs.sign(HeirStatement(term, heir))

    def is_heir(self, state: TermState, peer: PeerId, vote: Vote) -> bool:
        """May the candidate lead, although our leader lives? It may if the leader wishes it, or if
        it leads itself and begins a newer term."""
        leader = state.leader
        if not vote.urgent or leader is None or vote.term <= state.term:
            return False
        wish = HeirStatement(state.term, peer)
        return peer == leader or self.proofs.is_signed(leader, wish, vote.signature)

    # Not signed -----------------------------------------------------------------------------

    def lied(self, peer: PeerId, now: float) -> None:
        """A leader sent an invalid log. It has the longest one, so it would be elected again."""
        self._liars[peer] = now + DISTRUST_S

    def distrusts(self, peer: PeerId, now: float) -> bool:
        return now < self._liars.get(peer, 0.0)

    def believes(self, now: float) -> bool:
        """Does a leader begin a newer term now, since another peer claims one?"""
        if now < self._believed_at:
            return False
        if now >= self._believed_at + PAUSE_MAX_S:
            self._pause_s = PAUSE_MIN_S
        self._believed_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return True

    def doubt(self, peer: PeerId, term: int) -> None:
        """An Append of a peer that has not proved that it leads. Raises RemoteProtocolError if
        there were too many."""
        self._doubts[peer] = self._doubts.get(peer, 0) + 1
        if self._doubts[peer] > DOUBTS_MAX:
            raise RemoteProtocolError(peer, f"claims to lead term {term} and shows no votes")

    def proved(self, peer: PeerId) -> None:
        self._doubts.pop(peer, None)
