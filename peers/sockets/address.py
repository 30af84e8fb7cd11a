"""HOST:PORT texts. Must NOT resolve or connect."""

import ipaddress

from protocols.types import NAME_MAX, ConfigError
from protocols.wire import short

PORT_MAX = 65535
PORT_DIGITS_MAX = 5


def parse_address(text: str, *, key: str) -> tuple[str, int]:
    """Split HOST:PORT (`[::1]:4711` for IPv6), of at most NAME_MAX characters. Raises ConfigError
    naming `key`."""
    host, colon, digits = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    # Without brackets the port of an IPv6 address looks like its last group.
    clear = bool(colon and host) and bracketed == (":" in host)
    number = digits.isascii() and digits.isdecimal() and len(digits) <= PORT_DIGITS_MAX
    if not clear or not number or int(digits) > PORT_MAX:
        raise ConfigError(
            f"{key}: {text!r} is not HOST:PORT, for example 127.0.0.1:4711 or [::1]:4711"
        )
    if len(text) > NAME_MAX or not text.isprintable():
        raise ConfigError(
            f"{key}: an address is one line of at most {NAME_MAX} characters, got {short(text)}; "
            "use a shorter name of that host, or its number"
        )
    return host, int(digits)


def format_address(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require_loopback(text: str, *, key: str) -> tuple[str, int]:
    """Parse an address that must be a loopback one: unencrypted data must not leave this machine.

    Raises ConfigError for any other address.
    """
    host, port = parse_address(text, key=key)
    if not is_loopback(host):
        raise ConfigError(
            f"{key}: {text} is not on this machine, and node.insecure is for this machine only: "
            "leave it out, or use an address of 127.0.0.0/8 or [::1]"
        )
    return host, port


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # A name may resolve to another machine tomorrow.


def is_wildcard(host: str) -> bool:
    """Does the host mean all addresses of this machine? It can be listened on, but not dialled."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
