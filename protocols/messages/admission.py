"""Messages about admission, revocation and tokens: requests, and the leader's answers.

Must NOT know how they are decided (peer/certificates.py).
"""

from protocols.messages.log_entries import Act, TokenTerms
from protocols.types.frozen import record
from protocols.types.ids import PeerId


@record
class Admit:
    """The only message of a connection without a certificate that the log admits: admit this one.

    It proves that the sender has a token, and does not contain the token's secret. The node of an
    earlier peer, which gave up its branch of the log, names that peer; the token with which that
    one was admitted counts if the log does not know it.
    """

    protocol: int
    peer: PeerId
    key: bytes
    """Public key (Ed25519)."""
    certificate: bytes
    """Certificate of the peer (DER), signed with its key."""
    witness: bool
    """The peer will vote and train nothing."""
    terms: TokenTerms
    signature: bytes
    """The issuer's, of the terms."""
    proof: bytes
    """The token's own key's, of `key`."""
    earlier: PeerId
    """The earlier peer of this node, with the same key; "": there is none."""


@record
class Admitted:
    """Answer to Admit: the log admits the peer."""

    certificates: tuple[bytes, ...]
    """Certificates of the run's voters (DER), which the peer trusts until it has read the log."""


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
    """From the leader, about the request of this number: admitted, or the reason why not."""

    number: int
    certificates: tuple[bytes, ...]
    """Those of the voters (DER), if the peer is admitted."""
    why: str
    """"" if it is admitted."""
    final: bool


@record
class RequestAct:
    """To the leader: a person asks for this act at the sender."""

    entry: Act
    force: bool
    """Revoke even if no majority of the remaining voters can be reached (leader/voters.py)."""


@record
class ActRefused:
    """From the leader, to the peer that asked for an act: it is refused."""

    subject: str
    """A peer's id, or a token's number."""
    why: str
