"""Through whom two speak that nobody can dial: the same for both, and spread."""

from collections import Counter
from itertools import combinations

from protocols.links.tunnel_choice import RELAYS_MAX, relays
from protocols.types.ids import PeerId

LISTENING = [PeerId(f"relay.{i:08x}") for i in range(20)]
HIDDEN = [PeerId(f"hidden.{i:08x}") for i in range(40)]


def test_both_have_the_same_order_and_of_few() -> None:
    one, other = HIDDEN[:2]
    found = relays(one, other, LISTENING)
    assert found == relays(other, one, reversed(LISTENING))
    assert len(set(found)) == RELAYS_MAX
    assert relays(one, other, []) == ()


def test_who_goes_moves_only_the_pairs_that_it_served() -> None:
    gone = LISTENING[7]
    rest = [peer for peer in LISTENING if peer != gone]
    for one, other in combinations(HIDDEN, 2):
        before, after = relays(one, other, LISTENING), relays(one, other, rest)
        expected = before[1] if before[0] == gone else before[0]
        assert after[0] == expected


def test_pairs_are_spread() -> None:
    first = Counter(relays(one, other, LISTENING)[0] for one, other in combinations(HIDDEN, 2))
    mean = sum(first.values()) / len(LISTENING)
    assert len(first) == len(LISTENING)
    assert max(first.values()) < 2 * mean, first
