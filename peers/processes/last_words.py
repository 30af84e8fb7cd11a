"""What a child process writes to stderr: passed on to ours, and the end of it kept.

A thread does it and not the loop: our stderr may be a terminal that stands still, and then only the
child may be held up. Must NOT know what the child is for.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import select
import struct
import termios
import threading
import time

TAIL_BYTES_MAX = 16 * 1024
"""A traceback of some hundred frames; an exception's own line is at its end."""
LINE_CHARS_MAX = 300
READ_BYTES_MAX = 64 * 1024
SETTLE_S = 0.25
"""What a process wrote before its end is in the pipe by then; longer only if our own stderr is
blocked."""
LOOK_S = 0.002
STDERR = 2
_TRACEBACK = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank\d+\]: ?")
"""What torch puts before each line of a rank that has joined a process group."""
_LAUNCHER = "torch.distributed.elastic."
"""torchrun's own exception says only that a rank had one."""


class LastWords:
    """Give `fd` to one child as its stderr, then call `started`. Not for two children."""

    def __init__(self) -> None:
        self._reading, self.fd = os.pipe()
        self._lock = threading.Lock()
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._pass_on, daemon=True, name="stderr")

    def started(self) -> None:
        """Whether the child runs or could not be started: our copy of its end is closed."""
        os.close(self.fd)
        self._thread.start()

    def forget(self) -> None:
        """What comes from now on is of another attempt."""
        with self._lock:
            self._tail.clear()

    async def text(self) -> str:
        """All that the child has written by now and that is kept."""
        await asyncio.to_thread(self._settle)
        with self._lock:
            return self._tail.decode(errors="replace")

    async def end(self) -> None:
        """The child has ended: let the last of it out."""
        await asyncio.to_thread(self._thread.join, SETTLE_S)

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while self._unread() and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _unread(self) -> bool:
        with self._lock:
            if self._reading < 0:
                return False
            answer = fcntl.ioctl(self._reading, termios.FIONREAD, struct.pack("i", 0))
            return bool(struct.unpack("i", answer)[0])

    def _pass_on(self) -> None:
        """Until no process has the other end any more."""
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        while True:
            poller.poll()
            with self._lock:  # Whoever finds the pipe empty finds the text in the tail.
                data = os.read(self._reading, READ_BYTES_MAX)
                self._tail += data
                del self._tail[:-TAIL_BYTES_MAX]
                if not data:
                    os.close(self._reading)
                    self._reading = -1
                    return
            with contextlib.suppress(OSError):  # Our stderr is closed, or its reader is gone.
                while data:
                    data = data[os.write(STDERR, data) :]


def telling_line(text: str) -> str:
    """The line that says best why a program ended: its last exception, else its last line; ""
    without any."""
    lines = [_RANK.sub("", line.rstrip()) for line in re.split(r"[\r\n]+", text)]
    found = ""
    for at, line in enumerate(lines):
        if line.lstrip().startswith(_TRACEBACK):
            error = next((each for each in lines[at + 1 :] if each and not each[0].isspace()), "")
            if error and not error.startswith(_LAUNCHER):
                found = error
    if not found:
        said = [line.strip() for line in lines if any(char.isalnum() for char in line)]
        found = said[-1] if said else ""
    return "".join(char if char.isprintable() else "?" for char in found)[:LINE_CHARS_MAX]
