"""Parts cover a fragment exactly, on the codec's grain, whoever owns them."""

from hypothesis import given
from hypothesis import strategies as st

from protocols.state.parts import OWNERS_MAX, PART_BYTES_MIN, cut_parts, replace_owners
from protocols.types.ids import FragmentParts, PeerId

PEERS = [PeerId(f"p{i:02}") for i in range(20)]


@given(
    elements=st.integers(1, 1 << 26),
    peers=st.integers(1, 20),
    grain=st.sampled_from([1, 2, 64, 256, 4096]),
)
def test_parts_cover_everything_once_and_begin_on_the_grain(
    elements: int, peers: int, grain: int
) -> None:
    parts = cut_parts(elements, PEERS[:peers], grain=grain)
    assert parts.borders[0] == 0
    assert parts.borders[-1] == elements
    assert list(parts.borders) == sorted(parts.borders)
    assert all(border % grain == 0 for border in parts.borders[:-1])
    assert len(parts.borders) == len(parts.owners) + 1
    assert len(set(parts.owners)) == len(parts.owners) <= min(peers, OWNERS_MAX)


def test_a_small_fragment_has_one_owner_and_a_big_one_as_many_as_there_are_peers() -> None:
    assert len(cut_parts(10, PEERS[:3]).owners) == 1
    assert len(cut_parts(PART_BYTES_MIN // 4 + 1, PEERS[:3]).owners) == 2
    assert len(cut_parts(PART_BYTES_MIN, PEERS[:3]).owners) == 3
    assert len(cut_parts(PART_BYTES_MIN * 40, PEERS).owners) == OWNERS_MAX


def test_who_is_listed_first_makes_no_difference() -> None:
    assert cut_parts(1 << 20, PEERS[:3]) == cut_parts(1 << 20, PEERS[2::-1])


def test_only_a_lost_owners_part_moves_and_to_who_has_least() -> None:
    a, b, c = PEERS[:3]
    parts = FragmentParts((a, b, c, a), (0, 1, 2, 3, 4))
    assert replace_owners(parts, [a, b]) == (a, b, b, a)
    assert replace_owners(parts, [a, b, c]) == parts.owners
    assert replace_owners(parts, [b]) == (b, b, b, b)
