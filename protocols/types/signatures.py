"""Signatures as the core sees them: the shell makes and checks them with real keys.

Must NOT name a kind of key, nor hold one (peers/security/keys.py), nor know what a statement means.
"""

from typing import Protocol


class Signatures(Protocol):
    """Signatures of this node's key, and checks of any key's. Pure: equal arguments, equal
    results."""

    def sign(self, statement: bytes) -> bytes:
        """The signature of these bytes by this node's key."""
        ...

    def verify(self, key_hex: str, statement: bytes, signature: bytes) -> bool:
        """Is this the signature of these bytes by the key with this public half?"""
        ...


class NoSignatures:
    """Signs nothing, and accepts no signature: for a run without keys."""

    def sign(self, statement: bytes) -> bytes:
        return b""

    def verify(self, key_hex: str, statement: bytes, signature: bytes) -> bool:
        return False


NO_SIGNATURES = NoSignatures()
