"""Which peer a connection on this machine comes from, read from /proc; Linux only.

For peers that agree on one address of each, as lowcomm's do: everybody dials the same port, and
the socket does not say who it is. Must NOT look into processes that do not carry the network's
token in their environment.
"""

import os
from collections.abc import Iterator
from pathlib import Path

PEER, TOKEN = "LOWCOMM_PEER", "LOWCOMM_WAN"
TABLE = Path("/proc/net/tcp")


def find_dialler(port: int, token: str) -> int | None:
    """The peer whose process holds the loopback socket with this local port; None: nobody's."""
    try:
        inode = socket_inode(TABLE.read_text(encoding="ascii"), port)
    except OSError:
        return None  # Not Linux.
    if inode is None:
        return None
    for pid, peer in _processes(token):
        if _holds(pid, f"socket:[{inode}]"):
            return peer
    return None


def socket_inode(table: str, port: int) -> str | None:
    """In /proc/net/tcp: sl, local address, remote address, state, ..., inode."""
    ending = f":{port:04X}"
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(ending) and fields[9] != "0":
            return fields[9]
    return None


def peer_of(environment: bytes, token: str) -> int | None:
    """From /proc/PID/environ."""
    entries = environment.decode(errors="replace").split("\0")
    if f"{TOKEN}={token}" not in entries:
        return None
    numbers = [entry.removeprefix(f"{PEER}=") for entry in entries if entry.startswith(f"{PEER}=")]
    return int(numbers[0]) if numbers and numbers[0].isdecimal() else None


def _processes(token: str) -> Iterator[tuple[str, int]]:
    for pid in os.listdir("/proc"):
        if not pid.isdecimal():
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # Ended, or another user's.
        peer = peer_of(environment, token)
        if peer is not None:
            yield pid, peer


def _holds(pid: str, wanted: str) -> bool:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}") == wanted:
                return True
        except OSError:
            continue  # Closed meanwhile.
    return False
