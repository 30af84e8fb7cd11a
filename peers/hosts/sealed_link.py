"""One connection between a daemon and another host of its node: frames over mutual TLS 1.3.

Must NOT know what a frame means, nor connect again.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, replace

from peers.hosts.frames import HEAD, Frame, FrameKind, Outgoing, decode_head
from peers.ipc.msgpack_records import LinkError, encode
from peers.sockets import tune

SILENT_S = 20.0
"""Seconds without a frame after which the other side counts as lost."""
BEAT_S = 1.0
"""Seconds between two frames of the kind STEPS at least."""
BUFFERED_BYTES = 64 << 10
"""Bytes that wait in this process to be encrypted: a control message comes after them."""
CLOSE_S = 1.0
"""Seconds for the last frame."""
ERRORS = (OSError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError)
"""Of a connection that is lost."""


@dataclass(frozen=True, slots=True)
class LostLink:
    """Why no frame follows."""

    why: str


class SealedLink:
    """One end. `receive` for one task, `write_frames` for another one; the rest never waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._outgoing = Outgoing()
        self.lost = ""
        """Why the connection is given up; "" while it is used."""
        self._reader, self._writer = reader, writer
        self._work = asyncio.Event()
        self._transport = writer.transport
        writer.transport.set_write_buffer_limits(high=BUFFERED_BYTES)
        if (connection := writer.get_extra_info("socket")) is not None:
            tune(connection, bulk=True)

    def send(self, record: object) -> None:
        """Send a record of messages.py."""
        self.put(Frame(FrameKind.HOST, encode(record)))

    def put(self, frame: Frame) -> None:
        """Send the frame before all pieces. A side that does not read is given up."""
        try:
            self._outgoing.put(frame)
        except LinkError as error:
            self.give_up(str(error))
        self._work.set()

    def put_behind(self, frames: Iterable[Frame]) -> None:
        """Send these frames after all that were put behind before."""
        try:
            self._outgoing.put_behind(frames)
        except LinkError as error:
            self.give_up(str(error))
        self._work.set()

    def forget_behind(self) -> None:
        """Send nothing more of what waits behind."""
        self._outgoing.forget_behind()

    def give_up(self, why: str) -> None:
        """Close the connection; the first reason counts."""
        self.lost = self.lost or why
        self._transport.abort()
        self._work.set()

    async def receive(self) -> Frame | LostLink:
        """The next frame."""
        try:
            async with asyncio.timeout(SILENT_S):
                frame, size = decode_head(await self._reader.readexactly(HEAD.size))
                return replace(frame, payload=await self._reader.readexactly(size))
        except LinkError as error:
            self.give_up(str(error))
        except ERRORS as error:
            self.give_up(_why(error))
        return LostLink(self.lost)

    async def write_frames(self) -> None:
        """Send what is put, until the connection is given up."""
        while not self.lost:
            self._work.clear()
            try:
                while encoded := self._outgoing.next_bytes():
                    self._writer.write(encoded)
                    await self._writer.drain()
            except LinkError as error:
                self.give_up(str(error))
            except ERRORS as error:
                self.give_up(_why(error))
            else:
                await self._work.wait()

    async def close(self) -> None:
        """Send what is put but for pieces, and close; idempotent."""
        self._outgoing.forget_behind()
        with contextlib.suppress(*ERRORS, LinkError):
            async with asyncio.timeout(CLOSE_S):
                while not self.lost and (encoded := self._outgoing.next_bytes()):
                    self._writer.write(encoded)
                    await self._writer.drain()
                self._writer.close()
                await self._writer.wait_closed()
        self.give_up("it is closed")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came from it for {SILENT_S:g} s"
    if isinstance(error, asyncio.IncompleteReadError | ConnectionResetError | BrokenPipeError):
        return "it closed the connection"
    return f"the connection broke: {error}"
