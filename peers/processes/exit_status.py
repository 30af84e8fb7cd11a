"""Exit statuses as a shell has them: one number, whether a program ended by itself or by a signal.

Must NOT import anything: programs that do little else than start others read it as they start.
"""

SIGNALLED = 128
"""A shell's exit status of a program that a signal ended is this much more than the signal."""


def shell_status(code: int) -> int:
    """`code`: as Python has it, negative for a signal."""
    return code if code >= 0 else SIGNALLED - code
