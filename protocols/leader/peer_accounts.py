"""The leader's knowledge of each peer beyond the log: one record per incarnation, dropped as a
whole.

A record is of the incarnation that is connected, or may reconnect. Another incarnation begins with
an empty record. Must NOT decide anything (decisions.py, joins.py), nor hold reports about rounds
(reports.py).
"""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from protocols.links.connections import Connections
from protocols.types.ids import PeerId


@dataclass(slots=True)
class Account:
    """The reports of one incarnation of a peer about itself in this term."""

    incarnation: int
    """The incarnation of its connection; 0 for the leader itself, or a lost peer."""
    told: bool = False
    """It has repeated all of its reports in this term."""
    broken: str = ""
    """Why its disk fails; "" if it works."""
    going: bool = False
    """It wants to leave: its reports count, but it gets no state."""


@dataclass(slots=True)
class Accounts:
    """The records of one leader in one term."""

    links: Connections = field(default_factory=Connections)
    _of: dict[PeerId, Account] = field(default_factory=dict[PeerId, Account])

    def for_peer(self, peer: PeerId) -> Account:
        """The record of the present incarnation, for changes."""
        known, life = self._of.get(peer), self.links.life(peer, 0)
        if known is None or known.incarnation != life:
            self._of[peer] = known = Account(life)
        return known

    def goes(self, peer: PeerId, incarnation: int) -> bool:
        """Does this incarnation of the peer want to leave?"""
        known = self._of.get(peer)
        return known is not None and known.going and known.incarnation == incarnation

    def told(self, peer: PeerId) -> bool:
        """Has its present incarnation repeated all reports?"""
        known = self._of.get(peer)
        return known is not None and known.told and self._is_present(peer, known)

    def broken(self, peer: PeerId) -> str:
        """Why the disk of its present incarnation fails; "" if it works."""
        known = self._of.get(peer)
        if known is None or not known.broken:
            return ""  # The usual case.
        return known.broken if self._is_present(peer, known) else ""

    @property
    def going(self) -> set[PeerId]:
        """Peers that want to leave."""
        return {x for x, known in self._of.items() if known.going and self._is_present(x, known)}

    def forget(self, peer: PeerId) -> None:
        """The peer is gone."""
        self._of.pop(peer, None)

    def keep(self, peers: Set[PeerId]) -> None:
        """Drop the records of all other peers."""
        keep_only(peers, self._of)

    def _is_present(self, peer: PeerId, known: Account) -> bool:
        return known.incarnation == self.links.life(peer, 0)


def keep_only(peers: Set[PeerId], *tables: dict[PeerId, Any]) -> None:
    """Drop the rows of all other peers from these tables."""
    for table in tables:
        if not table.keys() <= peers:
            for peer in table.keys() - peers:
                del table[peer]
