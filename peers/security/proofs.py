"""Signatures of join tokens, and what they prove about an admission.

Must NOT decide how often a token may be spent, nor which issuer counts (the log).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from peers.security.certificates import certificate_fault, key_of
from peers.security.keys import Key, is_signed
from protocols.messages import TokenSpent, TokenTerms
from protocols.state import Token, claim, operator_of, statement
from protocols.types import PeerId

FORGED = "this is no token of this run: ask for one (`lowcomm token DIRECTORY` on its machines)"


def new_token(
    issuer: Key,
    *,
    root: bytes,
    uses: int,
    hours: float,
    addresses: Sequence[str] = (),
    prints: Sequence[bytes] = (),
    witness: bool = False,
    named: str = "",
) -> Token:
    """A new token, signed by this issuer: the root key; or the voter, or the operator's public key,
    that is `named`. `prints`: the fingerprints of nodes at these addresses."""
    key, expires = Key.make(), int(time.time() + hours * 3600)
    plain = Token(tuple(addresses), tuple(prints), root, key.public, key.secret, uses, expires)
    plain = replace(plain, witness=witness, issuer=PeerId(named))
    return replace(plain, signature=issuer.sign(statement(root.hex(), plain.terms)))


def is_genuine(terms: TokenTerms, signature: bytes, *, root: str, issuer_key: str) -> bool:
    """Has this issuer signed the terms? Keys: 64 hex digits."""
    return is_signed(statement(root, terms), signature, bytes.fromhex(issuer_key))


def proof_of(token: Token, key: bytes) -> bytes:
    """The proof of the token's holder that it admits the node with this public key."""
    return Key.of(token.secret).sign(claim(token.root.hex(), key.hex()))


def admission_fault(entry: TokenSpent, *, root: str, issuer_key: str) -> str:
    """Why signatures and certificate of an admission do not prove it; "" if they do, at any time.
    `issuer_key`: 64 hex digits; in a renewal the core has compared the keys."""
    public = bytes.fromhex(entry.key)
    if why := certificate_fault(entry.certificate, entry.peer, public, root=bytes.fromhex(root)):
        return why
    if entry.renews:
        return ""
    terms = entry.terms
    if not is_genuine(terms, entry.signature, root=root, issuer_key=issuer_key):
        return FORGED
    claimed = claim(root, entry.key)
    return "" if is_signed(claimed, entry.proof, bytes.fromhex(terms.key)) else FORGED


def unproved(
    admitted: Sequence[TokenSpent],
    known: Mapping[PeerId, bytes],
    *,
    root: str,
    operators: Sequence[str] = (),
) -> dict[PeerId, str]:
    """The admissions of a log that their signatures do not prove, with the reasons: its leader had
    no token. `known`: certificates that were proved before; `operators`: public keys of all that
    there ever were, besides the root key."""
    by_peer = {entry.peer: entry for entry in admitted}
    faults: dict[PeerId, str] = {}
    for entry in admitted:
        if known.get(entry.peer) == entry.certificate:
            continue
        named = entry.terms.issuer
        issuer_key = by_peer[named].key if named in by_peer else key_of(known.get(named, b"")).hex()
        operator = "" if entry.renews else operator_of(entry.terms.issuer)
        if not named:
            issuer_key = root
        elif operator:
            issuer_key = operator if operator in operators else ""
        if not issuer_key or (entry.renews and issuer_key != entry.key):
            faults[entry.peer] = "no admitted peer and no operator issued its token"
        elif why := admission_fault(entry, root=root, issuer_key=issuer_key):
            faults[entry.peer] = why
    return faults
