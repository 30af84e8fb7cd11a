"""What the leader knows of each peer beyond the log: one record per life, dropped as a whole.

A record is of the life in which the peer is connected, or may come back. Another life begins with
an empty one. Must NOT decide anything (decisions.py, joins.py), nor hold what belongs to a round
(reports.py).
"""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from protocols.links.connections import Links
from protocols.types.ids import PeerId


@dataclass(slots=True)
class Account:
    """What one life of a peer said of itself in this term."""

    incarnation: int
    """Which life, as its connection says; 0: the leader itself, or a peer that was lost."""
    told: bool = False
    """It has repeated in this term everything that it knows."""
    broken: str = ""
    """Why its disk takes nothing; "" if it does."""
    going: bool = False
    """It wants to leave: it says what it lacks, and gets nothing."""


@dataclass(slots=True)
class Accounts:
    """Of one leader, for one term."""

    links: Links = field(default_factory=Links)
    _of: dict[PeerId, Account] = field(default_factory=dict[PeerId, Account])

    def of(self, peer: PeerId) -> Account:
        """That of its present life, to be written to."""
        known, life = self._of.get(peer), self.links.life(peer, 0)
        if known is None or known.incarnation != life:
            self._of[peer] = known = Account(life)
        return known

    def goes(self, peer: PeerId, incarnation: int) -> bool:
        """This life of the peer wants to leave."""
        known = self._of.get(peer)
        return known is not None and known.going and known.incarnation == incarnation

    def told(self, peer: PeerId) -> bool:
        """Its present life has repeated everything."""
        known = self._of.get(peer)
        return known is not None and known.told and self._is_present(peer, known)

    def broken(self, peer: PeerId) -> str:
        """Why its disk takes nothing, as its present life says; "" if it does."""
        known = self._of.get(peer)
        if known is None or not known.broken:
            return ""  # As nearly always.
        return known.broken if self._is_present(peer, known) else ""

    @property
    def going(self) -> set[PeerId]:
        """Peers that want to leave."""
        return {x for x, known in self._of.items() if known.going and self._is_present(x, known)}

    def drop(self, peer: PeerId) -> None:
        """The peer is gone."""
        self._of.pop(peer, None)

    def keep(self, peers: Set[PeerId]) -> None:
        """Nobody will ask for any other peer."""
        keep_only(peers, self._of)

    def _is_present(self, peer: PeerId, known: Account) -> bool:
        return known.incarnation == self.links.life(peer, 0)


def keep_only(peers: Set[PeerId], *tables: dict[PeerId, Any]) -> None:
    """Forget what is said of any other peer."""
    for table in tables:
        if not table.keys() <= peers:
            for peer in table.keys() - peers:
                del table[peer]
