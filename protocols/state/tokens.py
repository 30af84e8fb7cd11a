"""Join tokens: their content, and how often the log may still spend them.

A token names the run's authority. Only holders of the authority's key can seal a token, and each of
them can check one that it has never seen. Must NOT draw random numbers, read a clock or make
certificates (peers/security/certificates.py does).
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgpack

from protocols.messages.log_entries import Revocation, Revoked, TokenRevoked, TokenSpent
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId
from protocols.types.limits import NAME_MAX, SPENT_MAX, TOKEN_CHARS_MAX
from protocols.wire.validators import WireError, integer, many, octets, text

if TYPE_CHECKING:
    from protocols.messages.snapshot import RunStateSnapshot

PREFIX = "lc1-"
"""The number of the token's format."""
NUMBER_BYTES = 16
AUTHORITY_BYTES = 32
SEAL_BYTES = 16
"""Bytes of HMAC-SHA256 in a token: 128 bits cannot be guessed over a network."""
ADDRESSES_MAX = 4
USES_MAX = 1 << 16
ANOTHER = "ask for another one (`lowcomm token DIRECTORY`)"
SECURE = (AUTHORITY_BYTES, NUMBER_BYTES, SEAL_BYTES)
_addresses = many(text(NAME_MAX), ADDRESSES_MAX)
_checks = (
    *(_addresses, octets(0, AUTHORITY_BYTES), octets(0, NUMBER_BYTES)),
    *(integer(USES_MAX), integer(1 << 63), octets(0, SEAL_BYTES)),
)


@dataclass(frozen=True, slots=True)
class Token:
    """The content of a join token, which a person hands to a new node."""

    addresses: tuple[str, ...]
    """Addresses of peers of the run."""
    authority: bytes = b""
    """The public key (Ed25519) of the run's certificate authority, by which a joiner recognises the
    run. Empty: the run is not encrypted, and the token is not spent."""
    number: bytes = b""
    """128 random bits that name the token."""
    uses: int = 0
    expires: int = 0
    """Unix seconds."""
    seal: bytes = b""

    @property
    def secure(self) -> bool:
        return bool(self.authority)

    def sealed(self, key: bytes) -> Token:
        """This token, sealed with the authority's key."""
        seal = _seal(self, key)
        return Token(self.addresses, self.authority, self.number, self.uses, self.expires, seal)

    def is_sealed(self, key: bytes) -> bool:
        return hmac.compare_digest(self.seal, _seal(self, key))


def encode_token(token: Token) -> str:
    """Encode a token as one printable word."""
    packed = cast(bytes, msgpack.packb([*_body(token), token.seal]))
    word = PREFIX + urlsafe_b64encode(packed).decode().rstrip("=")
    assert len(word) <= TOKEN_CHARS_MAX, "a token is too long"
    return word


def decode_token(word: str) -> Token:
    """Decode a token. Raises ConfigError with one line for the person that typed it."""
    if ":" in word and not word.startswith(PREFIX):
        raise ConfigError(
            f"{word!r} is an address: to join a run takes a token, which "
            "`lowcomm token DIRECTORY` prints on any machine of the run"
        )
    try:
        if not word.startswith(PREFIX) or len(word) > TOKEN_CHARS_MAX or not word.isascii():
            raise WireError("no token")
        packed = word.removeprefix(PREFIX)
        raw = cast(object, msgpack.unpackb(_bytes_of(packed), max_array_len=len(_checks)))
        if not isinstance(raw, list):
            raise WireError("no list")
        fields = cast(list[object], raw)
        made = Token(*(check(one) for check, one in zip(_checks, fields, strict=True)))
        sizes = len(made.authority), len(made.number), len(made.seal)
        if not made.addresses or sizes not in (SECURE, (0, 0, 0)):
            raise WireError("half a token")
    except (ValueError, RecursionError):  # WireError, and the errors of base64 and msgpack.
        raise ConfigError(
            f"{word[:40]!r} is no join token, or not all of one: `lowcomm token DIRECTORY` prints "
            "them"
        ) from None
    return made


def spending(token: Token, peer: PeerId, key: bytes) -> TokenSpent:
    """The entry that admits `peer`, the holder of the private half of `key`."""
    return TokenSpent(token.number.hex(), peer, key.hex(), token.uses, token.expires)


@dataclass(slots=True)
class SpentTokens:
    """All tokens that the log has spent: admitted peers and their keys. A rollback keeps them."""

    peers: dict[PeerId, TokenSpent] = field(default_factory=dict[PeerId, TokenSpent])
    """In the order of the log; a peer is admitted once."""
    forgotten: int = 0
    """Unix seconds: tokens that expire until then cannot be spent any more, since their uses are
    forgotten."""
    revoked: dict[PeerId, Revoked] = field(default_factory=dict[PeerId, Revoked])
    """Peers with a revoked certificate."""
    revoked_tokens: dict[str, TokenRevoked] = field(default_factory=dict[str, TokenRevoked])
    """Revoked tokens, by number."""

    def has(self, entry: TokenSpent) -> bool:
        return self.peers.get(entry.peer) == entry

    def apply(self, entry: TokenSpent | Revocation) -> None:
        if isinstance(entry, Revoked):
            self.revoked[entry.peer] = entry
            return
        if isinstance(entry, TokenRevoked):
            self.revoked_tokens[entry.token] = entry
            return
        self.peers[entry.peer] = entry
        if len(self.peers) > SPENT_MAX:
            oldest = min(self.peers.values(), key=lambda spent: spent.expires)
            del self.peers[oldest.peer]
            self.forgotten = max(self.forgotten, oldest.expires)

    def uses_left(self, entry: TokenSpent) -> int:
        spent = sum(other.token == entry.token for other in self.peers.values())
        return entry.uses - spent

    def become(self, image: RunStateSnapshot) -> None:
        self.peers, self.forgotten = {entry.peer: entry for entry in image.spent}, image.forgotten
        self.revoked = {entry.peer: entry for entry in image.revoked}
        self.revoked_tokens = {entry.token: entry for entry in image.revoked_tokens}


def revocation(entry: Revoked) -> str:
    """A line for the revoked peer."""
    return (
        f"this node's certificate was revoked by {entry.by}{reason_of(entry)}: ask for a new "
        "token, and start with an empty node directory"
    )


def subject(entry: Revocation) -> str:
    """The revoked peer's id, or the revoked token's number."""
    return entry.peer if isinstance(entry, Revoked) else entry.token


def reason_of(entry: Revocation) -> str:
    """The reason in brackets, for the end of a phrase; "" if none was given."""
    return f" ({entry.why})" if entry.why else ""


def _body(token: Token) -> list[object]:
    return [list(token.addresses), token.authority, token.number, token.uses, token.expires]


def _seal(token: Token, key: bytes) -> bytes:
    packed = cast(bytes, msgpack.packb(_body(token)))
    return hmac.digest(key, packed, hashlib.sha256)[:SEAL_BYTES]


def _bytes_of(word: str) -> bytes:
    """The bytes of an encoded token. Raises ValueError."""
    if word.strip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"):
        raise ValueError("other characters than those of a token")
    return urlsafe_b64decode(word + "=" * (-len(word) % 4))
