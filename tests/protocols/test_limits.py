"""What one message cannot use up."""

import pytest

from protocols import messages as m
from tests.protocols.circle import Circle
from tests.protocols.scenes import A, B


@pytest.mark.parametrize(
    "message",
    [
        m.Appended((1 << 63) - 1, False, 0),
        m.Voted((1 << 63) - 1, False, False),
        m.Voted((1 << 63) - 1, False, True),
    ],
)
def test_one_message_does_not_use_up_all_terms(message: m.Control) -> None:
    circle = Circle(A, B)
    circle.begin()
    raft = circle.rafts[A]
    raft.receive(B, message, circle.now)
    assert (raft.leads, raft.term) == (True, 1)
