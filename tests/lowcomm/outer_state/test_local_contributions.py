"""What a node contributes, and how long what its ranks wrote is needed."""

from typing import Any

import numpy as np
import pytest

from lowcomm.codecs import known_codecs
from lowcomm.methods import DiLoCoMethod
from lowcomm.outer_state.replica import Replica
from lowcomm.startup.agreement import common_grain
from peers.exchange.pieces import PIECE_ELEMENTS, Encoding, Pool
from protocols.types.ids import TensorSpec
from tests.lowcomm.replicas import (
    SIZES,
    contributors,
    encoded,
    gaussian,
    plain,
    share,
    stamp,
    started,
    view,
)

ONE = contributors(1)
"""Of a mean that is all there is in a result."""


@pytest.mark.parametrize("fragment", [0, 1])
def test_a_contribution_is_where_we_began_minus_where_we_are(fragment: int) -> None:
    replica, size = started(plain()), SIZES[fragment]
    local = gaussian(5, size)
    replica.contributions.take_local(fragment, view(local))
    base = gaussian(fragment, size)
    expected = np.array([base[i] - local[i] for i in range(size)], np.float32)
    assert encoded(replica, fragment) == expected.tobytes()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_contribution_is_made_in_pieces_in_any_order(order: tuple[int, ...]) -> None:
    replica, local, borders = started(plain()), gaussian(5, 23), (0, 7, 8, 23)
    replica.contributions.take_local(0, view(local))
    out = bytearray(4 * 23)
    replica.begin_contribution(0, "")
    for piece in order:
        start, stop = borders[piece : piece + 2]
        replica.encode(0, start, stop, memoryview(out)[4 * start : 4 * stop])
    assert bytes(out) == (gaussian(0, 23) - local).tobytes()


def test_contributions_count_from_what_the_ranks_were_given_not_from_the_newest() -> None:
    replica = started(plain())
    base, local = gaussian(0, 23), gaussian(6, 23)
    replica.contributions.take_local(0, view(local))
    before = encoded(replica, 0)
    replica.apply(stamp(0, 1), (0, 23), [gaussian(7, 23).tobytes()], ONE)
    assert encoded(replica, 0) == before  # A later attempt of the round sends the same bytes.
    assert before == (base - local).tobytes()


def test_without_a_contribution_there_is_nothing_to_encode() -> None:
    replica = started(plain())
    replica.contributions.take_local(0, view(gaussian(1, 23)))
    replica.place_result(0, full=False)
    for fragment in (0, 1):
        with pytest.raises(AssertionError, match="nothing was contributed"):
            replica.begin_contribution(fragment, "")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_known_of_the_last_contribution(value: float) -> None:
    """Also of what lies behind the first cell, and once it is encoded in its place."""
    size = PIECE_ELEMENTS + 3
    replica = Replica(DiLoCoMethod(), [TensorSpec(0, "x", (size,), 0)])
    share(replica)
    assert replica.contributions.is_finite(0), "nothing was contributed"
    for place, finite in ((None, True), (0, False), (size - 1, False)):
        local = gaussian(3, size)
        if place is not None:
            local[place] = value
        replica.contributions.take_local(0, view(local))
        assert replica.contributions.is_finite(0) == finite
        in_place = replica.begin_contribution(0, "")
        assert in_place is not None
        replica.encode(0, 0, PIECE_ELEMENTS, in_place[: 4 * PIECE_ELEMENTS])
        assert replica.contributions.is_finite(0) == finite
    replica.place_result(0, full=False)
    assert replica.contributions.is_finite(0), "it has its result"


@pytest.mark.parametrize("name", known_codecs())
def test_a_contribution_that_is_encoded_in_pieces_is_that_of_the_codec(name: str) -> None:
    """Cut at borders of parts, out of order: the bytes of all values at once."""
    named: dict[str, Any] = {"contribution_codec": name}
    made, size = DiLoCoMethod(**named), PIECE_ELEMENTS + 5000
    replica, grain = Replica(made, (TensorSpec(0, "w", (size,), 0),)), common_grain(made)
    share(replica)
    replica.initialise(0, view(gaussian(1, size)))
    replica.place_result(0, full=True)
    replica.contributions.take_local(0, view(gaussian(2, size)))
    one = made.codec
    whole = bytearray(one.encoded_bytes(size))
    one.encode(gaussian(1, size) - gaussian(2, size), whole)
    encoding = Encoding(replica, 0, size, Pool())
    for start, stop in ((PIECE_ELEMENTS - grain, size), (0, grain), (grain, PIECE_ELEMENTS)):
        wanted = whole[one.encoded_bytes(start) : one.encoded_bytes(stop)]
        assert bytes(encoding.cut(start, stop)) == wanted
    assert bytes(encoding.cut(0, size)) == whole


def test_a_contribution_of_fp32_is_made_where_the_ranks_wrote_it() -> None:
    replica = plain()
    slots = share(replica)
    replica.initialise(0, view(gaussian(0, 23)))
    replica.place_result(0, full=True)
    local = slots.contribution(0)
    local[:] = view(gaussian(1, 23))
    replica.contributions.take_local(0, local)
    encoding = Encoding(replica, 0, 23, Pool())
    assert encoding.cut(0, 23).tobytes() == (gaussian(0, 23) - gaussian(1, 23)).tobytes()
    assert local == encoding.cut(0, 23), "no array of its own"
    del encoding, local


def test_what_lost_ranks_wrote_is_needed_until_nobody_asks_for_it() -> None:
    replica = plain()
    slots = share(replica)
    replica.initialise(0, view(gaussian(0, 23)))
    replica.place_result(0, full=True)
    first = slots.contribution(0)
    assert not replica.contributions.needs(0, first, encoding=False), "nothing was contributed"
    replica.contributions.take_local(0, first)
    assert replica.contributions.needs(0, first, encoding=False), "its round may be about to open"
    replica.begin_contribution(0, "")
    replica.place_result(0, full=True)
    assert replica.contributions.needs(0, first, encoding=True)
    assert not replica.contributions.needs(0, first, encoding=False), "its round is over"

    slots.contribute_elsewhere(0)
    second = slots.contribution(0)
    replica.contributions.take_local(0, second)
    assert not replica.contributions.needs(0, second, encoding=True), (
        "it is the first one that is on its way"
    )
    assert replica.contributions.needs(0, second, encoding=False)
    del first, second
