"""Time of CPU, on average."""

from benchmarks.timing import cpu_seconds


def test_work_is_done_as_often_as_told_and_takes_time() -> None:
    done: list[int] = []
    assert cpu_seconds(lambda: done.append(sum(range(20000))), times=7) > 0
    assert len(done) == 7
