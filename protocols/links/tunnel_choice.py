"""Two peers that nobody can dial speak through a third one, that both have dialled.

Must NOT know who is connected with the other one: whoever is asked says so.
"""

from collections.abc import Iterable
from hashlib import blake2b

from protocols.types.ids import PeerId

RELAYS_MAX = 8
"""Tried for one pair, in turn."""


def relays(one: PeerId, other: PeerId, listening: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Through whom these two speak, the first choice first.

    Rendezvous hashing: every pair has an order of its own, so that pairs spread over those who
    listen, and whoever comes or goes moves only the pairs that it serves.
    """
    pair = " ".join(sorted((one, other)))

    def weight(relay: PeerId) -> bytes:
        return blake2b(f"{pair} {relay}".encode(), digest_size=8).digest()

    return tuple(sorted(set(listening), key=lambda relay: (weight(relay), relay))[:RELAYS_MAX])
