"""Error feedback: nothing is lost and nothing sent twice, whichever rounds count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs import codec
from lowcomm.codecs.topk import TopK
from lowcomm.feedback import ROUNDS_MAX, ErrorFeedback
from lowcomm.outer import F32

SIZE = 5000


def values(seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(SIZE, np.float32)


def send(feedback: ErrorFeedback, round_: int, values_P: F32) -> F32:
    """What the others decode."""
    out = bytearray(feedback.codec.encoded_bytes(SIZE))
    feedback.encode(round_, values_P, out)
    decoded = np.empty(SIZE, np.float32)
    feedback.codec.decode(out, decoded)
    return decoded


@pytest.mark.parametrize("name", ["topk", "2bit", "sign", "int8"])
@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(["counted", "not", "again", "late", "back"]), max_size=8))
def test_what_counted_and_the_residue_add_up_to_the_work(name: str, events: list[str]) -> None:
    feedback = ErrorFeedback(codec(name), SIZE)
    owed, sent = np.zeros(SIZE), np.zeros(SIZE)
    for number, event in enumerate(events, 1):
        round_, next_round = 2 * number, 2 * number + 1
        decoded = send(feedback, round_, values(round_))
        if event == "not":
            feedback.not_counted(round_)
            continue
        work = values(round_)
        if event == "again":  # A rebase: another encoding of the same round.
            work = values(100 + round_)
            decoded = send(feedback, round_, work)
        if event == "late":  # Encoded after it, and counted before it.
            other = send(feedback, next_round, values(next_round))
            feedback.counted(next_round)
            owed += values(next_round)
            sent += other
        feedback.counted(round_)
        if event == "back":
            feedback.taken_back(round_)
            continue
        owed += work
        sent += decoded
    np.testing.assert_allclose(sent + feedback.residue_P, owed, atol=1e-4)


def test_the_residue_changes_only_with_the_commit_that_counts() -> None:
    feedback = ErrorFeedback(codec("topk"), SIZE)
    decoded = send(feedback, 1, values(1))
    assert not feedback.residue_P.any()
    feedback.counted(1)
    assert (feedback.residue_P == values(1) - decoded).all()
    before = feedback.residue_P.copy()
    send(feedback, 2, values(2))
    send(feedback, 2, values(3))
    feedback.not_counted(2)
    assert (feedback.residue_P == before).all()
    assert feedback.version == 2


def test_a_contribution_that_is_not_finite_leaves_no_trace() -> None:
    feedback = ErrorFeedback(codec("int8"), SIZE)
    broken = values(1)
    broken[7] = np.inf
    assert not np.isfinite(send(feedback, 1, broken)).all()
    feedback.not_counted(1)
    send(feedback, 2, values(2))
    feedback.counted(2)
    assert np.isfinite(feedback.residue_P).all()


def test_a_residue_of_another_version_is_void() -> None:
    feedback, other = ErrorFeedback(codec("topk"), SIZE), ErrorFeedback(codec("topk"), SIZE)
    send(feedback, 1, values(1))
    feedback.counted(1)
    kept = feedback.state()
    other.restore(kept, 1)
    assert other.residue_P.tobytes() == feedback.residue_P.tobytes()
    assert send(other, 2, values(2)).tobytes() == send(feedback, 2, values(2)).tobytes()
    other.restore(kept, 2)
    assert not other.residue_P.any()
    feedback.counted(2)
    assert (kept.values_P != feedback.residue_P).any()


def test_decay_lets_go_of_old_errors() -> None:
    feedback = ErrorFeedback(TopK(1), SIZE, decay=0.5)
    send(feedback, 1, values(1))
    feedback.counted(1)
    first = feedback.residue_P
    decoded = send(feedback, 2, np.zeros(SIZE, np.float32))
    feedback.counted(2)
    assert (feedback.residue_P + decoded == first * np.float32(0.5)).all()


def test_old_rounds_are_forgotten() -> None:
    feedback = ErrorFeedback(codec("topk"), SIZE)
    for round_ in range(1, ROUNDS_MAX + 2):
        send(feedback, round_, values(round_))
    with pytest.raises(KeyError):
        feedback.counted(1)
    feedback.counted(ROUNDS_MAX + 1)
