"""CPU time, memory and bytes of processes, as the Linux kernel counts them.

Must NOT change anything.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NANO = 1e-9
_CPUCLOCK_SCHED = 2
"""The CPU clock of a whole process, ended threads included; see `clock_getcpuclockid` and the
kernel's posix-cpu-timers."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process, in bytes; all but the peak are current values."""

    peak_rss: int
    rss: int
    rss_shmem: int
    """Memory that it shares on purpose."""
    rss_file: int
    """Programs and libraries."""


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of all these processes together, to the nanosecond. Raises OSError."""
    return sum(time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED) for pid in pids) * NANO


def memory(pid: int) -> Memory:
    """Read the memory of a process. Raises OSError."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return Memory(*(_bytes(lines[name]) for name in ("VmHWM", "VmRSS", "RssShmem", "RssFile")))


def together(memories: Sequence[Memory]) -> Memory:
    """Memory of several processes of one program, with shared memory counted once."""
    shared = [one.rss_shmem + one.rss_file for one in memories]
    return Memory(
        peak_rss=sum(one.peak_rss for one in memories) - sum(shared) + max(shared),
        rss=sum(one.rss for one in memories) - sum(shared) + max(shared),
        rss_shmem=max(one.rss_shmem for one in memories),
        rss_file=max(one.rss_file for one in memories),
    )


def sent_bytes(pid: int) -> int:
    """Bytes sent by all devices of the process's network namespace. Raises OSError."""
    return transmitted(Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines())


def transmitted(lines: Sequence[str]) -> int:
    """The bytes that all devices have sent, from the lines of a net/dev file."""
    return sum(int(line.partition(":")[2].split()[8]) for line in lines if ":" in line)


def _bytes(text: str) -> int:
    number, unit = text.split()
    assert unit == "kB", f"the kernel counts in {unit}"
    return int(number) * 1024
