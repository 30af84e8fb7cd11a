"""The leader that this peer follows, or its own term as leader; and which leader needs all reports
again.

Must NOT elect a leader (raft/election.py), nor decide what goes into the log (decisions.py).
"""

from protocols.leader.term import LeadershipTerm
from protocols.links.connections import Connections
from protocols.raft.node import Raft
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId

Term = tuple[PeerId | None, int]
"""(leader, term)."""
NOBODY: Term = (None, -1)


class Leadership:
    """`led_term` is None unless this peer leads."""

    def __init__(self, raft: Raft, run_state: RunState, links: Connections) -> None:
        self.led_term: LeadershipTerm | None = None
        self._raft = raft
        self._run_state = run_state
        self._links = links
        self._reported = NOBODY
        """The leader and term that our reports are meant for."""
        self._told_all = NOBODY
        """The leader and term to which we sent ReportsComplete."""
        self._led = NOBODY
        """The leader and term that were heard last."""

    def follow(self, now: float) -> bool:
        """Begin or end our own term as the last election says; True if there is a new leader or
        term."""
        state = self._raft.term_state
        if self.led_term is not None and (not state.leads or self.led_term.term != state.term):
            self.led_term = None
        if state.leads and self.led_term is None:
            self.led_term = LeadershipTerm(self._raft, self._run_state, self._links, now)
        changed = self._reported != (state.leader, state.term)
        self._reported = (state.leader, state.term)
        if state.leader is not None:
            self._led = self._reported
        return changed

    def is_led_by(self, peer: PeerId) -> bool:
        """Does the peer lead in our term, even if it was silent and we look for another leader?"""
        return self._led == (peer, self._raft.term)

    def reconnected(self, peer: PeerId, incarnation: int) -> None:
        """The leader has reconnected: reports on the last connection may be lost."""
        if self.led_term is not None:
            self.led_term.connected(peer, incarnation)
        if peer == self._raft.leader:
            self._reported = NOBODY

    def disconnected(self, peer: PeerId) -> None:
        if self.led_term is not None:
            self.led_term.disconnected(peer)

    def is_hopeless(self, now: float) -> bool:
        """Do we lead, and no peer has the run's state, nor will have it?"""
        led_term = self.led_term
        return led_term is not None and led_term.leader.hopeless(now)

    def owes_word(self) -> bool:
        """True once for each leader and term: it waits for ReportsComplete."""
        owed = self._told_all != self._reported
        self._told_all = self._reported
        return owed
