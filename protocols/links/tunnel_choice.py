"""Chooses the peer that carries the connection of two peers that cannot be dialled.

Must NOT know which peers the other end is connected with: the chosen peer answers that.
"""

from collections.abc import Iterable
from hashlib import blake2b

from protocols.types.ids import PeerId

RELAYS_MAX = 8
"""Peers that are tried for one pair, in turn."""


def relays(one: PeerId, other: PeerId, listening: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """The peers that may carry the connection of these two, the first choice first.

    Rendezvous hashing: each pair has an order of its own, so pairs spread over all listening peers,
    and a peer that joins or leaves changes only the pairs that it carries.
    """
    pair = " ".join(sorted((one, other)))

    def weight(relay: PeerId) -> bytes:
        return blake2b(f"{pair} {relay}".encode(), digest_size=8).digest()

    return tuple(sorted(set(listening), key=lambda relay: (weight(relay), relay))[:RELAYS_MAX])
