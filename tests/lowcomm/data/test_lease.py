"""What a node draws: in order, nothing twice, and seen only when a step has used it."""

import pytest

from lowcomm.data.lease import NodeLease
from protocols.types.errors import ConfigError, LowcommError
from protocols.types.sample_ranges import SampleRange, Samples


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def test_batches_are_drawn_in_order_over_gaps() -> None:
    lease = NodeLease()
    lease.renew(ranges((3, 5), (8, 20)))
    assert [lease.draw(3), lease.draw(3)] == [[3, 4, 8], [9, 10, 11]]


def test_what_a_step_used_is_seen_and_said_once() -> None:
    lease = NodeLease()
    lease.renew(ranges((0, 40)))
    for _ in range(2):
        lease.draw(4)
        lease.step()
    assert lease.contribute() == ranges((0, 8))
    assert lease.contribute() == ()


def test_what_a_loader_drew_ahead_counts_with_the_step_that_uses_it() -> None:
    lease = NodeLease()
    lease.renew(ranges((0, 40)))
    lease.draw(4)
    lease.draw(4)
    lease.step()
    assert lease.contribute() == ranges((0, 4))
    lease.renew(ranges((4, 40)))  # The daemon knows nothing of what was drawn ahead.
    assert lease.draw(4) == [8, 9, 10, 11]
    lease.step()
    lease.step()
    assert lease.contribute() == ranges((4, 12))


def test_what_is_not_ours_any_more_is_not_drawn() -> None:
    lease = NodeLease()
    lease.renew(ranges((0, 40)))
    lease.draw(4)
    lease.step()
    lease.renew(ranges((100, 140)))
    assert lease.draw(4) == [100, 101, 102, 103]


def test_what_steps_used_is_drawn_again_only_if_it_is_forgotten() -> None:
    lease = NodeLease()
    lease.renew(ranges((0, 40)))
    lease.draw(4)
    lease.draw(4)
    lease.step()
    lease.renew(ranges((0, 60)))  # The daemon knows nothing of it yet.
    assert lease.draw(4) == [8, 9, 10, 11]
    lease.forget()
    lease.renew(ranges((0, 60)))
    assert lease.draw(4) == [0, 1, 2, 3]
    assert lease.contribute() == ()


def test_after_the_last_result_the_same_samples_are_drawn_again() -> None:
    lease = NodeLease()
    lease.renew(ranges((0, 10)), last=True)
    assert lease.draw(4) == [0, 1, 2, 3]
    lease.step()
    lease.draw(4)  # By a loader that is ahead of the steps.
    assert lease.draw(4) == [0, 1, 2, 3]
    with pytest.raises(LowcommError, match="no 4 samples left"):
        lease.draw(4)
    lease.renew(ranges((0, 10)))  # The run went back: there are rounds ahead that count them.
    with pytest.raises(LowcommError, match="no 4 samples left"):
        lease.draw(4)


def test_steps_on_other_data_see_nothing() -> None:
    lease = NodeLease()
    lease.renew(ranges((0, 40)))
    lease.step()
    assert lease.contribute() == ()


def test_who_draws_too_far_ahead_is_told() -> None:
    lease = NodeLease()
    lease.renew(ranges((0, 10)))
    lease.draw(8)
    with pytest.raises(LowcommError, match="no 8 samples left, and no step has used 1 drawn"):
        lease.draw(8)


def test_a_step_uses_as_many_batches_as_are_accumulated() -> None:
    lease = NodeLease()
    lease.per_step = 3
    lease.renew(ranges((0, 40)))
    assert not lease.has_drawn
    for _ in range(7):
        lease.draw(2)
    assert lease.steps_left(2) == 6
    lease.step()
    lease.step()
    assert lease.contribute() == ranges((0, 12))
    assert lease.has_drawn
    lease.step()  # One batch is there.
    assert lease.contribute() == ranges((12, 14))
    assert lease.steps_left(2) == 4


@pytest.mark.parametrize(("ahead", "error"), [(4, ConfigError), (5, LowcommError)])
def test_a_loop_that_draws_more_than_its_steps_use_would_do_so_again(
    ahead: int, error: type[LowcommError]
) -> None:
    lease = NodeLease()
    lease.ahead = ahead
    lease.renew(ranges((0, 13)))
    for _ in range(6):
        lease.draw(2)
    with pytest.raises(LowcommError, match=r"peer\.batches\(\.\.\., accumulate=K\)") as caught:
        lease.draw(2)
    assert caught.type is error
