"""A rank's end of its socket to the daemon: blocking, with a thread that notices the daemon's end.

Must NOT know what a message means (`peers/ipc/rank_client.py`).
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from peers.ipc.messages import FD, RankMessage
from peers.ipc.msgpack_records import LinkError, decode, frame, take_frame

M = TypeVar("M")
_CREDENTIALS = struct.Struct("iii")
"""Process, user and group, as the kernel gives them."""


class RankSocket:
    """The rank's end: blocking. The watcher ends the process when the daemon is gone."""

    def __init__(self, path: str, *, timeout_s: float) -> None:
        """Connect within `timeout_s`. Raises OSError if no process listens."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sending = threading.Lock()
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._wake = -1
        self._watcher: threading.Thread | None = None
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        # From here on every wait ends with the daemon: its end of stream ends this process.
        self._socket.settimeout(None)
        self.daemon_stderr = _stderr_of(self._socket)
        """The daemon's own stderr, for messages after its end; -1 if there is none."""

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` in a thread of its own at the end of the stream; it never reads."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._watcher = threading.Thread(
            target=_watch, args=(self._socket.fileno(), self._wake, on_gone), daemon=True
        )
        self._watcher.start()

    def send(self, message: RankMessage) -> None:
        """Blocks while there is no room; any thread may call it. Raises LinkError when the daemon
        is gone, or if the message is too large."""
        with self._sending:
            self._send_all(frame(message))

    def offer(self, message: RankMessage) -> None:
        """Send the message, or drop it if there is no room: figures are not worth a training step.
        Raises LinkError as `send` does."""
        framed = frame(message)
        with self._sending:
            try:
                sent = self._socket.send(framed, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                raise self._gone() from None
            # The kernel may take a part of a large message. The rest must follow then, even if it
            # has to wait: else the next message would be read as the rest.
            if sent < len(framed):
                self._send_all(framed[sent:])

    def receive(self, kinds: Mapping[str, type[M]]) -> M:
        """The next message, of one of these kinds. Raises LinkError if it is another one, or at the
        end of the stream."""
        while (payload := take_frame(self._buffer)) is None:
            self._read(0)
        return decode(payload, kinds)

    def receive_now(self, kinds: Mapping[str, type[M]]) -> M | None:
        """As `receive`, but None if no message has come yet."""
        while (payload := take_frame(self._buffer)) is None:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
        return decode(payload, kinds)

    def _read(self, flags: int) -> None:
        # At most one descriptor is ever sent, with the first byte of an `Attached`.
        # (socket.recv_fds would do, but ignores its flags in Python 3.11.)
        try:
            data, rights, _, _ = self._socket.recvmsg(
                1 << 16, socket.CMSG_LEN(FD.size), socket.MSG_CMSG_CLOEXEC | flags
            )
        except ConnectionResetError:
            raise self._gone() from None
        self._fds += [FD.unpack(packed)[0] for _, _, packed in rights]
        if not data:
            raise self._gone()
        self._buffer += data

    def take_fd(self) -> int:
        """The descriptor that came with the last message. Raises LinkError if there was none."""
        if not self._fds:
            raise LinkError("the daemon sent no shared memory")
        return self._fds.pop()

    def close(self) -> None:
        """Stop the watcher, then close; idempotent. The daemon still hears what was sent."""
        if self._watcher is not None:
            if self._watcher.is_alive():  # In a forked child it is not; the parent's goes on.
                os.eventfd_write(self._wake, 1)
            self._watcher.join()
            self._watcher = None
            os.close(self._wake)
        for fd in (*self._fds, self.daemon_stderr):
            if fd >= 0:
                os.close(fd)
        self.daemon_stderr = -1
        self._fds.clear()
        self._socket.close()

    def _send_all(self, framed: bytes) -> None:
        try:
            self._socket.sendall(framed)
        except (BrokenPipeError, ConnectionResetError):
            raise self._gone() from None

    def _gone(self) -> LinkError:
        """The watcher sees it too: let it end the process, rather than race with it."""
        if self._watcher is not None:
            self._watcher.join()
        return LinkError("the daemon closed the connection")


def _stderr_of(connection: socket.socket) -> int:
    """A descriptor of its own for the stderr of the process at the other end; -1 without."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = _CREDENTIALS.unpack(packed)[0]
    try:
        return os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return -1  # A socket, or nothing at all.


def _watch(fd: int, wake: int, on_gone: Callable[[], None]) -> None:
    """Sleep until the other end hangs up, or until `wake`. Reading is the main thread's."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP | select.POLLHUP)
    poller.register(wake, select.POLLIN)
    if wake not in dict(poller.poll()):
        on_gone()
