"""Join tokens: their words, their terms, and how often the log may still spend them.

A token has a key pair of its own. The issuer signs its terms, which hold the public half; the word
that a person hands on has the private half too. A joining node proves that it has the word: the
private half signs the node's key. So neither the log nor a message contains a secret. Must NOT draw
random numbers, read a clock, or make or check signatures (peers/security does).
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgpack

from protocols.acts.statements import author, reason_of, subject
from protocols.messages.log_entries import (
    Revocation,
    Revoked,
    TokenIssued,
    TokenRevoked,
    TokenSpent,
    TokenTerms,
)
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId
from protocols.types.limits import NAME_MAX, SPENT_MAX, TOKEN_CHARS_MAX
from protocols.wire.validators import Check, WireError, flag, integer, many, octets, text

if TYPE_CHECKING:
    from protocols.messages.snapshot import RunStateSnapshot

PREFIX = "lc2-"
"""The number of the token's format."""
KEY_BYTES = 32
"""Bytes of a public or private key (Ed25519)."""
SIGNATURE_BYTES = 64
NUMBER_BYTES = 16
ISSUED_MAX = 64
"""Tokens of one voter that count after the end of its vote."""
PRINT_BYTES = 16
"""Bytes of a key's fingerprint: 128 bits, which no other key can be made to match."""
ADDRESSES_MAX = 4
USES_MAX = 1 << 16
ANOTHER = "ask for another one (`lowcomm token DIRECTORY`)"
ROOT = PeerId("")
"""The issuer of a token that the root key signed."""
STATEMENT, CLAIM, RENEWAL = b"lowcomm token 2\0", b"lowcomm joiner 2\0", b"lowcomm renewal 2\0"
"""Beginnings of signed and hashed bytes: a signature of one kind is none of another."""
NO_TERMS = TokenTerms("", "", 0, 0, witness=False, issuer=ROOT)
"""The terms of a request without a token."""
TokenAct = Revocation | TokenIssued
_SECURE = (KEY_BYTES, KEY_BYTES, KEY_BYTES, SIGNATURE_BYTES)
_checks: tuple[Check, ...] = (
    *(many(text(NAME_MAX), ADDRESSES_MAX), many(octets(PRINT_BYTES, PRINT_BYTES), ADDRESSES_MAX)),
    *(octets(0, KEY_BYTES), octets(0, KEY_BYTES), octets(0, KEY_BYTES)),
    *(integer(USES_MAX), integer(1 << 63), flag, text(NAME_MAX), octets(0, SIGNATURE_BYTES)),
)


@dataclass(frozen=True, slots=True)
class Token:
    """The content of a join token, which a person hands to a new node."""

    addresses: tuple[str, ...]
    """Addresses of peers of the run."""
    prints: tuple[bytes, ...] = ()
    """Fingerprints of the keys of these peers; (): the founder may be there, with a certificate
    that the root key signed."""
    root: bytes = b""
    """Public half of the run's root key. Empty: the run is not encrypted, and the token is not
    spent."""
    key: bytes = b""
    """Public half of the token's own key."""
    secret: bytes = b""
    """The other half."""
    uses: int = 0
    expires: int = 0
    """Unix seconds."""
    witness: bool = False
    issuer: PeerId = ROOT
    """The voter that signed the terms, or an operator's public key; "": the root key."""
    signature: bytes = b""

    @property
    def secure(self) -> bool:
        return bool(self.root)

    @property
    def number(self) -> str:
        """128 bits of the token's key, as hex digits, which name the token."""
        return self.key[:NUMBER_BYTES].hex()

    @property
    def terms(self) -> TokenTerms:
        terms = (self.number, self.key.hex(), self.uses, self.expires)
        return TokenTerms(*terms, witness=self.witness, issuer=self.issuer)


def operator_of(issuer: str) -> str:
    """The public key of the operator that is this issuer of a token; "" if the root key or a voter
    is.

    A peer that takes such a key as its id can sign no token, since it does not have the other half.
    """
    named = len(issuer) == 2 * KEY_BYTES and not issuer.strip("0123456789abcdef")
    return issuer if named else ""


def statement(root: str, terms: TokenTerms) -> bytes:
    """The bytes that the issuer of a token signs. `root`: 64 hex digits."""
    values = [root, terms.number, terms.key, terms.uses, terms.expires, terms.witness, terms.issuer]
    return STATEMENT + cast(bytes, msgpack.packb(values))


def claim(root: str, key: str) -> bytes:
    """The bytes that the key of a token signs: it admits the node with this public key."""
    return CLAIM + cast(bytes, msgpack.packb([root, key]))


def fingerprint(key: bytes) -> bytes:
    """The fingerprint of a public key."""
    return hashlib.sha256(key).digest()[:PRINT_BYTES]


def renewed(known: TokenSpent) -> TokenTerms:
    """The terms by which the node of an admitted peer may become one other peer."""
    number = hashlib.sha256(RENEWAL + known.peer.encode()).digest()[:NUMBER_BYTES].hex()
    of = known.terms
    return TokenTerms(number, known.key, 1, of.expires, witness=of.witness, issuer=known.peer)


def encode_token(token: Token) -> str:
    """Encode a token as one printable word."""
    packed = cast(bytes, msgpack.packb(_fields(token)))
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
        sizes = tuple(map(len, (made.root, made.key, made.secret, made.signature)))
        if not made.addresses or sizes not in (_SECURE, (0, 0, 0, 0)):
            raise WireError("half a token")
    except (ValueError, RecursionError):  # WireError, and the errors of base64 and msgpack.
        raise ConfigError(
            f"{word[:40]!r} is no join token, or not all of one: `lowcomm token DIRECTORY` prints "
            "them"
        ) from None
    return made


@dataclass(slots=True)
class SpentTokens:
    """All tokens that the log has spent: admitted peers and their keys. A rollback keeps them."""

    peers: dict[PeerId, TokenSpent] = field(default_factory=dict[PeerId, TokenSpent])
    """In the order of the log; a peer is admitted once."""
    spent_at: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """Log indices of their admissions, in the same order."""
    forgotten: int = 0
    """Unix seconds: tokens that expire until then cannot be spent any more, since their uses are
    forgotten."""
    revoked: dict[PeerId, Revoked] = field(default_factory=dict[PeerId, Revoked])
    """Peers with a revoked certificate."""
    revoked_tokens: dict[str, TokenRevoked] = field(default_factory=dict[str, TokenRevoked])
    """Revoked tokens, by number."""
    issued: dict[str, TokenIssued] = field(default_factory=dict[str, TokenIssued])
    """Tokens that count without the vote of their issuer, by number."""
    _indices: dict[str, int] = field(default_factory=dict[str, int])
    """Log indices of these acts, by subject."""

    @property
    def acts(self) -> list[tuple[int, TokenAct]]:
        """All acts with their log indices."""
        kinds = (self.revoked, self.revoked_tokens, self.issued)
        acts = [act for kind in kinds for act in kind.values()]
        return [(self._indices.get(subject(act), 0), act) for act in acts]

    def has(self, entry: TokenSpent) -> bool:
        """Is the peer of this entry admitted, with this certificate?"""
        known = self.peers.get(entry.peer)
        return known is not None and known.certificate == entry.certificate

    def apply(
        self, entry: TokenSpent | TokenAct, index: int = 0, *, needed: Set[PeerId] = frozenset()
    ) -> None:
        """`index`: the entry's log index. `needed`: peers that are in the run: their admission is
        not forgotten, since others trust their certificates by it."""
        if not isinstance(entry, TokenSpent):
            self._indices[subject(entry)] = index
        if isinstance(entry, Revoked):
            self.revoked[entry.peer] = entry
            return
        if isinstance(entry, TokenRevoked):
            self.revoked_tokens[entry.token] = entry
            return
        if isinstance(entry, TokenIssued):
            self._issue(entry)
            return
        self.peers[entry.peer], self.spent_at[entry.peer] = entry, index
        if len(self.peers) > SPENT_MAX:
            gone = [spent for peer, spent in self.peers.items() if peer not in needed]
            oldest = min(gone or self.peers.values(), key=lambda spent: spent.terms.expires)
            del self.peers[oldest.peer], self.spent_at[oldest.peer]
            self.forgotten = max(self.forgotten, oldest.terms.expires)

    def _issue(self, entry: TokenIssued) -> None:
        """Of too many tokens the one that expires first is forgotten: of one issuer, so that it
        cannot displace the tokens of others, and of all."""
        self.issued[entry.terms.number] = entry
        own = [each for each in self.issued.values() if each.by == entry.by]
        for known, most in ((own, ISSUED_MAX), (list(self.issued.values()), SPENT_MAX)):
            if len(known) > most:
                gone = min(known, key=lambda each: each.terms.expires)
                del self.issued[gone.terms.number], self._indices[subject(gone)]
                return

    def uses_left(self, terms: TokenTerms) -> int:
        spent = sum(other.terms.number == terms.number for other in self.peers.values())
        return terms.uses - spent

    def become(self, image: RunStateSnapshot) -> None:
        self.peers, self.forgotten = {entry.peer: entry for entry in image.spent}, image.forgotten
        self.spent_at = dict(zip(self.peers, image.spent_indices, strict=False))
        self.revoked = {entry.peer: entry for entry in image.revoked}
        self.revoked_tokens = {entry.token: entry for entry in image.revoked_tokens}
        self.issued = {entry.terms.number: entry for entry in image.issued}
        acts = (*image.revoked, *image.revoked_tokens, *image.issued)
        self._indices = dict(zip(map(subject, acts), image.act_indices, strict=False))


def revocation(entry: Revoked) -> str:
    """A line for the revoked peer."""
    return (
        f"this node's certificate was revoked by {author(entry)}{reason_of(entry)}: ask for a new "
        "token, and start with an empty node directory"
    )


def _fields(token: Token) -> list[object]:
    named = [list(token.addresses), list(token.prints), token.root, token.key, token.secret]
    terms = [token.uses, token.expires, token.witness, token.issuer, token.signature]
    return [*named, *terms]


def _bytes_of(word: str) -> bytes:
    """The bytes of an encoded token. Raises ValueError."""
    if word.strip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"):
        raise ValueError("other characters than those of a token")
    return urlsafe_b64decode(word + "=" * (-len(word) % 4))
