"""How long work takes, for benchmarks whose parts take turns. Must NOT decide what is measured."""

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], *, times: int = 1) -> float:
    """CPU time of this process for doing it once, on average."""
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times
