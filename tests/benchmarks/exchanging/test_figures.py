"""What is told of a system follows from what was recorded, and from nothing else."""

import math

import pytest

from benchmarks.exchanging.figures import Exchanged, Result, with_figures
from benchmarks.exchanging.worker import Marks

NOTHING = Result(system="a", version="1", codec="fp32")


def exchanged(
    marks: tuple[Marks, ...],
    *,
    cpu_s: float = 0.5,
    wire_bytes: int | None = 1000,
    digests: int = 1,
    mean_square: float = 0.0,
) -> Exchanged:
    return Exchanged(
        marks=marks,
        cpu_s=cpu_s,
        wire_bytes=wire_bytes,
        digests=digests,
        mean_square=mean_square,
        mean_error=0.25,
    )


def took(seconds: float) -> Exchanged:
    return exchanged((Marks(handed=10.0, received=10.0 + seconds),))


def test_time_runs_from_the_last_handed_over_to_the_last_result() -> None:
    early = Marks(handed=10.0, received=13.0, reduced=12.0)
    late = Marks(handed=11.0, received=12.5, reduced=12.25)
    one = exchanged((early, late))
    assert one.seconds == 2.0
    assert one.data_path_s == 1.25


def test_a_data_path_may_be_a_duration_of_each_worker() -> None:
    marks = [Marks(handed=1.0, received=9.0, data_path_s=seconds) for seconds in (0.5, 0.75)]
    assert exchanged(tuple(marks)).data_path_s == 0.75
    unknown = Marks(handed=1.0, received=9.0)
    assert exchanged((*marks, unknown)).data_path_s is None


def test_medians_least_and_most() -> None:
    result = with_figures(NOTHING, [took(s) for s in (3.0, 1.0, 2.0)], rate_bps=None)
    assert (result.median_s, result.min_s, result.max_s) == (2.0, 1.0, 3.0)
    assert result.times_s == (3.0, 1.0, 2.0)
    assert result.rounds == 3
    assert (result.cpu_s, result.wire_bytes) == (0.5, 1000)
    assert result.data_path_s is None
    assert result.line_share is None
    assert result.bit_identical is True
    assert (result.system, result.codec) == ("a", "fp32")


def test_the_share_of_a_line_is_of_what_it_could_have_carried() -> None:
    result = with_figures(NOTHING, [took(2.0)], rate_bps=5000.0)
    assert result.line_share == pytest.approx(0.8)
    uncounted = exchanged((Marks(handed=0.0, received=1.0),), wire_bytes=None)
    assert with_figures(NOTHING, [uncounted], rate_bps=5000.0).line_share is None


def test_one_difference_is_one_too_many() -> None:
    mark = (Marks(handed=0.0, received=1.0),)
    result = with_figures(NOTHING, [exchanged(mark), exchanged(mark, digests=2)], rate_bps=None)
    assert result.bit_identical is False


def test_errors_are_of_all_rounds_together() -> None:
    mark = (Marks(handed=0.0, received=1.0),)
    rounds = [exchanged(mark, mean_square=4.0), exchanged(mark, mean_square=0.0)]
    result = with_figures(NOTHING, rounds, rate_bps=None)
    assert result.rms_error == pytest.approx(math.sqrt(2.0))
    assert result.mean_error == 0.25


def test_the_slowest_copy_of_each_round_counts() -> None:
    marks = [Marks(handed=0.0, received=1.0, copy_in_s=s, copy_out_s=2 * s) for s in (1.0, 3.0)]
    result = with_figures(NOTHING, [exchanged(tuple(marks))], rate_bps=None)
    assert (result.copy_in_s, result.copy_out_s) == (3.0, 6.0)
