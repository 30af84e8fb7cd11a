"""Error feedback: nothing is lost and nothing sent twice, whichever contributions count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs import codec
from lowcomm.codecs.topk import CHUNK, TopK
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.error_feedback import ENCODED_MAX, ErrorFeedback

SIZE = 5000


def values(seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(SIZE, np.float32)


def send(feedback: ErrorFeedback, name: str, values_P: F32) -> F32:
    """Two pieces, the second one first; what the others decode."""
    decoded, size_of = np.empty(SIZE, np.float32), feedback.codec.encoded_bytes
    feedback.begin_contribution(name)
    for start, stop in ((CHUNK, SIZE), (0, CHUNK)):
        out, scratch = bytearray(size_of(stop) - size_of(start)), np.empty(stop - start, np.float32)
        feedback.encode(start, values_P[start:stop], out, scratch)
        feedback.codec.decode(out, decoded[start:stop])
    return decoded


@pytest.mark.parametrize("name", ["topk", "2bit", "sign", "int8"])
@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(["counted", "not", "again", "late"]), max_size=8))
def test_what_counted_and_the_residue_add_up_to_the_work(name: str, events: list[str]) -> None:
    feedback = ErrorFeedback(codec(name), SIZE)
    owed, sent = np.zeros(SIZE), np.zeros(SIZE)
    for number, event in enumerate(events, 1):
        first, second = f"{number} first", f"{number} second"
        decoded, work = send(feedback, first, values(2 * number)), values(2 * number)
        if event == "not":
            feedback.counted(["somebody else's"])
            continue
        if event == "again":  # A rebase: the work goes into another contribution.
            work = values(100 + number)
            decoded, first = send(feedback, second, work), second
        if event == "late":  # Encoded after it, and counted after it, from the same residue.
            other = send(feedback, second, values(2 * number + 1))
            feedback.counted(["x", first])
            owed, sent = owed + work, sent + decoded
            work, decoded, first = values(2 * number + 1), other, second
        feedback.counted(["x", first, "y"])
        owed, sent = owed + work, sent + decoded
    np.testing.assert_allclose(sent + feedback.residue_P, owed, atol=1e-4)


def test_the_residue_changes_only_with_the_commit_that_counts() -> None:
    feedback = ErrorFeedback(codec("topk"), SIZE)
    decoded = send(feedback, "one", values(1))
    assert not feedback.residue_P.any()
    feedback.counted(["one"])
    assert (feedback.residue_P == values(1) - decoded).all()
    before = feedback.residue_P.copy()
    feedback.counted(["one"])  # Twice is once.
    send(feedback, "two", values(2))
    send(feedback, "three", values(3))
    feedback.counted(["others"])
    assert (feedback.residue_P == before).all()


def test_what_is_not_finite_leaves_no_trace() -> None:
    feedback = ErrorFeedback(codec("topk"), SIZE)
    broken = values(1)
    broken[7] = np.inf
    assert not np.isfinite(send(feedback, "one", broken)).all()
    feedback.counted(["one"])
    assert np.isfinite(feedback.residue_P).all()
    assert feedback.residue_P.any()


def test_another_state_begins_without_a_residue() -> None:
    feedback = ErrorFeedback(codec("topk"), SIZE)
    send(feedback, "one", values(1))
    feedback.counted(["one"])
    assert feedback.residue_P.any()
    send(feedback, "two", values(2))
    feedback.replace_residue()
    feedback.counted(["two"])
    assert not feedback.residue_P.any(), "what was under way belongs to the state before"


def test_decay_lets_go_of_old_errors() -> None:
    feedback = ErrorFeedback(TopK(1), SIZE, decay=0.5)
    send(feedback, "one", values(1))
    feedback.counted(["one"])
    first = feedback.residue_P
    decoded = send(feedback, "two", np.zeros(SIZE, np.float32))
    feedback.counted(["two"])
    assert (feedback.residue_P + decoded == first * np.float32(0.5)).all()


def test_old_contributions_are_forgotten() -> None:
    feedback = ErrorFeedback(codec("topk"), SIZE)
    for number in range(ENCODED_MAX + 1):
        send(feedback, str(number), values(number))
    assert len(feedback._encoded) == ENCODED_MAX
    feedback.counted(["0"])
    assert not feedback.residue_P.any()
