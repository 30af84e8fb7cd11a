"""What a joiner cost, from what was written down."""

from benchmarks.joins.join_times import JoinTimes, Round, figures, rounds_of


def lines(*times: tuple[int, float, float]) -> list[dict[str, float]]:
    return [{"round": number, "handed": a, "received": b} for number, a, b in times]


def join(began: float, **changed: float) -> JoinTimes:
    times = {"connected": began + 1, "verified": began + 2, "ended": began + 4, **changed}
    return JoinTimes(
        **{"began": began, "granted_s": 0.5, "cpu_s": 0.25, **times}, donor_bytes=(30, 0, 60)
    )


def test_a_round_is_from_the_last_one_handed_over_to_the_last_one_here() -> None:
    first = lines((1, 0.0, 3.0), (2, 5.0, 6.0), (3, 8.0, 9.0))
    second = lines((1, 1.0, 2.0), (3, 8.5, 8.75))
    assert rounds_of([first, second]) == [Round(1, 1.0, 3.0), Round(3, 8.5, 9.0)]
    assert rounds_of([first]) == [
        Round(1, 0.0, 3.0),
        Round(2, 5.0, 6.0, since=3.0),
        Round(3, 8.0, 9.0, since=6.0),
    ]
    assert rounds_of([first, []]) == []
    assert rounds_of([]) == []


def test_rounds_during_a_transfer_are_compared_with_those_without_a_joiner() -> None:
    rounds = [
        Round(1, 0.0, 1.0),
        Round(2, 9.0, 10.5),  # Its process starts.
        Round(3, 11.5, 13.0),
        Round(4, 13.5, 20.0),  # Its process ends.
        Round(5, 20.0, 21.0),
    ]
    found = figures(rounds, [join(10.0)])
    assert (found.rounds_alone, found.round_alone_s) == (2, 1.0)
    assert (found.rounds_during, found.round_during_s, found.ratio) == (1, 1.5, 1.5)


def test_so_is_the_time_from_one_result_to_the_next() -> None:
    rounds = [
        Round(1, 0.0, 1.0),
        Round(2, 5.0, 6.0, since=1.0),
        Round(3, 14.0, 16.0, since=6.0),  # The transfer is over when they exchange.
        Round(4, 25.0, 26.0, since=21.0),
    ]
    found = figures(rounds, [join(10.0)])
    assert (found.period_alone_s, found.period_during_s, found.period_ratio) == (5.0, 10.0, 2.0)
    assert found.round_during_s is None


def test_what_a_transfer_costs_is_told_of_joins_that_no_round_fell_into() -> None:
    joins = [join(10.0, cpu_s=0.5), join(20.0, cpu_s=3.0)]
    assert figures([Round(1, 21.5, 21.75)], joins).transfer_cpu_s == 0.5


def test_joins_are_told_by_their_medians() -> None:
    found = figures([], [join(0.0), join(10.0), join(20.0, verified=24.0)])
    assert found.connection_to_verified_s == 1.0
    assert found.connection_to_verified_max_s == 3.0
    assert found.cut_to_verified_s == 0.5
    assert (found.donors_used, found.bytes_by_donor, found.state_bytes) == (2, (60, 30), 90)
    assert (found.round_alone_s, found.round_during_s, found.ratio) == (None, None, None)
    assert figures([], []).connection_to_verified_s is None
