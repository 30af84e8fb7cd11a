"""Fault injection: a peer kills itself at a moment that cannot be hit from outside, or lies.

`--fault kill@round=R,chunk=C`: SIGKILL this process when chunk C of its traffic of round R has been
sent. `--fault lie@round=R,percent=P`: falsify P percent of each result that this peer makes in
round R, in small pieces; with P = 0 only one byte of it.
"""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from peers.connections.bulk import Bulk
from protocols.interface import ReducePart
from protocols.messages import Chunk, ContributionChunk, ResultChunk, StepChunk
from protocols.types import ConfigError, PeerId

DRAIN_LOOK_S = 0.0005
LIE_EVERY_BYTES = 256
"""A falsified stretch has one false bit in so many bytes."""
_FORM = re.compile(r"kill@round=([0-9]{1,9}),chunk=([0-9]{1,9})")
_LIE = re.compile(r"lie@round=([0-9]{1,9}),percent=([0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """SIGKILL when `chunk` chunks (contributions and results, all peers) of `round` are sent."""

    round: int
    chunk: int

    def __str__(self) -> str:
        return f"kill@round={self.round},chunk={self.chunk}"


@dataclass(frozen=True, slots=True)
class Lie:
    """Falsify this share of the results that this peer makes in `round`, in percent."""

    round: int
    percent: int

    def __str__(self) -> str:
        return f"lie@round={self.round},percent={self.percent}"

    def falsify(self, command: ReducePart, start: int, piece: memoryview) -> None:
        """Change a piece of a sum, which begins at this element of its part."""
        if command.stamp.round != self.round:
            return
        stop = piece.nbytes * self.percent // 100
        if not self.percent and not start:
            stop = 1
        for at in range(0, stop, LIE_EVERY_BYTES):
            piece[at] ^= 1


def parse_fault(text: str) -> InjectedFault | Lie:
    """Parse a documented form. Raises ConfigError for any other text."""
    if (lie := _LIE.fullmatch(text)) is not None and int(lie[1]) >= 1 and int(lie[2]) <= 100:
        return Lie(int(lie[1]), int(lie[2]))
    match = _FORM.fullmatch(text)
    if match is None or int(match[1]) < 1 or int(match[2]) < 1:
        raise ConfigError(
            f"--fault {text!r}: write it as kill@round=R,chunk=C with R and C from 1, "
            "for example kill@round=7,chunk=2, or as lie@round=R,percent=P with P from 0 to 100"
        )
    return InjectedFault(int(match[1]), int(match[2]))


class FaultInjector:
    """Counts the chunks of the fault's round, and dies at the right one."""

    def __init__(self, fault: InjectedFault, before: Callable[[str], None]) -> None:
        """`before` is told what is about to happen; it must reach the disk by itself."""
        self._fault = fault
        self._before = before
        self._sent = 0
        self._bulks: set[Bulk] = set()

    def chunk_sent(self, peer: PeerId, chunk: Chunk, bulk: Bulk) -> None:
        """The callback of Mesh(on_chunk_sent=...)."""
        if not isinstance(chunk, ContributionChunk | ResultChunk | StepChunk):
            return
        if chunk.stamp.round != self._fault.round:
            return
        self._sent += 1
        self._bulks.add(bulk)
        if self._sent == self._fault.chunk:
            bulk.outgoing.held = True  # No further chunk.
            self._die_when_drained()

    def _die_when_drained(self) -> None:
        """Die once the receiver's kernel has the chunk: the death resets the connection, and
        undelivered bytes would be lost."""
        if any(bulk.unsent_bytes for bulk in self._bulks):
            asyncio.get_running_loop().call_later(DRAIN_LOOK_S, self._die_when_drained)
            return
        self._before(str(self._fault))
        os.kill(os.getpid(), signal.SIGKILL)
