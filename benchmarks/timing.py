"""CPU time of work, for benchmarks with parts that take turns. Must NOT decide what is measured."""

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], *, times: int = 1) -> float:
    """Average CPU seconds of this process for one call of `work`."""
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times
