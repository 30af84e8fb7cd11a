"""Signatures with the keys of nodes. The core says what is signed; the shell has the keys.

Must NOT know what a statement means.
"""

from typing import Protocol


class Signatures(Protocol):
    """Ed25519 in a daemon, a model of it in the simulator. Both calls take about 0.1 ms."""

    def sign(self, statement: bytes) -> bytes:
        """The signature of this node's key, 64 bytes."""
        ...

    def verify(self, key: str, statement: bytes, signature: bytes) -> bool:
        """Has the key with this public half (64 hex digits) signed the statement?"""
        ...
