"""Tells lasting faults of the ranks from passing ones.

A fault lasts if the program cannot be run at all, or if several attempts in a row ended in the same
way at the same inner step: the next one would, too, whatever was committed meanwhile. A fault by a
signal, a full memory or a GPU passes. Must NOT start anything, nor decide how long to wait.
"""

import re
from dataclasses import dataclass

from peers.processes.exit_status import SIGNALLED

SAME_FAULTS_MAX = 3
"""Attempts in a row with the same fault. Two may be chance (a port, a file that another program
holds)."""
_PASSING = re.compile(
    r"out of memory|cannot allocate memory|no space left|CUDA|NCCL|cuDNN|cuBLAS|HIP error|"
    r"address already in use|connection (refused|reset|closed)|timed? ?out|"
    r"signal( \d+)? \(SIG|exitcode\s*:\s*-\d",
    re.IGNORECASE,
)
"""Signs of a fault of the machine: exceptions, and texts for a rank that a signal has ended or
stopped."""
_HIDDEN = re.compile(
    r"AttributeError: module 'lowcomm' has no attribute '(attach|[A-Z]\w*)'|"
    r"ImportError: cannot import name '\w+' from 'lowcomm' \(unknown location\)|"
    r"ModuleNotFoundError: No module named 'lowcomm\."
)
"""The exception of a program that has imported another `lowcomm` than the installed package."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFault:
    """The end of an attempt that the ranks did not finish."""

    why: str
    """The reason, for a person."""
    code: int | None
    """Exit status; negative is a signal; None where the daemon ended the attempt first."""
    line: str
    """The last exception, or the last line, on stderr; what the ranks did wrong if they run on."""
    step: int
    """Inner steps that the attempt had made."""

    @property
    def passes(self) -> bool:
        """Is it a fault of the machine, which passes?"""
        if self.code is not None and (self.code < 0 or self.code > SIGNALLED):
            return True
        return bool(_PASSING.search(self.line))

    @property
    def hidden_package(self) -> str:
        """What to do if the program has imported a directory in place of the package; "" if it is
        another fault."""
        if not _HIDDEN.match(self.line):
            return ""
        return (
            f"{self.line}: a directory named lowcomm beside the program, or in the directory where "
            "it runs, hides the installed package: rename it, or run the program elsewhere"
        )

    def is_like(self, other: "AttemptFault") -> bool:
        """The same exit status and exception at the same step. Numbers in the exception's text may
        differ: they are addresses, times and process ids as often as not."""
        codes = self.code == other.code or None in (self.code, other.code)
        return codes and self.step == other.step and _bare(self.line) == _bare(other.line)


class RepeatedFaults:
    """Counts faults that are alike."""

    def __init__(self) -> None:
        self.fault: AttemptFault | None = None
        """The last fault, or a similar one with an exit status."""
        self._count = 0

    def count(self, fault: AttemptFault | None) -> int:
        """How many attempts in a row ended like this one. None: the daemon ended it, which tells
        nothing about the program."""
        if fault is None or fault.passes:
            self.fault, self._count = None, 0
        elif self.fault is not None and fault.is_like(self.fault):
            self.fault = fault if fault.code is not None else self.fault
            self._count += 1
        else:
            self.fault, self._count = fault, 1
        return self._count


def same_again(program: str, fault: AttemptFault, *, attempts: int) -> str:
    """For a person: why there is no further attempt."""
    said = "" if fault.line in fault.why else f"; its last line: {fault.line}"
    return (
        f"{program} failed in the same way in {attempts} attempts in a row, each time at inner "
        f"step {fault.step}, and would do so again: {fault.why}{said}"
    )


def _bare(line: str) -> str:
    return _NUMBER.sub("N", line)
