"""What is told of a system follows from what was recorded, and from nothing else."""

import math
from dataclasses import replace

import pytest

from benchmarks.exchanging.figures import (
    BusiestLine,
    Exchanged,
    SystemResult,
    data_path_s,
    with_figures,
)
from benchmarks.exchanging.worker import Marks

NOTHING = SystemResult(system="a", version="1", codec="fp32")
LINE = BusiestLine(5000.0, shared=True, payload_bytes=750)


def exchanged(
    marks: tuple[Marks, ...],
    *,
    cpu_s: float = 0.5,
    wire_bytes: int | None = 1000,
    digests: int = 1,
    mean_square: float = 0.0,
    mean_error: float = 0.25,
) -> Exchanged:
    return Exchanged(
        marks=marks,
        cpu_s=cpu_s,
        wire_bytes=wire_bytes,
        digests=digests,
        mean_square=mean_square,
        mean_error=mean_error,
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
    assert data_path_s((*marks, unknown)) is None


def test_medians_least_and_most() -> None:
    result = with_figures(NOTHING, [took(s) for s in (3.0, 1.0, 2.0)], line=None)
    assert (result.median_s, result.min_s, result.max_s) == (2.0, 1.0, 3.0)
    assert result.times_s == (3.0, 1.0, 2.0)
    assert result.rounds == 3
    assert (result.cpu_s, result.wire_bytes) == (0.5, 1000)
    assert result.data_path_s is None
    assert result.line_share is None
    assert result.bit_identical is True
    assert (result.system, result.codec) == ("a", "fp32")


def test_the_share_of_a_line_is_of_what_it_could_have_carried() -> None:
    result = with_figures(NOTHING, [took(2.0)], line=LINE)
    assert result.line_share == pytest.approx(0.8)
    uncounted = exchanged((Marks(handed=0.0, received=1.0),), wire_bytes=None)
    assert with_figures(NOTHING, [uncounted], line=LINE).line_share is None


def test_payload_alone_has_its_share_too_and_the_first_exchange_its_own() -> None:
    one = exchanged((Marks(handed=0.0, received=2.0, data_path_s=1.5),))
    first = replace(NOTHING, first_s=3.0)
    result = with_figures(first, [one], line=replace(LINE, shared=False))
    assert result.line_share is None
    assert result.payload_share == pytest.approx(0.6)
    assert result.data_path_share == pytest.approx(0.8)
    assert result.first_share == pytest.approx(0.4)
    unknown = with_figures(first, [one], line=replace(LINE, payload_bytes=None))
    assert (unknown.payload_share, unknown.data_path_share, unknown.first_share) == (None,) * 3


def test_the_lag_that_each_told_last_counts_and_the_largest_ever() -> None:
    def late(*seconds: float | None) -> Exchanged:
        return exchanged(
            tuple(
                Marks(
                    handed=0.0,
                    received=1.0,
                    lag_p99_s=s,
                    lag_max_s=s,
                    busy_lag_p99_s=s,
                    heartbeat_late_p99_s=s,
                    heartbeat_late_max_s=s,
                )
                for s in seconds
            )
        )

    rounds = [late(9.0, 9.0), late(1.0, 2.0), late(1.5, None), late(None, None)]
    result = with_figures(NOTHING, rounds, line=None)
    assert (result.lag_p99_s, result.lag_max_s, result.busy_lag_p99_s) == (2.0, 9.0, 2.0)
    assert (result.heartbeat_late_p99_s, result.heartbeat_late_max_s) == (2.0, 9.0)
    assert with_figures(NOTHING, [late(1.0, None)], line=None).lag_max_s is None


def test_how_long_nothing_was_exchanged_and_the_largest_mean_error() -> None:
    def at(handed: float, mean_error: float) -> Exchanged:
        late = Marks(handed=handed + 0.25, received=handed + 0.5)
        return exchanged((Marks(handed=handed, received=handed + 1.0), late), mean_error=mean_error)

    result = with_figures(NOTHING, [at(0.0, 1.0), at(2.0, -3.0), at(3.5, 2.0)], line=None)
    assert result.pause_max_s == pytest.approx(1.25)
    assert result.mean_error == -3.0
    assert with_figures(NOTHING, [at(0.0, 1.0)], line=None).pause_max_s is None


def test_one_difference_is_one_too_many() -> None:
    mark = (Marks(handed=0.0, received=1.0),)
    result = with_figures(NOTHING, [exchanged(mark), exchanged(mark, digests=2)], line=None)
    assert result.bit_identical is False


def test_errors_are_of_all_rounds_together() -> None:
    mark = (Marks(handed=0.0, received=1.0),)
    rounds = [exchanged(mark, mean_square=4.0), exchanged(mark, mean_square=0.0)]
    result = with_figures(NOTHING, rounds, line=None)
    assert result.rms_error == pytest.approx(math.sqrt(2.0))
    assert result.mean_error == 0.25


def test_the_slowest_copy_of_each_round_counts() -> None:
    marks = [Marks(handed=0.0, received=1.0, copy_in_s=s, copy_out_s=2 * s) for s in (1.0, 3.0)]
    result = with_figures(NOTHING, [exchanged(tuple(marks))], line=None)
    assert (result.copy_in_s, result.copy_out_s) == (3.0, 6.0)
