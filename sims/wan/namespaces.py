"""Network namespaces without a name: they vanish with the last descriptor and process.

Linux and root only. Must NOT touch the namespace of the calling process, or start processes.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sims.wan.link import WanError

TUN = "/dev/net/tun"
TUN_DEVICE = (10, 200)
NAME = b"wan"
ADDRESS = "10.77.0.{}"
LOOPBACK_ADDRESS = "127.77.0.{}"
"""For programs that speak plaintext only with this machine's own addresses."""
NETMASK = "255.255.255.0"
ROUTE_LOCALNET = Path("/proc/sys/net/ipv4/conf/wan/route_localnet")
"""Whether a device may carry addresses of 127.0.0.0/8. Opened in the namespace of the caller."""
MTU = 1500
QUEUE_PACKETS = 5000
"""Packets that the device holds until the router reads them. The router is seldom late by more than
some milliseconds."""

_CLONE_NEWNET = 0x40000000
_PR_SET_TIMERSLACK = 29
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_IFF_UP = 0x1
_TUN_F_CSUM, _TUN_F_TSO4 = 0x1, 0x2
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
_SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8922, 0x8943


def require_root() -> None:
    """Raises WanError with one line that says what is missing."""
    if not hasattr(os, "geteuid") or not Path("/proc/thread-self/ns/net").exists():
        raise WanError("network namespaces need Linux: use --means proxy")
    if os.geteuid() != 0:
        raise WanError("network namespaces need root: run it with sudo, or use --means proxy")


@contextmanager
def elsewhere() -> Generator[None]:
    """Return this thread to its own namespace at the end, even after an error."""
    home = _open_own()
    try:
        yield
    finally:
        try:
            _call("setns", home, _CLONE_NEWNET)
        finally:
            os.close(home)


def new_namespace() -> int:
    """Move this thread into a new namespace with its loopback up; returns a descriptor.

    Call it inside `elsewhere` to come back. Raises WanError.
    """
    try:
        _call("unshare", _CLONE_NEWNET)
    except OSError as error:
        raise WanError(
            f"no new network namespace ({error.strerror}): a container needs CAP_SYS_ADMIN, "
            "or use --means proxy"
        ) from error
    with _controller() as control:
        _set(control, _SIOCSIFFLAGS, b"lo", struct.pack("H", _IFF_UP))
    return _open_own()


def new_tun(address: str) -> int:
    """Make a TUN device with this address in the thread's namespace, which must be new. Returns its
    descriptor, which does not block; the device vanishes with the descriptor. Raises WanError."""
    tun = _open_tun()
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", NAME, flags))
        fcntl.ioctl(tun, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
        with _controller() as control:
            if address.startswith("127."):
                ROUTE_LOCALNET.write_text("1")
                # Otherwise all of 127.0.0.0/8, the other peers included, is on the loopback.
                _set(control, _SIOCSIFNETMASK, b"lo", _address("255.255.255.255"))
            _set(control, _SIOCSIFADDR, NAME, _address(address))
            _set(control, _SIOCSIFNETMASK, NAME, _address(NETMASK))
            _set(control, _SIOCSIFMTU, NAME, struct.pack("i", MTU))
            _set(control, _SIOCSIFTXQLEN, NAME, struct.pack("i", QUEUE_PACKETS))
            _set(control, _SIOCSIFFLAGS, NAME, struct.pack("H", _IFF_UP))
    except OSError as error:
        os.close(tun)
        raise WanError(f"a TUN device cannot be made: {error.strerror}") from error
    return tun


def no_timer_slack() -> None:
    """Switch off timer slack: by default, the kernel wakes a process up to 50 us late, to save
    wake-ups."""
    _call("prctl", _PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _open_tun() -> int:
    try:
        return os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        pass  # Containers often lack the file; the kernel may have the device.
    except OSError as error:
        raise WanError(f"{TUN} cannot be opened: {error.strerror}; use --means proxy") from error
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tun"
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*TUN_DEVICE))
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise WanError(
                f"there is no {TUN}, nor can it be made ({error.strerror}): modprobe tun, or "
                "docker run --device /dev/net/tun --cap-add NET_ADMIN, or use --means proxy"
            ) from error


def _open_own() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _call(function: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    while getattr(libc, function)(*arguments) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _controller() -> "contextlib.closing[socket.socket]":
    return contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


def _set(control: socket.socket, request: int, name: bytes, value: bytes) -> None:
    fcntl.ioctl(control, request, struct.pack("16s24s", name, value))


def _address(text: str) -> bytes:
    return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(text))
