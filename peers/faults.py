"""Faults that a peer does to itself, at a moment that cannot be hit from outside.

`--fault kill@round=R,chunk=C`: SIGKILL ourselves when chunk C of our traffic of round R has left.
"""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from peers.link import Link
from protocols.errors import ConfigError
from protocols.ids import PeerId
from protocols.messages import ContributionChunk, Message, ResultChunk

DRAIN_LOOK_S = 0.0005
_FORM = re.compile(r"kill@round=(\d+),chunk=(\d+)")


@dataclass(frozen=True, slots=True)
class Fault:
    """SIGKILL when `chunk` chunks (contributions and results, all peers) of `round` are sent."""

    round: int
    chunk: int

    def __str__(self) -> str:
        return f"kill@round={self.round},chunk={self.chunk}"


def parse_fault(text: str) -> Fault:
    """Raises ConfigError for anything but the documented form."""
    match = _FORM.fullmatch(text)
    if match is None or int(match[2]) < 1:
        raise ConfigError(
            f"--fault {text!r}: write it as kill@round=R,chunk=C with C from 1, "
            "for example kill@round=7,chunk=2"
        )
    return Fault(int(match[1]), int(match[2]))


class FaultInjector:
    """Counts the chunks of the fault's round, and dies at the right one."""

    def __init__(self, fault: Fault, before: Callable[[str], None]) -> None:
        """`before` is told what is about to happen; it must reach the disk by itself."""
        self._fault = fault
        self._before = before
        self._sent = 0

    def chunk_sent(self, peer: PeerId, message: Message, link: Link) -> None:
        """For Mesh(on_chunk_sent=...)."""
        if not isinstance(message, ContributionChunk | ResultChunk):
            return
        if message.stamp.round != self._fault.round:
            return
        self._sent += 1
        if self._sent == self._fault.chunk:
            link.hold()  # This chunk and no other.
            self._die_when_drained(link)

    def _die_when_drained(self, link: Link) -> None:
        """The chunk has left the process when the transport holds none of it any more."""
        if link.unsent_bytes:
            loop = asyncio.get_running_loop()
            loop.call_later(DRAIN_LOOK_S, self._die_when_drained, link)
            return
        self._before(str(self._fault))
        os.kill(os.getpid(), signal.SIGKILL)
