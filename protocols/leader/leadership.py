"""Whom we follow, or what we hold while we lead; and who must hear everything once more.

Must NOT elect anybody (raft/node.py), nor decide what goes into the log (decisions.py).
"""

from protocols.leader.term import Office
from protocols.links.connections import Links
from protocols.raft.node import Raft
from protocols.state.run_state import Membership
from protocols.types.ids import PeerId

Term = tuple[PeerId | None, int]
"""(who leads, in which term)."""
NOBODY: Term = (None, -1)


class Government:
    """`office` is there only while we lead."""

    def __init__(self, raft: Raft, members: Membership, links: Links) -> None:
        self.office: Office | None = None
        self._raft = raft
        self._members = members
        self._links = links
        self._reported = NOBODY
        """Whom our reports are meant for."""
        self._told_all = NOBODY
        """And whom we told that it has them all."""
        self._led = NOBODY
        """Who was heard to lead last."""

    def follow(self, now: float) -> bool:
        """Take or leave the office as the last election says; True: somebody new hears us."""
        raft = self._raft
        if self.office is not None and (not raft.leads or self.office.term != raft.term):
            self.office = None
        if raft.leads and self.office is None:
            self.office = Office(raft, self._members, self._links, now)
        changed = self._reported != (raft.leader, raft.term)
        self._reported = (raft.leader, raft.term)
        if raft.leader is not None:
            self._led = self._reported
        return changed

    def is_led_by(self, peer: PeerId) -> bool:
        """It leads in our term, even if we have not heard it for a while and look for another."""
        return self._led == (peer, self._raft.term)

    def reconnected(self, peer: PeerId, incarnation: int) -> None:
        """What we told the leader on the last connection may be lost."""
        if self.office is not None:
            self.office.connected(peer, incarnation)
        if peer == self._raft.leader:
            self._reported = NOBODY

    def disconnected(self, peer: PeerId) -> None:
        if self.office is not None:
            self.office.disconnected(peer)

    def is_hopeless(self, now: float) -> bool:
        """We lead, and nobody has the run's state, nor will."""
        return self.office is not None and self.office.leader.hopeless(now)

    def owes_word(self) -> bool:
        """True once for each leader and term: it waits for the word that it has heard all."""
        owed = self._told_all != self._reported
        self._told_all = self._reported
        return owed
