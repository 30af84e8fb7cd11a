"""Who is left out where links are missing: nobody else, and as few as can be."""

import random
from itertools import combinations

import pytest

from protocols.interface import events as v
from protocols.links.missing_links import Gap, MissingLinks, cover, described
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId
from tests.protocols.led import last, leading, of, say, written
from tests.protocols.scenes import A, B, C, D

PEERS = [PeerId(f"p{i:02d}.{i:08x}") for i in range(40)]


def gaps_of(*pairs: tuple[int, int]) -> set[Gap]:
    return {(PEERS[min(pair)], PEERS[max(pair)]) for pair in pairs}


def smallest(gaps: set[Gap], peers: list[PeerId]) -> int:
    """By trying all."""
    for size in range(len(peers) + 1):
        for chosen in combinations(peers, size):
            if all(one in chosen or other in chosen for one, other in gaps):
                return size
    raise AssertionError


@pytest.mark.parametrize(
    ("pairs", "gone"),
    [
        ([], []),
        ([(1, 2)], [2]),  # Of two the one that came later.
        ([(0, 5), (1, 5), (2, 5)], [5]),
        ([(0, 5), (0, 6), (0, 7)], [0]),  # A star loses its middle, however old.
        ([(1, 2), (2, 3), (3, 4)], [2, 3]),
        ([(1, 2), (3, 4)], [2, 4]),
        ([(1, 2), (2, 3), (1, 3)], [2, 3]),
        ([(i, j) for i in (1, 2, 3) for j in range(4, 9)], [1, 2, 3]),  # Two groups.
    ],
)
def test_the_fewest_go(pairs: list[tuple[int, int]], gone: list[int]) -> None:
    assert cover(gaps_of(*pairs), PEERS) == {PEERS[i] for i in gone}


@pytest.mark.parametrize("seed", range(30))
def test_nobody_finds_fewer(seed: int) -> None:
    source, peers = random.Random(seed), PEERS[:10]
    density = source.choice([0.1, 0.3, 0.6])
    gaps = {pair for pair in combinations(peers, 2) if source.random() < density}
    found = cover(gaps, peers)
    assert all(one in found or other in found for one, other in gaps)
    assert len(found) == smallest(gaps, peers)


def test_it_ends_however_many_are_missing() -> None:
    source = random.Random(1)
    many = [PeerId(f"p{i:03d}.{i:08x}") for i in range(300)]
    gaps = {pair for pair in combinations(many, 2) if source.random() < 0.05}
    found = cover(gaps, many)
    assert all(one in found or other in found for one, other in gaps)


def test_what_somebody_says_of_the_leader_or_of_who_is_not_asked_for_counts_for_nothing() -> None:
    missing_links = MissingLinks()
    missing_links.report(B, (A, D))
    missing_links.report(C, (A,))
    assert missing_links.without({A, B, C}, but=A, seats=[A, B, C]) == set()
    assert missing_links.without({A, B, C, D}, but=A, seats=[A, B, C, D]) == {D}
    missing_links.report(B, ())
    assert missing_links.missed == {C: {A}}
    missing_links.forget(C)
    assert missing_links.missed == {}


def test_the_reason_names_links() -> None:
    names = {B: "b", C: "c"}
    assert described({(B, C)}, names) == "no link between b and c"
    many = gaps_of((1, 2), (3, 4), (5, 6), (7, 8), (9, 10))
    assert described(many, {}).endswith("and p06.00000006, and 2 more")


# In the leader -------------------------------------------------------------------------


def test_of_two_that_miss_each_other_one_waits_in_the_open_round_and_in_the_next() -> None:
    scene = leading(B, C, D)
    say(scene, "ready", B, C)
    scene.hears(B, m.UnreachedMembers((C,)))
    assert last(scene, e.Attempt).roster == (A, B, D)
    assert last(scene, e.Attempt).why == "without c: no link between b and c"
    assert last(scene, e.View).roster == (A, B, D)
    views = of(scene)
    scene.hears(C, m.UnreachedMembers((B,)))
    assert of(scene) == views, "nothing new"
    scene.hears(B, m.UnreachedMembers(()))
    assert of(scene) == views, "C misses it yet"
    scene.hears(C, m.UnreachedMembers(()))
    assert last(scene, e.View).roster == (A, B, C, D)


@pytest.mark.parametrize("noticed", [True, False])
def test_what_was_said_on_a_connection_ends_with_it(noticed: bool) -> None:
    """Seed 1795900000026: the leader was paused while a connection ended and a new one began. A
    peer that misses no other says nothing on the new one, so the first view never came."""
    scene = leading(B, C, D)
    scene.hears(B, m.UnreachedMembers((C,)))
    assert last(scene, e.View).roster == (A, B, D)
    if noticed:
        scene.on(v.PeerDisconnected(B, "end of stream"))
    scene.on(v.PeerConnected(B, 1, "b:1", "a:1"))
    assert last(scene, e.View).roster == (A, B, C, D)


def test_whom_a_stranger_misses_does_not_matter() -> None:
    scene = leading(B, C)
    scene.meets(D)
    scene.hears(D, m.UnreachedMembers((B, C)))
    assert last(scene, e.View).roster == (A, B, C)


def test_who_is_able_and_was_struck_since_is_in_no_roster_whatever_links_are_missing() -> None:
    """Step seed 26400091: it had come back, and said that it is able, just before it was struck."""
    scene = leading(B, C)
    scene.leader.removals.gone[C] = (False, "silent")
    assert C in scene.leader.reports.able
    scene.hears(B, m.UnreachedMembers((C,)))
    assert written(scene, e.Lost) == [e.Lost(C, "silent")]
