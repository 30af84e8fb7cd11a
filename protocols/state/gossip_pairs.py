"""A gossip run: in each round everybody exchanges with one other, and has a state of its own.

Who meets whom is a pure function of a view's roster, so nobody has to say it, and an attempt that
leaves somebody out moves nobody else: its partner is alone in this round. Must NOT know what is
exchanged.
"""

from collections.abc import Collection
from functools import lru_cache

from protocols.types.ids import PeerId, digest_text

Pairs = tuple[tuple[PeerId, ...], ...]
"""One peer or two in each, sorted."""


def pairs_of(
    roster: tuple[PeerId, ...], left: Collection[PeerId], *, fragment: int, round_: int
) -> Pairs:
    """The pairs of a view's roster, as far as it is left in the round."""
    found = (
        tuple(peer for peer in pair if peer in left) for pair in _met(roster, fragment, round_)
    )
    return tuple(pair for pair in found if pair)


def state_digest(round_: int) -> str:
    """In place of the digest of anybody's state after this round: no two are equal."""
    return digest_text(f"a state after round {round_}")


@lru_cache(maxsize=64)  # It is asked for with each payload.
def _met(roster: tuple[PeerId, ...], fragment: int, round_: int) -> Pairs:
    """A round of a tournament, in which all meet all before any two meet again; for each one the
    order is drawn anew, by a hash. Two rounds of it in succession connect all. Of an odd number
    each is alone once."""
    seats = len(roster) + len(roster) % 2
    tournament, turn = divmod(round_, max(seats - 1, 1))
    drawn = sorted(roster, key=lambda peer: digest_text(f"{fragment} {tournament} {peer}"))
    first, *others = [*drawn, None][:seats]
    circle = [first, *others[turn:], *others[:turn]]  # The first one stays, the others move on.
    facing = zip(circle[: seats // 2], reversed(circle[seats // 2 :]), strict=True)
    return tuple(tuple(sorted(p for p in pair if p is not None)) for pair in facing)
