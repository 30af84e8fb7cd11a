"""Finds the peer that a connection on this machine comes from, in /proc; Linux only.

For peers that know one address of each peer, as lowcomm's do: all peers dial the same port, and the
socket does not name the dialling peer. Must NOT look into processes without the network's token in
their environment.
"""

import os
from collections.abc import Iterator
from pathlib import Path

PEER, TOKEN = "LOWCOMM_PEER", "LOWCOMM_WAN"
TABLE = Path("/proc/net/tcp")


def find_dialler(port: int, token: str) -> int | None:
    """The peer with a process that holds the loopback socket of this local port; None: no
    peer's."""
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
    """Inode of the socket with this local port, from the text of /proc/net/tcp (columns: sl, local
    address, remote address, state, ..., inode)."""
    ending = f":{port:04X}"
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(ending) and fields[9] != "0":
            return fields[9]
    return None


def peer_of(environment: bytes, token: str) -> int | None:
    """The peer number in the text of /proc/PID/environ; None: another network, or none."""
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
            continue  # The process has ended, or is another user's.
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
