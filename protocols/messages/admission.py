"""Messages about admission and revocation: requests for a certificate, and the leader's answers.

Must NOT know how they are decided (peer/certificates.py).
"""

from protocols.messages.log_entries import Revocation
from protocols.types.frozen import record
from protocols.types.ids import PeerId


@record
class Admit:
    """The only message of a connection without a certificate: sign a certificate for this key.

    It carries a join token; or the certificate of an earlier peer of the same node, which gave up
    its branch of the log, with a signature by that peer's key.
    """

    protocol: int
    token: str
    peer: PeerId
    key: bytes
    """Public key (Ed25519)."""
    certificate: bytes
    """Certificate of the earlier peer (DER); empty with a token."""
    proof: bytes
    """Signature of the request by the earlier peer."""


@record
class Admitted:
    """Answer to Admit: a certificate, and the authority's own certificate (both DER)."""

    certificate: bytes
    authority: bytes


@record
class NotAdmitted:
    """Answer to Admit: refused. `why` is one line for a person."""

    why: str
    final: bool
    """False: the same request may succeed a little later."""


@record
class HandOn:
    """To the leader: a node asks the sender for admission."""

    number: int
    """The sender's number of the request."""
    admit: Admit


@record
class Decided:
    """From the leader, about the request of this number: a certificate (DER), or the reason why
    not."""

    number: int
    certificate: bytes
    why: str
    final: bool


@record
class Revoke:
    """To the leader: a person revokes a certificate or a token at the sender."""

    entry: Revocation
    force: bool
    """Revoke even if no majority of the remaining voters can be reached (leader/voters.py)."""


@record
class NotRevoked:
    """From the leader, to the peer that asked for a revocation: it is refused."""

    subject: str
    """A peer's id, or a token's number."""
    why: str


@record
class AskKey:
    """From a voter, which may have to admit nodes as leader: send me the authority's key."""


@record
class AuthorityKey:
    """To a voter, over a connection with certificates on both sides: the authority's private key
    (DER)."""

    key: bytes
