"""How long a disk may take for a write, and for one behind others."""

from protocols.raft.writes import HANG_MAX_S, HANG_MIN_S, HANG_TIMES, Writes
from protocols.types.clock import NEVER


def test_a_write_behind_others_has_its_own_time() -> None:
    """The disk makes one after the other."""
    writes = Writes()
    assert writes.due == NEVER
    writes.begin_write(1, 1, 4, 0.0)
    writes.begin_write(2, 5, 6, 0.1)
    assert writes.due == HANG_MIN_S
    assert writes.done(1, 0.3) == 0.3
    assert writes.durable_index == 4
    assert writes.due == 0.3 + HANG_MIN_S
    assert (writes.reached(1), writes.reached(2)) == (False, True)
    assert writes.done(2, 0.4) == 0.4 - 0.3
    assert writes.durable_index == 6
    assert writes.due == NEVER
    writes.begin_write(3, 7, 7, 1.0)
    writes.begin_write(4, 8, 8, 2.0)
    writes.done(3, 1.5)
    assert writes.due == 2.0 + HANG_MIN_S, "the disk got it only then"


def test_a_disk_that_was_slow_lately_is_given_more_time_within_limits() -> None:
    writes, limits = Writes(), list[float]()
    for took_s in [0.1, 0.3, 0.75, *[0.01] * 200]:
        limits.append(writes.patience_s)
        writes.took(took_s)
    assert limits[:4] == [HANG_MIN_S, HANG_MIN_S, HANG_TIMES * 0.3, HANG_MAX_S]
    assert limits[-1] == HANG_MIN_S, "that was long ago"


def test_entries_that_were_replaced_are_not_on_the_disk_with_a_write_under_way() -> None:
    writes = Writes()
    writes.begin_write(1, 3, 6, 0.0)
    writes.begin_write(2, 7, 9, 0.0)
    assert writes.first == 3
    writes.log_changed(5)
    writes.done(2, 0.1)
    assert writes.durable_index == 4
    assert writes.first == 5
    writes.log_changed(3)
    assert writes.durable_index == 2
