"""The offset of eager ranks: what is contributed, what is applied at once, what a crash costs."""

from typing import Any

import numpy as np
import pytest

from lowcomm.methods import EagerDiLoCoMethod
from lowcomm.numerics.operations import F32
from lowcomm.training.eager_offset import EagerOffset
from lowcomm.training.interfaces import Kind
from peers.ipc.messages import Result

SIZE = 6
LR = 0.5
METHOD = EagerDiLoCoMethod(inner_steps=4, outer_lr=LR, outer_momentum=0.0)


class State:
    """Implements lowcomm.training.interfaces.RoundState: this rank writes all but the last
    element.
    """

    def __init__(self) -> None:
        self.theta_P = np.zeros(SIZE, np.float32)

    def write(self, fragment: int, place: memoryview) -> None:
        np.frombuffer(place, np.float32)[:-1] = self.theta_P[:-1]

    def copy(self, fragment: int, place: memoryview) -> None:
        np.frombuffer(place, np.float32)[:] = self.theta_P

    def take_result(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        assert (kind, mixing) == ("full", 0.0)
        self.theta_P[:] = np.frombuffer(values, np.float32)

    def snapshot(self, directory: str) -> None:
        raise AssertionError(directory)


def new_offset() -> tuple[EagerOffset, State]:
    state = State()
    return EagerOffset(METHOD, state, (4 * SIZE,), replicas=2), state


def give(offset: EagerOffset, value: float, kind: Kind = "full", **said: Any) -> None:
    result = Result(
        fragment=0, place=0, kind=kind, version=1, inner_step=0, boundary_steps=9, **said
    )
    offset.take_result(result, np.full(SIZE, value, np.float32).view(np.uint8).data.toreadonly())


def written(offset: EagerOffset) -> F32:
    place_P = np.full(SIZE, np.nan, np.float32)
    offset.write(0, place_P.view(np.uint8).data)
    assert np.isnan(place_P[-1]), "another rank writes it"
    return place_P[:-1]


def test_our_part_is_applied_at_once_and_the_rest_with_the_mean() -> None:
    offset, state = new_offset()
    give(offset, 8)
    assert (state.theta_P == 8).all()
    state.theta_P -= 4  # Trained.
    assert (written(offset) == 8 - 4).all(), "the daemon takes it from 8"
    assert (state.theta_P == 8 - LR * 4 / 2).all(), "half of it, of two replicas"
    state.theta_P -= 6
    give(offset, 7, counted=True, contributors=4)
    assert (state.theta_P == 8 - LR * 4 / 2 - 6).all(), "nothing changes before the contribution"
    assert (written(offset) == 7 - 6).all()
    # Of four replicas now; what the offset had of the last one is in the mean.
    assert (state.theta_P == 7 - LR * 6 / 4).all()


def test_what_was_not_counted_goes_into_the_next_and_stays_applied() -> None:
    offset, state = new_offset()
    give(offset, 8)
    state.theta_P -= 4
    written(offset)
    state.theta_P -= 6
    give(offset, 1, "delta")
    assert (written(offset) == 9 - (4 + 6)).all()
    assert (state.theta_P == 9 - LR * (4 + 6) / 2).all()
    state.theta_P -= 2
    give(offset, 5, counted=True, contributors=2)
    assert (written(offset) == 5 - 2).all()
    assert (state.theta_P == 5 - LR * 2 / 2).all()


def test_who_begins_anew_has_no_offset() -> None:
    offset, state = new_offset()
    give(offset, 8)
    state.theta_P -= 4
    written(offset)
    give(offset, 3)
    assert (state.theta_P == 3).all()
    assert (written(offset) == 3).all()
    assert (state.theta_P == 3).all()


def test_eager_diloco_has_one_fragment() -> None:
    offset, _ = new_offset()
    with pytest.raises(AssertionError, match="one fragment"):
        offset.write(1, memoryview(bytearray(4 * SIZE)))
