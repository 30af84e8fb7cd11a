"""Signatures for tests: a hash of a key and the signed bytes, which every test may make."""

import hashlib
from dataclasses import dataclass

from protocols.types.ids import PeerId


@dataclass(frozen=True, slots=True)
class TestSignatures:
    """Those of one peer."""

    __test__ = False
    peer: PeerId

    def sign(self, statement: bytes) -> bytes:
        return signed(key_of(self.peer), statement)

    def verify(self, key: str, statement: bytes, signature: bytes) -> bool:
        return signature == signed(key, statement)


def key_of(peer: PeerId) -> str:
    return hashlib.sha256(peer.encode()).hexdigest()


def signed(key: str, statement: bytes) -> bytes:
    return hashlib.sha512(bytes.fromhex(key) + statement).digest()
