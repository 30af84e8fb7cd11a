"""What a peer did already, for whom, in the rounds of one fragment: nothing is done twice.

Must NOT know what a deed means: a name, and what tells one from another, is all.
"""

from collections.abc import Set
from dataclasses import dataclass, field

from protocols.types.ids import PeerId

Deed = tuple[object, ...]


@dataclass(slots=True)
class Deeds:
    """By round: what was started or sent already, and to whom."""

    by_round: dict[int, dict[Deed, set[PeerId]]] = field(
        default_factory=dict[int, dict[Deed, set[PeerId]]]
    )

    def is_done(self, peer: PeerId, round_: int, *deed: object) -> bool:
        return peer in self.by_round.get(round_, {}).get(deed, ())

    def once(self, peer: PeerId, round_: int, *deed: object) -> bool:
        """Is it to be done for this peer? It counts as done now."""
        done = self.by_round.setdefault(round_, {}).setdefault(deed, set())
        if peer in done:
            return False
        done.add(peer)
        return True

    def anew(self, peers: Set[PeerId], round_: int, *deed: object) -> list[PeerId]:
        """Those of the peers for whom this was not done yet: it counts as done now."""
        done = self.by_round.setdefault(round_, {}).setdefault(deed, set())
        if peers <= done:
            return []
        new = sorted(peers - done)
        done.update(new)
        return new

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: what it needs is done again."""
        for deeds in self.by_round.values():
            for peers in deeds.values():
                peers.discard(peer)

    def forget_kinds(self, *kinds: str) -> None:
        """Of all rounds, for everybody."""
        for deeds in self.by_round.values():
            for deed in [deed for deed in deeds if deed[0] in kinds]:
                del deeds[deed]

    def drop_before(self, round_: int) -> None:
        for old in [r for r in self.by_round if r < round_]:
            del self.by_round[old]
