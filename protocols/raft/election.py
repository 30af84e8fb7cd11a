"""Which peer leads: candidacy, votes, and handing over (protocol.md section 1).

Sources: Ongaro's thesis for pre-vote (9.6), check-quorum (6.2) and leadership transfer (3.10). Must
NOT append to the log, nor know what is committed beyond the index that it is told (node.py).
"""

from collections.abc import Collection, Iterable

from protocols.interface.commands import Command, Send
from protocols.messages.peer import Append, Appended, Control, HandOver, Vote, Voted
from protocols.raft.claims import Claims
from protocols.raft.durability import Durability
from protocols.raft.election_timer import ElectionTimer
from protocols.raft.mandate import LeaderProofs
from protocols.raft.replication import Replication
from protocols.raft.term_state import Role, TermState
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId
from protocols.types.limits import TERM_LEAP_MAX
from protocols.types.rules import ProtocolConfig


class Election:
    """One peer's part in the elections. It adds its messages to `out`, or to those that wait for
    the disk."""

    def __init__(
        self,
        disk: Durability,
        replication: Replication,
        proofs: LeaderProofs,
        *,
        up: set[PeerId],
        out: list[Command],
    ) -> None:
        """`up`: the connected peers; `out`: the commands of the Raft node. The node changes
        both."""
        self.rules = ProtocolConfig()
        self.state = TermState()
        self.handing_over = False
        """We have asked another voter to lead, and decide nothing unless it fails to."""
        self.claims = Claims(proofs)
        self._me, self._log = replication.me, replication.log
        self._disk, self._replication = disk, replication
        self._up, self._out = up, out
        self._timer = ElectionTimer(replication.me)
        """The timer of the next election."""
        self._quorum_at = NEVER
        """When we step down as leader, unless a majority has answered by then."""

    @property
    def deadline(self) -> float:
        return self._quorum_at if self.state.leads else self._timer.deadline

    @property
    def timeout_s(self) -> float:
        """Seconds for which the leader may be silent."""
        return self._timer.timeout_s(self.rules)

    def expect(self, pause_s: float) -> None:
        """The longest pause of the present leader lately, seconds; NEVER: not known."""
        self._timer.pause_s = pause_s

    def advance(self, now: float, commit_index: int) -> None:
        """Do what is due: begin an election, or step down if no majority answers."""
        if self.state.leads:
            if now >= self._quorum_at:
                self._check_quorum(now)
        elif now >= self._timer.deadline:
            if not self._log.voted_since(self._me, commit_index):
                self._timer.deadline = NEVER
            elif not self._disk.works:
                self._arm(now)  # No vote can be written to our disk.
            elif self._log.voters == (self._me,):
                self._stand(now, urgent=False)
            else:
                self._ask_first(now)

    def admits(self, peer: PeerId, message: Control, now: float) -> bool:
        """Does the message count? If it asks for a vote in a newer term, or a leader sends it, that
        term begins."""
        state, term = self.state, getattr(message, "term", 0)
        vote = message if isinstance(message, Vote) and not message.pre else None
        if vote is not None and self._follows(now) and not self.claims.is_heir(state, peer, vote):
            return False  # Our leader lives: a peer that lost its connection must not disturb.
        if not self.is_near(term, now, raises=isinstance(message, Append)):
            return False
        if term <= state.term:
            return True
        if vote is not None or isinstance(message, Append):
            self.step_down(now, term=term)
        elif isinstance(message, Appended):
            self._claimed(peer, term, now)
            return False
        elif isinstance(message, Voted) and not message.granted:
            self.claims.later_term = max(self.claims.later_term, term)
        return True

    def _claimed(self, peer: PeerId, term: int, now: float) -> None:
        """A reader of our log refuses it, since a newer term began for it: there may have been a
        candidate that lost. Only a newer term of ours brings it back."""
        if self.state.leads and self._replication.serves(peer) and self.claims.believes(now):
            self.step_down(now, term=term)
            self._stand(now, urgent=True)

    def is_near(self, term: int, now: float, *, raises: bool) -> bool:
        """False if the term is more than TERM_LEAP_MAX ahead. If a leader sends it (`raises`), our
        term then rises by that much: after a long absence we follow its repeated messages to the
        present term, but a false one cannot use up the range of terms."""
        if term <= self.state.term + TERM_LEAP_MAX:
            return True
        if raises:
            self.step_down(now, term=self.state.term + TERM_LEAP_MAX)
        return False

    def asked(self, peer: PeerId, vote: Vote, now: float) -> None:
        """A candidate asks for our vote, or whether it would get it."""
        state = self.state
        ours = (self._log.last_term, self._log.last_index)
        fits = (vote.last_term, vote.last_index) >= ours and vote.term >= state.term
        fits = fits and not self.claims.distrusts(peer, now)
        if vote.pre:
            granted = fits and vote.term > state.term and not self._follows(now)
            term = vote.term if granted else state.term
            self._out.append(Send(peer, Voted(term, granted, pre=True)))
            return
        granted = fits and vote.term == state.term and state.vote in ("", peer)
        if granted:
            if state.vote != peer:
                self.vote(state.term, peer)
            self._arm(now)
        signature = self.claims.vote(state.term, peer) if granted else b""
        self._disk.promise(peer, Voted(state.term, granted, False, signature))

    def answered(self, peer: PeerId, answer: Voted, now: float) -> bool:
        """A voter answers. True if we have won the election with that: then `lead`."""
        state = self.state
        granted = self.claims.granted
        if not answer.granted or peer not in self._log.voters:
            return False
        if answer.pre and state.role is Role.ASKING and answer.term == state.term + 1:
            granted[peer] = b""
            if self._log.is_majority(granted.keys()):
                self._stand(now, urgent=False)
        elif not answer.pre and state.role is Role.CANDIDATE and answer.term == state.term:
            if self.claims.is_vote(peer, state.term, self._me, answer.signature):
                granted[peer] = answer.signature
            return self._log.is_majority(granted.keys())
        return False

    def asked_to_lead(self, peer: PeerId, message: HandOver, now: float, commit_index: int) -> None:
        """The leader hands over to us."""
        state = self.state
        may_stand = self._disk.works and self._log.voted_since(self._me, commit_index)
        if message.term == state.term and peer == state.leader and may_stand:
            self._stand(now, urgent=True, signature=message.signature)

    def hand_over(self, *, but: Collection[PeerId]) -> bool:
        """Ask a voter that has our whole log to lead; False if there is none yet."""
        heirs = self._replication.complete(self._log.voters) & self._up - set(but)
        if self.state.leads and heirs and not self.handing_over:
            self.handing_over = True
            term, heir = self.state.term, min(heirs)
            self._out.append(Send(heir, HandOver(term, self.claims.wish(term, heir))))
        return self.handing_over

    def lead(self, now: float) -> None:
        """The term of this peer as leader begins."""
        self.state.become(Role.LEADER, self._me)
        self._disk.mute()
        self._timer.deadline = NEVER
        self._quorum_at = now + self.rules.election_timeout_s
        self._replication.begin_term()

    def vote(self, term: int, vote: str) -> None:
        """Begin this term, or give our vote in it ("": to no peer yet)."""
        if term != self.state.term:
            self.claims.granted = {}
        self.state.begin_term(term, vote)
        self._disk.vote_changed()

    def step_down(self, now: float, *, term: int = 0) -> None:
        """Become a follower: a newer `term` began, or no majority follows us."""
        if term:
            self.vote(term, "")
        self.state.become(Role.FOLLOWER, None)
        self._quorum_at, self.handing_over = NEVER, False
        self._arm(now)

    def heard(self, peer: PeerId, now: float) -> None:
        """The leader of our term was heard."""
        state = self.state
        if peer != state.leader:
            self._timer.pause_s = NEVER
        state.become(Role.FOLLOWER, peer)
        state.heard_at, self._timer.tries = now, 0
        state.leader_down = peer not in self._up
        self._arm(now)

    def wait(self, now: float) -> None:
        """An earlier incarnation of this peer was a voter: begin an election if no leader is
        heard."""
        alone = self._log.voters == (self._me,)
        self._arm(now, least=0.0, spread=0.0) if alone else self._arm(now)

    def connected(self, peer: PeerId, now: float) -> None:
        """A connection was made while this peer does not lead."""
        if peer == self.state.leader:
            self.state.leader_down = False
            self._arm(now)
        elif self.state.role is Role.CANDIDATE and peer in self._log.voters:
            self._ask([peer], pre=False)  # Our question may have been lost.

    def disconnected(self, peer: PeerId, now: float, *, lives: bool) -> None:
        if peer == self.state.leader and not lives and not self.state.leader_down:
            self.state.leader_down, grace_s = True, self.rules.reconnect_grace_s
            self._arm(now, least=grace_s, spread=grace_s)

    def _follows(self, now: float) -> bool:
        return self.state.follows(now, self.timeout_s)

    def _arm(self, now: float, *, least: float | None = None, spread: float | None = None) -> None:
        timeout = self._timer.patience_s(self.rules)
        least = timeout if least is None else least
        spread = timeout if spread is None else spread
        self._timer.arm(now, self.state.term, least=least, spread=spread)

    def _ask_first(self, now: float) -> None:
        if self.claims.later_term > self.state.term:
            self.vote(self.claims.later_term, "")
        self.state.become(Role.ASKING, None)
        self.claims.granted = {self._me: b""}
        self._arm(now, least=self.timeout_s / 4, spread=self.timeout_s)
        self._ask(self._log.voters, pre=True)

    def _stand(self, now: float, *, urgent: bool, signature: bytes = b"") -> None:
        """`signature`: that of the leader that hands over to us."""
        self.vote(self.state.term + 1, self._me)
        self.state.become(Role.CANDIDATE, None)
        self._arm(now)
        self._timer.tries += 1
        own = self.claims.vote(self.state.term, self._me)
        self._disk.promise(self._me, Voted(self.state.term, True, False, own))
        self._ask(self._log.voters, pre=False, urgent=urgent, signature=signature)

    def _ask(
        self,
        peers: Iterable[PeerId],
        *,
        pre: bool,
        urgent: bool = False,
        signature: bytes = b"",
    ) -> None:
        term = self.state.term + 1 if pre else self.state.term
        last = (self._log.last_index, self._log.last_term)
        question = Vote(term, *last, pre, urgent, signature)
        for peer in peers:
            if peer in self._up and pre:
                self._out.append(Send(peer, question))
            elif peer in self._up:
                self._disk.promise(peer, question)  # It contains our own vote.

    def _check_quorum(self, now: float) -> None:
        acknowledged = self._replication.acknowledged
        if self._log.is_majority(acknowledged | {self._me}):
            acknowledged.clear()
            self._quorum_at = now + self.rules.election_timeout_s
            self.handing_over = False
        else:
            self.step_down(now)
