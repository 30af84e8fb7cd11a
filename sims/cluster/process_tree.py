"""The processes below a process of this machine, as the Linux kernel lists them.

Must NOT signal a process: its callers do.
"""

from pathlib import Path


def children(pid: int) -> set[int]:
    """The processes that this one has started and not reaped; empty if it has ended."""
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, thread.read_text(encoding="ascii").split()))
        except OSError:
            continue  # The thread has ended.
    return found


def descendants(pid: int) -> set[int]:
    """The children of this process, and theirs, in whatever session."""
    found = children(pid)
    return found.union(*map(descendants, found))
