"""What a paced rank writes, copies and takes, fragment by fragment."""

import numpy as np

from lowcomm.numerics.operations import F32
from peers.ipc.messages import TensorPlace
from sims.paced.moves import initial_parameters, movement
from sims.paced.parameters import PacedParameters

LAYOUT = (
    TensorPlace(1, "a", (3,), 0),
    TensorPlace(0, "b", (2,), 0),
    TensorPlace(1, "c", (4,), 3),
)
SIZE = 9
FRAGMENT_1 = [0, 1, 2, 5, 6, 7, 8]


def parameters(ours: slice = slice(0, SIZE)) -> PacedParameters:
    return PacedParameters(LAYOUT, seed=4, ours=ours)


def bytes_of(values_P: F32) -> memoryview:
    return values_P.view(np.uint8).data


def test_a_rank_writes_its_share_and_copies_all() -> None:
    held = parameters(slice(2, 6))
    written_P = np.zeros(7, np.float32)
    held.write(1, bytes_of(written_P))
    assert np.flatnonzero(written_P).tolist() == [2, 3]
    held.copy(1, bytes_of(written_P))
    np.testing.assert_array_equal(written_P, held.theta_P[FRAGMENT_1])


def test_taking_replaces_adds_or_mixes_and_touches_no_other_fragment() -> None:
    new_P = np.linspace(1, 2, 7, dtype=np.float32)
    alpha, rest = np.float32(0.3), np.float32(1 - 0.3)
    for kind, mixing in (("full", 0.0), ("delta", 0.0), ("full", 0.3)):
        held = parameters()
        before_P = held.theta_P.copy()
        held.take_result(1, bytes_of(new_P), "delta" if kind == "delta" else "full", mixing=mixing)
        old_P = before_P[FRAGMENT_1]
        mixed_P = old_P * alpha + new_P * rest
        expected_P = old_P + new_P if kind == "delta" else mixed_P if mixing else new_P
        assert held.theta_P[FRAGMENT_1].tobytes() == expected_P.tobytes()
        assert held.theta_P[3:5].tobytes() == before_P[3:5].tobytes()


def test_a_movement_is_never_made_twice() -> None:
    held = parameters()
    expected_P = initial_parameters(SIZE, seed=4)
    for step in (0, 1, 7):
        held.reach(step)
        held.move(5)
        expected_P = expected_P + movement(SIZE, slot=5, step=step)
    held.reach(2)
    assert held.data_step == 8
    assert held.theta_P.tobytes() == expected_P.tobytes()
