"""Keys and certificates, and how a node gets its own.

In: a join token or the authority's key. Out: TLS contexts, certificates for admitted nodes, and
errors that say which side's clock or token is wrong. Must NOT decide how often a token may be
spent, nor which peer is revoked: the log does.

Start reading: certificates.py; certificate_client.py and certificate_issuer.py are the two sides.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.security.certificate_client import ask
    from peers.security.certificate_issuer import CertificateIssuer, genuine
    from peers.security.certificates import (
        CA,
        CA_KEY,
        Authority,
        OwnKey,
        contexts,
        public_of,
        root_of,
        untimely,
    )

__all__ = [
    "CA",
    "CA_KEY",
    "Authority",
    "CertificateIssuer",
    "OwnKey",
    "ask",
    "contexts",
    "genuine",
    "public_of",
    "root_of",
    "untimely",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "certificate_client": "ask",
        "certificate_issuer": "CertificateIssuer genuine",
        "certificates": "Authority CA CA_KEY OwnKey contexts public_of root_of untimely",
    },
)
