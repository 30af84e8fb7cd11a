"""Passes a child's stderr on to ours, and keeps its end.

A thread does it: our stderr may be a terminal that blocks, and then only the child may be held up.
Must NOT know what the child is for.
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
"""Bytes: a traceback of about a hundred frames; its exception is at the end."""
LINE_CHARS_MAX = 300
READ_BYTES_MAX = 64 * 1024
SETTLE_S = 0.25
"""Seconds after the end of a process until its last output is read; longer only if our stderr is
blocked."""
LOOK_S = 0.002
STDERR = 2
_TRACEBACK = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank\d+\]: ?")
"""torch's prefix of each line of a rank in a process group."""
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
        """The child was started, or could not be: close our copy of its end."""
        os.close(self.fd)
        self._thread.start()

    def forget(self) -> None:
        """Drop the kept text: another attempt begins."""
        with self._lock:
            self._tail.clear()

    async def text(self) -> str:
        """The kept end of the child's output so far."""
        await asyncio.to_thread(self._settle)
        with self._lock:
            return self._tail.decode(errors="replace")

    async def end(self) -> None:
        """The child has ended: read the rest of its output."""
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
        """Pass on until no process has the other end open."""
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        while True:
            poller.poll()
            with self._lock:  # If the pipe is found empty, the text is in the tail.
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
    """The line that tells best why a program ended: its last exception, else its last line; ""
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
