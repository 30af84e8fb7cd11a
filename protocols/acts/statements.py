"""The bytes that an operator's key signs, and words about acts for people.

Must NOT decide whether an act counts (authority.py), nor make or check a signature.
"""

from typing import cast

import msgpack

from protocols.messages.log_entries import (
    Act,
    Revocation,
    Revoked,
    SignedAct,
    Steered,
    TokenIssued,
    TokenRevoked,
)
from protocols.types.ids import PeerId

STATEMENT = b"lowcomm act 1\0"
"""The beginning of the signed bytes: a signature of another kind is none of an act."""
KEY_SHOWN = 8
"""Hex digits of an operator's key in texts for people."""


def act_statement(root: str, entry: SignedAct) -> bytes:
    """The bytes that an operator signs, so that the log takes this act from any peer.

    They are good for one run, named by its root key. A subject is revoked once; the number of a
    `Steered` counts once, in one lineage: so no peer can use the signature again.
    """
    match entry:
        case Revoked(peer=peer):
            kind, of = "peer", [peer]
        case TokenRevoked(token=number):
            kind, of = "token", [number]
        case Steered():
            kind = entry.what
            of = [entry.subject, entry.value, entry.number, entry.lineage]
    return STATEMENT + cast(bytes, msgpack.packb([root, kind, *of, entry.why, entry.unix_s]))


def subject(entry: Act) -> str:
    """A name for the act: the revoked peer's id, the revoked token's number, "issued NUMBER", or
    for a `Steered` its kind and its subject."""
    match entry:
        case Revoked(peer=peer):
            return peer
        case TokenRevoked(token=number):
            return number
        case TokenIssued(terms=terms):
            return f"issued {terms.number}"
        case Steered(what=what, subject=of):
            return f"{what} {of}".rstrip()


def goes(entry: Act) -> PeerId | None:
    """The peer that an act removes: it loses its vote first. None: the act removes no peer."""
    if isinstance(entry, Revoked):
        return entry.peer
    if isinstance(entry, Steered) and entry.what == "kick":
        return PeerId(entry.subject)
    return None


def author(entry: Act) -> str:
    """The peer or key that an act counts by, for people."""
    if isinstance(entry, TokenIssued) or not entry.signature:
        return entry.by
    return f"{signer(entry)}, at {entry.by}"


def signer(entry: SignedAct) -> str:
    """The operator that signed an act, for people."""
    return f"operator {entry.key[:KEY_SHOWN]}" if entry.key else "the root key"


def reason_of(entry: Revocation | Steered) -> str:
    """The reason in brackets, for the end of a phrase; "" if none was given."""
    return f" ({entry.why})" if entry.why else ""


def described(entry: Act) -> str:
    """The act as a line for people."""
    match entry:
        case Revoked(why=why) | TokenRevoked(why=why):
            what = "certificate of" if isinstance(entry, Revoked) else "token"
            by = author(entry)
            return f"the {what} {subject(entry)} was revoked by {by}: {why or 'no reason given'}"
        case TokenIssued(terms=terms):
            admits = f"{terms.uses} {'witnesses' if terms.witness else 'nodes'}"
            return f"{terms.issuer} issued the token {terms.number} for {admits}"
        case Steered():
            return _steered(entry)


def _steered(entry: Steered) -> str:
    what = {
        "pause": "the run is paused",
        "continue": "the run goes on",
        "kick": f"{entry.subject} is removed until it is started again",
        "set": f"{entry.subject} is {entry.value}",
    }
    done = what.get(entry.what, f"operator {entry.subject[:KEY_SHOWN]}: {entry.what}")
    return f"{done}, by {author(entry)}{reason_of(entry)}"
