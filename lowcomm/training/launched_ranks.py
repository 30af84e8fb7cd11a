"""The ranks that a launcher (torchrun) has started: the first starts the daemon, the others ask it.

The first rank answers at a Unix socket without a file. Its name contains the port of the launcher's
rendezvous, which no other program of this machine has. Must NOT import torch, nor start
a daemon (own_daemon.py).
"""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lowcomm.training.own_daemon import ANSWER_TIMEOUT_S
from protocols.types import ConfigError, LowcommError

FIRST_TIMEOUT_S = 300.0
"""Seconds until the first rank calls `attach`: imports may take so long on a busy disk."""
AGAIN_S = 0.05
"""Seconds between two tries to reach the first rank."""
FIRST_ERROR_S = 5.0
"""Seconds before the others raise an error after the first rank did: a launcher ends them before
that, so that only the first rank's error, which tells the cause, is printed."""
LINE_BYTES_MAX = 1 << 16
_CREDENTIALS = struct.Struct("iii")
"""Process, user and group, as the kernel gives them."""


@dataclass(frozen=True, slots=True)
class LaunchedRanks:
    """All ranks of this node, and this one."""

    ranks: int
    rank: int
    address: bytes
    """Of the first rank's socket."""
    launcher: int = 0
    """The process that ends after all ranks; 0: not known."""

    @property
    def command(self) -> list[str]:
        """The launcher's command line; empty if it is not known."""
        if not self.launcher:
            return []
        words = Path(f"/proc/{self.launcher}/cmdline").read_bytes().split(b"\0")
        return [os.fsdecode(word) for word in words[:-1]]

    def listen(self) -> socket.socket:
        """On the first rank, before it starts the daemon: the socket for `hand_out`. Raises
        LowcommError."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(self.address)
            listening.listen(self.ranks)
        except OSError as error:
            listening.close()
            raise LowcommError(f"cannot listen for the node's other ranks: {error}") from error
        return listening

    def hand_out(self, listening: socket.socket, environment: Mapping[str, str]) -> None:
        """Give the other ranks these variables, in a thread. The socket is closed at the end."""
        line = json.dumps(environment).encode("ascii") + b"\n"
        threading.Thread(target=self._hand_out, args=(listening, line), daemon=True).start()

    def _hand_out(self, listening: socket.socket, line: bytes) -> None:
        left = self.ranks - 1
        with listening:
            while left:
                link, _ = listening.accept()
                with link:
                    if _is_ours(link):
                        link.sendall(line)
                        left -= 1

    def ask(self, *, timeout_s: float = FIRST_TIMEOUT_S) -> dict[str, str]:
        """On another rank: wait for the variables with which it attaches. Raises LowcommError if
        the first rank has started no daemon, or does not attach within `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                try:
                    link.connect(self.address)
                except ConnectionRefusedError:
                    if time.monotonic() < deadline:
                        time.sleep(AGAIN_S)
                        continue
                    raise LowcommError(
                        f"rank 0 has not called lowcomm.attach() within {timeout_s:g} s, and it "
                        "starts the node's daemon"
                    ) from None
                return _answer_of(link)


def launched_ranks() -> LaunchedRanks | None:
    """The ranks of this process's launcher; None if no launcher started it. Raises ConfigError if
    the variables make no sense, or the ranks run on several machines."""
    if not os.environ.get("RANK"):
        if number("WORLD_SIZE", 1) > 1:
            raise ConfigError(
                "WORLD_SIZE is set and RANK is not: start the program by a launcher, as in "
                "`torchrun --nproc-per-node 2 train.py`, or unset WORLD_SIZE"
            )
        return None
    ranks, rank = number("WORLD_SIZE", 1), number("RANK", 0)
    here = number("LOCAL_WORLD_SIZE", ranks)
    if here != ranks:
        raise ConfigError(
            f"WORLD_SIZE is {ranks} and LOCAL_WORLD_SIZE {here}: a node on several machines "
            "begins with `lowcomm peer run.toml ... -- torchrun train.py` (node.other_hosts); else "
            "start torchrun on each machine by itself, without --nnodes"
        )
    if rank >= ranks:
        raise ConfigError(f"RANK is {rank} and WORLD_SIZE {ranks}: ranks count from 0")
    port, restarts = number("MASTER_PORT", 0), number("TORCHELASTIC_RESTART_COUNT", 0)
    if not port and ranks == 1:
        return None  # RANK=0 was set by hand.
    if not port:
        raise ConfigError("RANK is set and MASTER_PORT is not: a launcher such as torchrun sets it")
    launcher = os.getppid() if os.environ.get("TORCHELASTIC_RUN_ID") else 0
    name = f"\0lowcomm-{os.getuid()}-{port}-{restarts}"
    return LaunchedRanks(ranks, rank, name.encode("ascii"), launcher)


def number(variable: str, default: int) -> int:
    """The number in this variable; `default` if it is missing or empty. Raises ConfigError."""
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ConfigError(f"{variable} must be a number, got {text!r}")
    return int(text)


def _answer_of(link: socket.socket) -> dict[str, str]:
    if not _is_ours(link):
        raise LowcommError("a process of another user listens in place of the node's rank 0")
    link.settimeout(2 * ANSWER_TIMEOUT_S)
    try:
        with link.makefile("rb") as stream:
            line = stream.readline(LINE_BYTES_MAX)
    except OSError:
        line = b""
    if not line:
        time.sleep(FIRST_ERROR_S)
        raise LowcommError("rank 0 has not started the node's daemon: see its error")
    return json.loads(line)


def _is_ours(link: socket.socket) -> bool:
    """Whether the other process runs as our user."""
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[1] == os.getuid()
