"""Pairs of a gossip run (NoLoCo): in each round a peer exchanges with one other peer.

The pairs are a pure function of a view's roster, so they are never sent. If an attempt excludes a
peer, its partner is alone in this round and all other pairs stay. Must NOT know what is exchanged.
"""

from collections.abc import Collection
from functools import lru_cache

from protocols.types.ids import PeerId, digest_text

Pairs = tuple[tuple[PeerId, ...], ...]
"""Sorted pairs; a peer may be alone."""


def pairs_of(
    roster: tuple[PeerId, ...], left: Collection[PeerId], *, fragment: int, round_: int
) -> Pairs:
    """The pairs of a view's roster in a round, without the peers that are excluded."""
    found = (
        tuple(peer for peer in pair if peer in left) for pair in _met(roster, fragment, round_)
    )
    return tuple(pair for pair in found if pair)


def state_digest(round_: int) -> str:
    """A text that names the round, in place of a state digest: all states differ."""
    return digest_text(f"a state after round {round_}")


@lru_cache(maxsize=64)  # Called for each payload.
def _met(roster: tuple[PeerId, ...], fragment: int, round_: int) -> Pairs:
    """A round of a round-robin tournament: all pairs meet before any pair meets again. The order of
    each tournament is drawn by a hash. Two rounds in succession connect all peers. Of an odd number
    of peers each is alone once."""
    seats = len(roster) + len(roster) % 2
    tournament, turn = divmod(round_, max(seats - 1, 1))
    drawn = sorted(roster, key=lambda peer: digest_text(f"{fragment} {tournament} {peer}"))
    first, *others = [*drawn, None][:seats]
    circle = [first, *others[turn:], *others[:turn]]  # The first peer stays, the others rotate.
    facing = zip(circle[: seats // 2], reversed(circle[seats // 2 :]), strict=True)
    return tuple(tuple(sorted(p for p in pair if p is not None)) for pair in facing)
