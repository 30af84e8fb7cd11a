"""Takes pidfd_open from this process and from all that it starts, as older kernels and seccomp
profiles do. Only the standard library, for processes that have nothing else yet. Must NOT hold
tests.
"""

import ctypes
import os
import struct
from pathlib import Path

HERE = Path(__file__).parent
PIDFD_OPEN = 434
"""On every architecture that Python runs on, Alpha apart."""
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_LOAD_NUMBER = (0x20, 0, 0, 0)  # The word at offset 0 of seccomp_data: the system call's number.
_ALLOW = (0x06, 0, 0, 0x7FFF0000)
_RETURN_ERRNO = 0x00050000


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("count", ctypes.c_ushort), ("filters", ctypes.c_void_p))


def forbid(number: int) -> None:
    """pidfd_open fails with this errno from now on; it cannot be taken back. Raises OSError."""
    steps = [
        _LOAD_NUMBER,
        (0x15, 0, 1, PIDFD_OPEN),  # Another number jumps over the next step.
        (0x06, 0, 0, _RETURN_ERRNO | number),
        _ALLOW,
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(steps), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value, more in (
        (_PR_SET_NO_NEW_PRIVS, 1, None),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program)),
    ):
        if libc.prctl(option, ctypes.c_ulong(value), more, None, None) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))


def forbidding(number: int) -> str:
    """Python that does so, wherever it runs."""
    return (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); "
        f"from without_pidfds import forbid; forbid({number}); sys.path.pop(0)"
    )
