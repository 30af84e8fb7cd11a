"""Secrets for peers that dialled this one, each for one bulk connection.

Must NOT connect anything, nor know what a secret is used for.
"""

import secrets

from peers.connections.control import Link
from peers.connections.encryption import Keys
from protocols.types import SECRET_BYTES


class Tickets:
    """The open secrets: at most one for each control connection."""

    def __init__(self) -> None:
        self._given: dict[Link, tuple[bytes, Keys]] = {}
        self._whose: dict[bytes, Link] = {}

    def __len__(self) -> int:
        return len(self._given)

    def give(self, control: Link) -> bytes:
        """The secret for the next bulk connection; the same one until that connection is open."""
        if control not in self._given:
            secret = secrets.token_bytes(SECRET_BYTES)
            keys = Keys.of(secret)
            self._given[control] = secret, keys
            self._whose[keys.ticket] = control
        return self._given[control][0]

    def take(self, ticket: bytes) -> tuple[Link, Keys] | None:
        """The control connection and the keys of this ticket, once; None if it is unknown."""
        control = self._whose.pop(ticket, None)
        if control is None:
            return None
        _, keys = self._given.pop(control)
        return control, keys

    def void(self, control: Link) -> None:
        """The control connection has ended: drop its secret."""
        _, keys = self._given.pop(control, (b"", None))
        if keys is not None:
            del self._whose[keys.ticket]
