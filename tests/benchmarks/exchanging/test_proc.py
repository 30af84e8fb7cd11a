"""What the kernel says of this very process."""

import os
import time

import pytest

from benchmarks.exchanging.proc import (
    Memory,
    cpu_s,
    memory,
    sent_bytes,
    together,
    transmitted,
)

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:    1000      10    0    0    0     0          0         0     2000      20    0
   wan:     100       1    0    0    0     0          0         0       30       2    0
"""


def test_all_devices_are_counted() -> None:
    assert transmitted(NET_DEV.splitlines()) == 2030


def test_cpu_time_is_that_of_the_process() -> None:
    before = time.process_time()
    seen = cpu_s([os.getpid()])
    assert before <= seen <= time.process_time()
    assert cpu_s([os.getpid(), os.getpid()]) >= 2 * before


def test_nobody_has_no_cpu_time() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_s([2**22 + 1])  # Above the largest number that a process may have.


def test_memory_and_traffic_of_this_process() -> None:
    mine = memory(os.getpid())
    assert mine.peak_rss > mine.rss_file > 0
    assert sent_bytes(os.getpid()) >= 0


def test_shared_memory_counts_once() -> None:
    one = Memory(peak_rss=100, rss=90, rss_shmem=10, rss_file=30)
    assert together([one]) == one
    assert together([one, one]).peak_rss == 160
    assert together([one, one]).rss_shmem == 10
