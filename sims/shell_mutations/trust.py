"""Planted bugs in signatures, certificates and trust.

Must NOT run anything (shell_mutants.py).
"""

from lowcomm.cli import revoke
from peers.security import admission_shell, certificates, proofs
from peers.security.keys import KeySignatures
from peers.security.trust_store import TrustStore
from sims.mutations.patch import Edit, Mutant

_PROOFS = ("tests/peers/security/test_proofs.py",)
_STORE = ("tests/peers/security/test_trust_store.py",)
_SHELL = ("tests/peers/security/test_admission_shell.py",)
_CERTIFICATES = ("tests/peers/security/test_certificates.py",)

TRUST_MUTANTS = (
    Mutant(
        "any-key-issues-tokens",
        "Every node can make a token of the run.",
        Edit(
            proofs.admission_fault,
            "if not is_genuine(terms, entry.signature, root=root, issuer_key=issuer_key):",
            "if False:",
        ),
        tests=_PROOFS,
    ),
    Mutant(
        "a-token-needs-no-holder",
        "Whoever has read the terms of a token in the log can spend it.",
        Edit(
            proofs.admission_fault,
            "is_signed(claimed, entry.proof, bytes.fromhex(terms.key))",
            "True",
        ),
        tests=_PROOFS,
    ),
    Mutant(
        "any-signature-is-an-order-of-the-root-key",
        "A member signs a revocation with its own key.",
        Edit(
            KeySignatures.verify, "is_signed(statement, signature, bytes.fromhex(key_hex))", "True"
        ),
        tests=("tests/peers/security/test_keys.py",),
    ),
    Mutant(
        "the-node-chooses-what-is-signed",
        "A node that was taken over has the root key revoke another node than the person named.",
        Edit(revoke.means, 'return what in (subject, subject.rpartition(".")[0])', "return True"),
        tests=("tests/lowcomm/cli/test_revoke.py",),
    ),
    Mutant(
        "an-unproved-admission-is-trusted",
        "A leader admits nodes without a token.",
        Edit(
            TrustStore.follow,
            "if entry.peer not in faults and not known:",
            "if not known:",
        ),
        tests=_STORE,
    ),
    Mutant(
        "a-renewal-takes-another-key",
        "A leader makes another node's key that of a node which is in.",
        Edit(proofs.unproved, " or (entry.renews and issuer_key != entry.key)", ""),
        tests=_STORE,
    ),
    Mutant(
        "an-expired-token-counts",
        "A token that was found a year later admits a node.",
        Edit(
            admission_shell._checked,
            "(ended := token_ended(entry.terms.expires))",
            '(ended := "")',
        ),
        tests=_SHELL,
    ),
    Mutant(
        "a-certificate-of-another-name-counts",
        "A node is trusted under the id of another one.",
        Edit(certificates.certificate_fault, "name_of(certificate) != peer or ", ""),
        tests=_CERTIFICATES,
    ),
)
