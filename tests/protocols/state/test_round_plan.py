"""What a plan says of each peer: the same of one that divides, in other words, in a gossip run."""

import pytest

from protocols.state.parts import undivided
from protocols.state.round_plan import RoundPlan
from protocols.types.ids import FragmentParts, PeerId, Stamp
from tests.protocols.scenes import BORDERS, ELEMENTS, A, B, C, D

STAMP = Stamp(1, 2, 1, 0, 1, 0)
DIVIDED = RoundPlan(STAMP, (A, B, C), FragmentParts((A, B, A), BORDERS))
PAIRS = RoundPlan(STAMP, (A, B, C), undivided(ELEMENTS), pairs=((A, C), (B,)))


def test_owners_sum_their_parts_of_everybody() -> None:
    assert DIVIDED.num_parts == 3
    assert DIVIDED.summing == (A, B, A)
    assert [DIVIDED.owned_by(peer) for peer in (A, B, C, D)] == [[0, 2], [1], [], []]
    assert DIVIDED.summed_by(A) == DIVIDED.summed_by(B) == (A, B, C)
    assert DIVIDED.slices_of(C) == [(0, A), (1, B), (2, A)]
    assert DIVIDED.makers_for(C) == {A, B}


@pytest.mark.parametrize(
    ("peer", "summed", "owned", "slices"),
    [
        (A, (A, C), [0], [(0, A), (0, C)]),
        (C, (A, C), [0], [(0, A), (0, C)]),
        (B, (B,), [0], [(0, B)]),
        (D, (), [], []),
    ],
)
def test_in_a_gossip_run_each_sums_all_of_its_pair(
    peer: PeerId, summed: tuple[PeerId, ...], owned: list[int], slices: list[tuple[int, PeerId]]
) -> None:
    assert PAIRS.num_parts == 1
    assert PAIRS.summing == (A, B, C)
    assert PAIRS.summed_by(peer) == summed
    assert PAIRS.owned_by(peer) == owned
    assert PAIRS.slices_of(peer) == slices
    assert PAIRS.makers_for(peer) == set(summed)
