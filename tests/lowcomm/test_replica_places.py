"""Where ranks read what a replica made: no copy of the outer parameters, and nothing torn."""

import numpy as np
import pytest

from lowcomm.outer import F32
from lowcomm.replica import Replica
from tests.lowcomm.replicas import gaussian, placed, plain, share, slow_step, stamp, started, view


def test_ranks_read_the_outer_parameters_where_they_were_made() -> None:
    replica = started(plain())
    places: list[int] = []
    for round_ in (1, 2, 3):
        replica.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()])
        places.append(replica.place_result(0, full=True))
        assert replica.place_result(0, full=True) == places[-1], "ranks that are back take it too"
        assert shown(replica, places[-1]).tobytes() == replica.arrays(0)[0].tobytes()
    assert places in ([0, 1, 0], [1, 0, 1])


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_ranks_that_are_slow_keep_their_base(rounds: int) -> None:
    """They train from what they were given last, however many rounds go by without them."""
    replica = started(plain())
    base, place = replica.arrays(0)[0], replica.place_result(0, full=True)
    for round_ in range(1, rounds + 1):
        replica.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()])
        assert shown(replica, place).tobytes() == base.tobytes()
    now = replica.arrays(0)[0]
    assert placed(replica, 0, full=False).tobytes() == (now - base).tobytes()
    for round_ in range(rounds + 1, rounds + 4):
        replica.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()])
        assert placed(replica, 0, full=True).tobytes() == replica.arrays(0)[0].tobytes()
    assert_same_as_alone(replica, rounds + 3)


def assert_same_as_alone(replica: Replica, rounds: int) -> None:
    """What the ranks see has no influence on the outer state."""
    alone = plain()
    alone.initialise(0, view(gaussian(0, 23)))
    for round_ in range(1, rounds + 1):
        alone.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()])
    assert replica.version(0) == alone.version(0)


def test_a_place_is_torn_from_the_first_byte_of_the_next_version_on() -> None:
    replica = started(plain())
    slots = replica.slots
    assert slots is not None
    old, mean = replica.place_result(0, full=True), gaussian(1, 23).tobytes()
    replica.apply(stamp(0, 1), (0, 23), [mean])
    new = replica.place_result(0, full=True)
    slots.publish_result(0, old, 7)
    slots.publish_result(0, new, 8)
    replica.ahead(stamp(0, 2), 0, mean[:20], mean, 5)
    assert [slots.result_generation(0, place) for place in (old, new)] == [0, 8]


def test_a_state_that_was_there_before_the_ranks_is_what_they_get() -> None:
    replica = plain()
    replica.restore(0, 5, gaussian(3, 23), gaussian(4, 23))
    replica.ahead(stamp(0, 6), 0, bytes(20), bytes(92), 5)
    share(replica)
    assert placed(replica, 0, full=True).tobytes() == gaussian(3, 23).tobytes()
    assert replica.apply(stamp(0, 6), (0, 23), [gaussian(7, 23).tobytes()])
    expected = slow_step(gaussian(3, 23), gaussian(4, 23), gaussian(7, 23))
    assert [array.tobytes() for array in replica.arrays(0)] == [x.tobytes() for x in expected]


def shown(replica: Replica, place: int) -> F32:
    """What ranks that were told of this place see."""
    assert replica.slots is not None
    return np.frombuffer(replica.slots.result(0, place), np.float32)
