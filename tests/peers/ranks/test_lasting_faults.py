"""Which faults of the ranks last, as one attempt after the other ends."""

import pytest

from peers.processes.last_words import telling_line
from peers.ranks.lasting_faults import SAME_FAULTS_MAX, AttemptFault, RepeatedFaults


def fault(line: str, *, code: int | None = 1, step: int = 0) -> AttemptFault:
    return AttemptFault(why=line, code=code, line=line, step=step)


def counted(*faults: AttemptFault | None) -> int:
    """How many attempts in a row ended as the last one of these."""
    repeats = RepeatedFaults()
    return [repeats.count(each) for each in faults][-1]


def test_the_same_exception_at_the_same_step_lasts() -> None:
    same = [fault(f"ValueError: no row {n} at 0x7f{n:x}", step=7) for n in range(SAME_FAULTS_MAX)]
    assert counted(*same) == SAME_FAULTS_MAX


@pytest.mark.parametrize(
    "other",
    [
        fault("ValueError: x", step=8),
        fault("KeyError: 'x'", step=7),
        fault("ValueError: x", code=2, step=7),
    ],
    ids=["at another step", "another exception", "another exit status"],
)
def test_what_differs_begins_anew(other: AttemptFault) -> None:
    first = fault("ValueError: x", step=7)
    assert counted(first, first, other) == 1
    assert counted(first, other, first) == 1


def test_an_exit_status_that_came_too_late_is_no_difference() -> None:
    late = fault("ValueError: x", code=None, step=7)
    assert counted(fault("ValueError: x", step=7), late, fault("ValueError: x", step=7)) == 3


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: module 'lowcomm' has no attribute 'attach'",
        "ImportError: cannot import name 'attach' from 'lowcomm' (unknown location)",
        "ModuleNotFoundError: No module named 'lowcomm.training'",
    ],
)
def test_a_directory_in_place_of_the_package_is_named(line: str) -> None:
    assert "rename it" in fault(line).hidden_package
    assert line in fault(line).hidden_package


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: module 'lowcomm' has no attribute 'atach'",
        "ModuleNotFoundError: No module named 'lowcomm'",
        "AttributeError: module 'numpy' has no attribute 'attach'",
    ],
)
def test_another_name_that_is_not_there_is_no_such_directory(line: str) -> None:
    assert fault(line).hidden_package == ""


@pytest.mark.parametrize(
    "passing",
    [
        fault("Killed", code=-9),
        fault("Killed", code=137),
        fault("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        fault("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1"),
        fault("RuntimeError: [Errno 98] Address already in use"),
        fault("traceback : Signal 9 (SIGKILL) received by PID 4711"),
        fault("rank 1 is stopped by a signal (SIGSTOP)", code=None),
        None,
    ],
    ids=[
        *("a signal", "a signal in a shell", "memory", "nccl", "a port", "torchrun"),
        *("a stopped process", "an order"),
    ],
)
def test_what_passes_never_counts(passing: AttemptFault | None) -> None:
    assert counted(passing, passing, passing) == 0
    same = fault("ValueError: x")
    assert counted(same, same, passing, same) == 1


TORCHRUN = """
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]:     raise ValueError("no data")
[rank0]: ValueError: no data
E1125 02:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:869] failed
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
  time      : 2026-11-25_02:00:00
  exitcode  : 1 (pid: 4711)
============================================================
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("loading\nno data set found\n", "no data set found"),
        ("10%|#\r20%|##\r", "20%|##"),
        ('Traceback (most recent call last):\n  File "x"\nKeyError: 3\nbye\n', "KeyError: 3"),
        (TORCHRUN, "ValueError: no data"),
        (
            "exitcode : -9\n  traceback : Signal 9 (SIGKILL)\n=====\n",
            "traceback : Signal 9 (SIGKILL)",
        ),
        ("\x1b[31mred", "?[31mred"),
    ],
)
def test_the_line_that_says_most(text: str, line: str) -> None:
    assert telling_line(text) == line
