"""What travels when somebody without a certificate asks to be let in, and between those who decide.

Frozen, and checked field by field in wire/codec.py before anybody sees one.
"""

from protocols.messages.log_entries import Revocation
from protocols.types.frozen import record
from protocols.types.ids import PeerId


@record
class Admit:
    """The only word of a connection without a certificate: sign a certificate for this key.

    With a token; or with the certificate of an earlier peer of the same node, which gave its branch
    of the log up, and a signature by its key.
    """

    protocol: int
    token: str
    peer: PeerId
    key: bytes
    """Public (Ed25519)."""
    certificate: bytes
    """Of the earlier peer (DER); empty with a token."""
    proof: bytes
    """The earlier peer's signature of what is asked for."""


@record
class Admitted:
    """The answer: a certificate, and the authority's own (both DER)."""

    certificate: bytes
    authority: bytes


@record
class NotAdmitted:
    """The other answer. `why` is a line for a person."""

    why: str
    final: bool
    """False: it may well work a little later."""


@record
class HandOn:
    """To the leader: somebody asks here to be let in."""

    number: int
    """The sender's name for whoever asks."""
    admit: Admit


@record
class Decided:
    """From the leader, for whoever asked under this number: a certificate (DER), or why not."""

    number: int
    certificate: bytes
    why: str
    final: bool


@record
class Revoke:
    """To the leader: a person here wants a certificate, or a token, to count no more."""

    entry: Revocation
    force: bool
    """Also if no majority of the voters that remain can be reached (leader/voters.py)."""


@record
class NotRevoked:
    """From the leader, to the peer that asked for a revocation: it is refused."""

    subject: str
    """A peer's id, or a token's number."""
    why: str


@record
class AskKey:
    """From a voter, who may have to let others in: let me have the authority's key."""


@record
class AuthorityKey:
    """To a voter, over a connection with certificates on both sides: its private key (DER)."""

    key: bytes
