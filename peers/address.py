"""HOST:PORT texts. Must NOT resolve or connect."""

import ipaddress

from protocols.errors import ConfigError

PORT_MAX = 65535
PORT_DIGITS_MAX = 5


def parse_address(text: str, *, key: str) -> tuple[str, int]:
    """Split HOST:PORT (`[::1]:4711` for IPv6). Raises ConfigError naming `key`."""
    host, colon, digits = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    # Without brackets nobody can tell the port of an IPv6 address from its last group.
    clear = bool(colon and host) and bracketed == (":" in host)
    number = digits.isascii() and digits.isdecimal() and len(digits) <= PORT_DIGITS_MAX
    if not clear or not number or int(digits) > PORT_MAX:
        raise ConfigError(
            f"{key}: {text!r} is not HOST:PORT, for example 127.0.0.1:4711 or [::1]:4711"
        )
    return host, int(digits)


def format_address(host: str, port: int) -> str:
    """The inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require_loopback(text: str, *, key: str) -> tuple[str, int]:
    """Links are not encrypted yet, so nothing but this machine may be reached.

    Raises ConfigError for any other address.
    """
    host, port = parse_address(text, key=key)
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            f"{key}: {text} is not on this machine, and links are not encrypted yet: "
            "use an address of 127.0.0.0/8 or [::1]"
        )
    return host, port
