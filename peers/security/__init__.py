"""Keys, certificates and signatures; how a node is admitted.

In: a join token or this node's own key, and the admissions that the log holds. Out: TLS contexts
that trust the admitted nodes, checked admissions, and errors that say which side's clock or token
is wrong. Must NOT decide how often a token may be spent, which issuer counts, nor which peer is
revoked: the log does.

Start reading: trust_store.py; admission_client.py and admission_shell.py are the two sides.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.security.admission_client import Admission, ask
    from peers.security.admission_shell import AdmissionShell
    from peers.security.certificates import is_signed_by, key_of, untimely
    from peers.security.keys import ROOT_KEY, Key, KeySignatures, OwnKey, check_format
    from peers.security.node_secret import SECRET_FILE, make_secret, secret_tls
    from peers.security.proofs import new_token, proof_of
    from peers.security.trust_store import TRUSTED, TrustStore

__all__ = [
    "ROOT_KEY",
    "SECRET_FILE",
    "TRUSTED",
    "Admission",
    "AdmissionShell",
    "Key",
    "KeySignatures",
    "OwnKey",
    "TrustStore",
    "ask",
    "check_format",
    "is_signed_by",
    "key_of",
    "make_secret",
    "new_token",
    "proof_of",
    "secret_tls",
    "untimely",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "admission_client": "Admission ask",
        "admission_shell": "AdmissionShell",
        "certificates": "is_signed_by key_of untimely",
        "keys": "Key KeySignatures OwnKey ROOT_KEY check_format",
        "node_secret": "SECRET_FILE make_secret secret_tls",
        "proofs": "new_token proof_of",
        "trust_store": "TRUSTED TrustStore",
    },
)
