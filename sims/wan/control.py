"""The connection between the owner of an emulated network and the process that carries it: one line
of JSON for each request and answer.

The process lives as long as the owner's end of the connection, so nothing is left when the owner is
killed. Must NOT know by which means the network is emulated.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Self

from peers.processes import own_module
from sims.wan.link import LinkCounters, Pair, WanError, WanLink

START_TIMEOUT_S = 20.0
"""Seconds for the start of a Python process on a busy machine, and of some namespaces."""
ANSWER_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
LINE_BYTES_MAX = 16 << 20
"""Enough for the counters of 200 peers, which have 40000 links."""
OWNER_LOOK_S = 1.0
"""Seconds between two checks that the owner is still the parent process. The connection alone is
not enough: descriptors held by a fork of the owner keep it open."""

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Helper:
    """The owner's side: starts the process, sends requests, and always ends it."""

    def __init__(self, module: str, config: Mapping[str, Any]) -> None:
        """Raises WanError with the process's error text if it cannot emulate the network."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*own_module(module), str(theirs.fileno()), str(os.getpid())]
            # Its own session: Ctrl+C ends the owner, which needs the network while it stops.
            self._popen = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._socket = ours
        self._received = bytearray()
        try:
            self.started = self.ask(config, within_s=START_TIMEOUT_S)
        except BaseException:
            self.end_process()
            raise

    def ask(self, request: Mapping[str, Any], *, within_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Send a request and return the answer. Raises WanError if the process refuses or has
        ended."""
        try:
            self._socket.settimeout(within_s)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._line()
        except TimeoutError:
            raise WanError(f"the emulated network does not answer for {within_s:g} s") from None
        except OSError as error:
            raise WanError(f"the emulated network has ended: {error.strerror}") from error
        if line is None:
            raise WanError("the emulated network has ended: see its last output on stderr")
        answer = json.loads(line)
        if "error" in answer:
            raise WanError(str(answer["error"]))
        return answer

    def end_process(self) -> None:
        """End the process, and with it the network. Idempotent."""
        with contextlib.suppress(OSError):  # Closed already.
            self._socket.shutdown(socket.SHUT_RDWR)  # A fork of ours may hold it open.
        self._socket.close()
        try:
            self._popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        except BaseException:
            self._popen.kill()
            self._popen.wait()
            raise

    def _line(self) -> bytes | None:
        while True:
            line, end, rest = self._received.partition(b"\n")
            if end:
                self._received = rest
                return bytes(line)
            data = self._socket.recv(1 << 16)
            if not data:
                return None
            self._received += data


class Owner:
    """The process's side of the connection, for `select` or for `serve`."""

    def __init__(self, connection: socket.socket, owner_pid: int) -> None:
        self._socket = connection
        self._owner_pid = owner_pid
        self._received = bytearray()

    @classmethod
    def from_arguments(cls, argv: Sequence[str]) -> Self:
        """Take the connection from the process's arguments, as `Helper` gives them."""
        return cls(socket.socket(fileno=int(argv[0])), int(argv[1]))

    @property
    def socket(self) -> socket.socket:
        return self._socket

    @property
    def lives(self) -> bool:
        return os.getppid() == self._owner_pid

    def first(self) -> dict[str, Any]:
        """Wait for the network to emulate; if the owner has ended, end the process."""
        while True:
            requests = self.receive()
            if requests is None:
                sys.exit(0)
            if requests:
                assert len(requests) == 1  # The owner waits for the answer.
                return requests[0]

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for data, and return the complete requests; None: the owner has ended."""
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data or len(self._received) > LINE_BYTES_MAX:
            return None
        self._received += data
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        return [json.loads(line) for line in lines]

    def answer(self, values: Mapping[str, Any]) -> None:
        """Send an answer. Blocks until the owner takes it, for which the owner waits."""
        self._socket.setblocking(True)
        with contextlib.suppress(ConnectionError):  # The owner has ended: the next receive says so.
            self._socket.sendall(json.dumps(values).encode() + b"\n")

    def serve(self, answer: Answer) -> None:
        """Answer requests until the owner ends, in a process with no other work."""
        while True:
            self._socket.settimeout(OWNER_LOOK_S)
            try:
                requests = self.receive()
            except TimeoutError:
                if self.lives:
                    continue
                return
            if requests is None:
                return
            for request in requests:
                self.answer(answer(request))


@contextlib.contextmanager
def refusing(owner: Owner) -> Generator[None]:
    """Report a WanError inside to the owner, and end the process."""
    try:
        yield
    except WanError as error:
        owner.answer({"error": str(error)})
        sys.exit(1)


def links_to_json(links: Mapping[Pair, WanLink]) -> list[list[Any]]:
    return [[*pair, link.as_json()] for pair, link in links.items()]


def links_from_json(rows: Sequence[Sequence[Any]]) -> dict[Pair, WanLink]:
    return {(int(row[0]), int(row[1])): WanLink(**row[2]) for row in rows}


def counters_from_json(rows: Sequence[Sequence[Any]]) -> dict[Pair, LinkCounters]:
    return {(int(row[0]), int(row[1])): LinkCounters.from_json(row[2]) for row in rows}
