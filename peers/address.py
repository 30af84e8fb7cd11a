"""HOST:PORT texts. Must NOT resolve or connect."""

import ipaddress

from protocols.errors import ConfigError

PORT_MAX = 65535


def parse_address(text: str, *, key: str) -> tuple[str, int]:
    """Split HOST:PORT (`[::1]:4711` for IPv6). Raises ConfigError naming `key`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ConfigError(f"{key}: {text!r} is not HOST:PORT, for example 127.0.0.1:4711")
    return host, int(port)


def format_address(host: str, port: int) -> str:
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
