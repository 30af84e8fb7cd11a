"""Remembers which actions a peer has done in each round, and for which peers, so that none is done
twice.

An action is a name with details that tell it from others. Must NOT know what it means.
"""

from collections.abc import Set
from dataclasses import dataclass, field

from protocols.types.ids import PeerId

Deed = tuple[object, ...]


@dataclass(slots=True)
class DoneOnce:
    """By round, the actions that are done, and for which peers."""

    by_round: dict[int, dict[Deed, set[PeerId]]] = field(
        default_factory=dict[int, dict[Deed, set[PeerId]]]
    )

    def is_done(self, peer: PeerId, round_: int, *deed: object) -> bool:
        return peer in self.by_round.get(round_, {}).get(deed, ())

    def once(self, peer: PeerId, round_: int, *deed: object) -> bool:
        """True if the action is not done yet for this peer; it counts as done from now on."""
        done = self.by_round.setdefault(round_, {}).setdefault(deed, set())
        if peer in done:
            return False
        done.add(peer)
        return True

    def anew(self, peers: Set[PeerId], round_: int, *deed: object) -> list[PeerId]:
        """The peers for which the action is not done yet; it counts as done from now on."""
        done = self.by_round.setdefault(round_, {}).setdefault(deed, set())
        if peers <= done:
            return []
        new = sorted(peers - done)
        done.update(new)
        return new

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: actions for it are to be done again."""
        for deeds in self.by_round.values():
            for peers in deeds.values():
                peers.discard(peer)

    def forget_kinds(self, *kinds: str) -> None:
        """Forget actions of these kinds in all rounds and for all peers."""
        for deeds in self.by_round.values():
            for deed in [deed for deed in deeds if deed[0] in kinds]:
                del deeds[deed]

    def drop_before(self, round_: int) -> None:
        for old in [r for r in self.by_round if r < round_]:
            del self.by_round[old]
