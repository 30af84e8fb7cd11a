"""Looks at a host before a node is started there. It runs alone, in any Python from 3.6 on.

`lowcomm launch` sends this text to the standard input of `PYTHON -`, with its question in JSON as
the only argument; it prints one JSON object. Must NOT import lowcomm, torch or what is not in the
standard library, nor change anything on the host.
"""

# ruff: noqa: T201, UP006, UP035 (old Pythons)
import importlib.util
import json
import os
import shutil
import socket
import struct
import sys
import time
from typing import Any, Dict

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
ANYWHERE = "0.0.0.0"  # noqa: S104 (as a node listens that other hosts reach)


def version_of(package: str) -> str:
    """The version of a package; "" if it is missing, "?" if only its version is unknown."""
    try:
        from importlib.metadata import PackageNotFoundError, version
    except ImportError:
        return ""
    try:
        return version(package)
    except PackageNotFoundError:
        return "?" if importlib.util.find_spec(package) else ""


def address_of(interface: str) -> str:
    """The IPv4 address of a network interface; "" if it has none, or does not exist."""
    import fcntl

    name = interface.encode()[:15]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def port_fault(host: str, port: int) -> str:
    """The reason why no program can listen at this address now; "" if one can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1)
        except (OSError, OverflowError) as error:
            return getattr(error, "strerror", None) or str(error)
    return ""


def free_bytes(directory: str) -> int:
    """Free space on the disk of a directory, which need not exist yet."""
    place = os.path.abspath(directory)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return shutil.disk_usage(place).free


def can_write(directory: str) -> bool:
    place = os.path.abspath(directory)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return os.access(place, os.W_OK | os.X_OK)


def is_supervised(directory: str) -> bool:
    """Whether `lowcomm launch` has started this node, and its supervisor still runs."""
    import fcntl

    path = os.path.join(directory, "supervisor.pid")
    try:
        with open(path) as file:
            if not os.path.exists(os.path.join("/proc", file.read().strip() or "-")):
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, ValueError):
        return False
    return False


def size_of(path: str) -> int:
    """Bytes of a file; 0 if it does not exist."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def look(question: Dict[str, Any]) -> Dict[str, object]:
    """The host's answer. `question`: `directory` of the node, `iface` and `port`."""
    directory = os.path.expanduser(question["directory"])
    interface = question["iface"]
    address = address_of(interface) if interface else ""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "lowcomm": version_of("lowcomm"),
        "torch": version_of("torch"),
        "address": address,
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "port_fault": port_fault(address or ANYWHERE, question["port"]),
        "free_bytes": free_bytes(directory),
        "can_write": can_write(directory),
        "events_bytes": size_of(os.path.join(directory, "events.jsonl")),
        "runs": is_supervised(directory),
        "unix_s": time.time(),
    }


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]))))
