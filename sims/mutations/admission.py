"""Planted bugs in admission: issuers, roles, uses, renewals, and the time of an answer.

Each breaks the unit tests that it names. Must NOT run anything (mutants.py).
"""

from protocols.peer.certificates import Certificates
from protocols.state import entry_validation, tokens
from protocols.state.tokens import SpentTokens
from sims.mutations.patch import Edit, Mutant
from sims.mutations.units import of

ADMISSION_MUTANTS = (
    Mutant(
        "a-former-voters-tokens-count",
        "A stolen disk of a node without a vote admits nodes.",
        Edit(
            entry_validation._token, "counts = issuer in run_state.voters or ", "counts = True or "
        ),
        tests=of("state/tokens"),
    ),
    Mutant(
        "logged-tokens-outlive-the-revocation-of-their-issuer",
        "A revoked node admits nodes with tokens that it made before.",
        Edit(entry_validation._token, "if issuer in spent.revoked or issuer", "if issuer"),
        tests=of("state/tokens"),
    ),
    Mutant(
        "a-logged-tokens-terms-may-change",
        "A former voter gives the token more uses.",
        Edit(entry_validation._token, "and logged.terms == terms)", ")"),
        tests=of("state/tokens"),
    ),
    Mutant(
        "a-token-of-another-peer-is-logged",
        "A member has the log take a token of a voter, which did not make one.",
        Edit(Certificates.heard, " and message.entry.by == peer", ""),
        tests=of("peer/certificates"),
    ),
    Mutant(
        "an-issuer-needs-no-known-key",
        "A token of a peer with a key that the log does not know is checked with the root key.",
        Edit(entry_validation._token, " or issuer not in spent.peers", ""),
        tests=of("state/tokens"),
    ),
    Mutant(
        "voters-issue-in-every-run",
        "The operator wants to issue all tokens itself, and voters issue some.",
        Edit(entry_validation._token, "if run is not None and not run.voters_issue:", "if False:"),
        tests=of("state/tokens"),
    ),
    Mutant(
        "a-removed-operators-tokens-count",
        "A stolen key of an operator admits nodes after its removal.",
        Edit(
            entry_validation._token,
            "if operator in run_state.orders.operators:",
            "if operator in run_state.orders.ever_operators:",
        ),
        tests=of("state/tokens"),
    ),
    Mutant(
        "a-snapshot-admits-by-any-operator",
        "A lying sender of a snapshot admits nodes by a token of a removed operator.",
        Edit(
            entry_validation._acts_of,
            "if operator and operator not in authority.operators:",
            "if False:",
        ),
        tests=of("state/tokens"),
    ),
    Mutant(
        "a-witness-trains",
        "A node that was to vote only gets the model's state.",
        Edit(entry_validation.wrong_role, "if known.terms.witness == witness:", "if True:"),
        tests=of("state/tokens"),
    ),
    Mutant(
        "who-has-no-token-takes-part",
        "A leader makes a node a member that no token admitted.",
        Edit(entry_validation.wrong_role, 'f"lets in {peer}, which no token admitted"', '""'),
        tests=of("state/tokens"),
    ),
    Mutant(
        "any-key-renews",
        "A node becomes another peer in the name of a node that is in.",
        Edit(entry_validation._renewal, "known.key != entry.key or ", ""),
        tests=of("state/tokens"),
    ),
    Mutant(
        "a-node-becomes-many-peers",
        "One use of a token gets nine votes.",
        Edit(tokens.renewed, "known.key, 1, of.expires", "known.key, 9, of.expires"),
        tests=of("state/tokens"),
    ),
    Mutant(
        "the-role-is-not-signed",
        "A token for witnesses is edited to admit members.",
        Edit(tokens.statement, "terms.expires, terms.witness, ", "terms.expires, "),
        tests=of("state/tokens"),
    ),
    Mutant(
        "a-member-is-forgotten",
        "A peer that restarts does not trust a member any more.",
        Edit(SpentTokens.apply, " if peer not in needed", ""),
        tests=of("state/tokens"),
    ),
    Mutant(
        "an-answer-before-the-log",
        "A node is told that it is admitted, and its use of the token may get lost.",
        Edit(Certificates._decided, "if self._is_admitted(entry):", "if True:"),
        tests=of("peer/certificates"),
    ),
    Mutant(
        "the-shell-hears-of-admissions-once",
        "Nodes that join later are trusted by no peer.",
        Edit(Certificates._trust, "if mark == self._trusted:", "if self._trusted is not None:"),
        tests=of("peer/certificates"),
    ),
    Mutant(
        "a-node-chooses-its-role",
        "A token for witnesses admits a node that asks to train.",
        Edit(Certificates._check, "if terms.witness != admit.witness:", "if False:"),
        tests=of("peer/certificates"),
    ),
)
"""Mutants with the tests that each breaks."""
