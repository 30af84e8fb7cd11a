"""A process that imports what ranks need once, and forks a rank whenever the daemon asks.

`python -m peers.processes.zygote --fd N --parent PID --preload a,b,c --target module:function`. A
forked rank starts in milliseconds and shares the memory of the imported modules. The daemon speaks
JSON over an inherited SOCK_SEQPACKET socket, one object a packet:

    zygote -> daemon   {"ready": true}                      everything is imported
    daemon -> zygote   {"fork": [{variable: value}, ...]}   one rank for each environment
    zygote -> daemon   {"forked": [pid, ...]}
    zygote -> daemon   {"exited": rank, "returncode": n}    negative is a signal
    daemon -> zygote   {"kill": true}                       SIGKILL and reap all ranks
    zygote -> daemon   {"killed": true}

The end of a rank is told by SIGCHLD, which every kernel has; pidfds and threads that wait are not
needed. Must NOT start a thread (a fork copies only the calling one), know what it preloads, or
outlive the daemon; nor may a rank outlive the zygote.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, NoReturn, cast

from peers.processes.die_with_parent import die_with_parent
from peers.processes.processes import kill_group

PACKET_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Rank:
    """A running child; `index` is its place in the request that forked it."""

    index: int
    pid: int


def _woken_by(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has the byte already."""


class Zygote:
    """Forks, kills and reaps; one thread, no loop but `poll`."""

    def __init__(self, channel: socket.socket, *, target: str) -> None:
        self._channel = channel
        self._target = target
        self._ranks: list[Rank] = []
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """The handler of a signal writes a byte to `_woken`. If the pipe is full, a byte more would
        say nothing."""
        # After the imports, which might set them otherwise. Without a handler (SIG_DFL) nothing
        # is written.
        signal.signal(signal.SIGCHLD, _woken_by)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)
        self._poller.register(self._wake, select.POLLIN)

    def serve(self) -> None:
        """Until the daemon closes its end (or dies, which kills this process)."""
        self._send({"ready": True})
        while True:
            for fd, _ in self._poller.poll():
                if fd == self._wake:
                    os.read(self._wake, select.PIPE_BUF)
                    self._reap_ended()
                elif not self._obey(self._channel.recv(PACKET_BYTES_MAX)):
                    self._kill()
                    return

    def _obey(self, packet: bytes) -> bool:
        if not packet:
            return False
        request = cast("dict[str, Any]", json.loads(packet))
        if "fork" in request:
            environments = cast("list[dict[str, str]]", request["fork"])
            pids = [self._fork(index, env) for index, env in enumerate(environments)]
            self._send({"forked": pids})
        else:
            self._kill()
            self._send({"killed": True})
        return True

    def _fork(self, index: int, environment: Mapping[str, str]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            with _ProcessEnd():
                die_with_parent(parent)
                self._become_rank(environment)
                sys.exit(_load(self._target)())
        self._ranks.append(Rank(index, pid))
        return pid

    def _become_rank(self, environment: Mapping[str, str]) -> None:
        os.setsid()  # So that whatever the rank starts is killed with it, and without us.
        self._channel.close()
        signal.set_wakeup_fd(-1)
        os.close(self._wake)
        os.close(self._woken)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.environ.update(environment)
        sys.argv = [self._target]

    def _reap_ended(self) -> None:
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        for rank in tuple(self._ranks):
            if os.waitid(os.P_PID, rank.pid, look) is not None:
                self._reap(rank)

    def _reap(self, rank: Rank) -> None:
        self._ranks.remove(rank)
        kill_group(rank.pid)  # Processes that the rank started and left; its id is not reused yet.
        _, status = os.waitpid(rank.pid, 0)
        self._send({"exited": rank.index, "returncode": os.waitstatus_to_exitcode(status)})

    def _kill(self) -> None:
        for rank in self._ranks:
            kill_group(rank.pid)  # First kill all, so that they die in parallel.
        for rank in tuple(self._ranks):
            self._reap(rank)

    def _send(self, message: Mapping[str, object]) -> None:
        # The daemon may be gone: the next read or the death signal shows that.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(json.dumps(message).encode())


class _ProcessEnd:
    """Leave a forked process at the end of the block, whatever happens in it, without running what
    the zygote registered for its own end. An error is printed and means status 1."""

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> NoReturn:
        code = 0
        if isinstance(error, SystemExit) and not isinstance(error.code, str):
            code = int(error.code or 0)
        elif error is not None:
            traceback.print_exception(error)
            code = 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # Its reader is gone, or it is closed.
                stream.flush()
        os._exit(code & 0xFF)


def main(argv: Sequence[str]) -> None:
    """Import the modules, then serve."""
    parser = argparse.ArgumentParser(prog="peers.processes.zygote")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--target", required=True)
    options = parser.parse_args(argv)
    die_with_parent(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Only the launcher of the node handles it.
    for name in options.preload.split(","):
        if name:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # Keeps the collector of a rank from writing to, and so copying, our pages.
    with socket.socket(fileno=options.fd) as channel:
        Zygote(channel, target=options.target).serve()


def _load(target: str) -> Callable[[], int | None]:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main(sys.argv[1:])
