"""How far the build of a corpus is, and whether it goes on: one thread builds, others may stop it.

Must NOT read a file.
"""

import threading
import time
from collections.abc import Callable

from protocols.types import LowcommError

SHOWN_S = 10.0
"""Seconds between two texts."""


class BuildStoppedError(LowcommError):
    """The corpus is not complete, because its node ends."""


class BuildProgress:
    """The progress of one build."""

    def __init__(self, show: Callable[[str], object] = lambda text: None) -> None:
        """`show` gets a line of text now and then, in the thread that builds."""
        self._show = show
        self._done = 0
        self._next = time.monotonic() + SHOWN_S
        self._stopped = threading.Event()

    def request_stop(self) -> None:
        """Let the build end soon, without a corpus. For any thread."""
        self._stopped.set()

    def raise_if_stopped(self) -> None:
        """Called at least each second or so while a corpus is built. Raises BuildStoppedError."""
        if self._stopped.is_set():
            raise BuildStoppedError("the node ends before its corpus is complete")

    def count(self, size: int) -> None:
        """So many more bytes of text are read. Raises BuildStoppedError."""
        self.raise_if_stopped()
        self._done += size
        if time.monotonic() > self._next:
            self._next = time.monotonic() + SHOWN_S
            self._show(f"{self._done / 1e6:.0f} MB of text are read")
