"""The certificates that a node trusts: those that its log admits, also after a restart.

    trusted.json    keys of the run's operators, certificates, addresses of voters, this node's
                    admission

A revoked peer stays in it: it is told the reason in answer to its hello, and counts nowhere. Must
NOT hold a private key or the secret of a token, nor decide which node is admitted (the log).
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from peers.connections.session import Tls
from peers.security.certificates import contexts, key_of, name_of, trust_more, untimely
from peers.security.keys import ANEW, OWN, OWN_KEY
from peers.security.proofs import unproved
from peers.storage.fsync import write_private
from protocols.interface import Trust
from protocols.messages import TokenSpent, TokenTerms
from protocols.state import NO_TERMS, fingerprint
from protocols.types import ConfigError, PeerId

TRUSTED = "trusted.json"


@dataclass(slots=True)
class TrustStore:
    """The trusted certificates of one node."""

    directory: Path
    """The node's."""
    root: str = ""
    """Public half of the run's root key, 64 hex digits; "": the node knows no run yet."""
    peer: PeerId = field(default=NO_TERMS.issuer)
    """The peer as which this node was admitted; "" before that."""
    terms: TokenTerms = NO_TERMS
    """The terms of the token by which it was admitted first."""
    signature: bytes = b""
    proof: bytes = b""
    """They admit the key of this node only."""
    certificates: dict[PeerId, bytes] = field(default_factory=dict[PeerId, bytes])
    """By peer (DER)."""
    voters: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """By peer, the voter's address ("": it does not listen), and its key's fingerprint in hex
    digits."""
    voters_issue: bool = True
    """The run takes tokens of voters."""
    operators: tuple[str, ...] = ()
    """Public keys of the operators besides the root key."""
    tls: Tls | None = None
    """The running contexts."""

    @staticmethod
    def load(directory: Path) -> "TrustStore":
        """The store in a node's directory; an empty one if there is none. Raises ConfigError."""
        path = directory / TRUSTED
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            certificates = {PeerId(p): b64decode(x) for p, x in content["certificates"].items()}
            return TrustStore(
                directory,
                content["root"],
                PeerId(content["peer"]),
                TokenTerms(**content["terms"]),
                bytes.fromhex(content["signature"]),
                bytes.fromhex(content["proof"]),
                certificates,
                {peer: (place[0], place[1]) for peer, place in content["voters"].items()},
                bool(content["voters_issue"]),
                tuple(map(str, content["operators"])),
            )
        except FileNotFoundError:
            return TrustStore(directory)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = getattr(error, "strerror", None) or "it is not whole"
            raise ConfigError(f"{path} cannot be used: {why}; put it back, or {ANEW}") from error

    def content(self) -> bytes:
        """The content of the file."""
        kept = {
            "root": self.root,
            "peer": self.peer,
            "terms": asdict(self.terms),
            "signature": self.signature.hex(),
            "proof": self.proof.hex(),
            "voters": self.voters,
            "voters_issue": self.voters_issue,
            "operators": self.operators,
            "certificates": {p: b64encode(x).decode() for p, x in self.certificates.items()},
        }
        return json.dumps(kept, indent=1).encode()

    def write(self, content: bytes) -> None:
        """Raises OSError."""
        write_private(self.directory / TRUSTED, content)

    def trusts(self, certificate: bytes) -> bool:
        return certificate in self.certificates.values()

    def open(self) -> Tls:
        """Make the TLS contexts. Raises ConfigError."""
        own, key = self.directory / OWN, self.directory / OWN_KEY
        mine = self.certificates[self.peer]
        if why := untimely(mine):
            raise ConfigError(f"{own} does not count: {why}")
        try:
            self.tls = contexts(own, key, self.certificates.values())
        except OSError as error:
            raise ConfigError(
                f"the certificates in {self.directory} cannot be used: {error}"
            ) from error
        return self.tls

    def add(self, certificates: Iterable[bytes]) -> None:
        """Trust these certificates (DER), under the names in them, until the log names others."""
        for certificate in certificates:
            name = PeerId(name_of(certificate))
            if name and name not in self.certificates:
                self._set(name, certificate)

    def _set(self, peer: PeerId, certificate: bytes) -> None:
        self.certificates[peer] = certificate
        if self.tls is not None:
            trust_more(self.tls, [certificate])

    def follow(self, trust: Trust) -> dict[PeerId, str]:
        """The log admits these peers: trust each one if signatures prove its admission. Returns
        the others, each with the reason why it is not trusted."""
        entries = trust.admitted
        if self.root and trust.root != self.root:
            return {entry.peer: "the log names another root key" for entry in entries}
        self.root, self.operators = trust.root, trust.operators
        self.voters_issue = trust.voters_issue
        faults = unproved(
            entries, self.certificates, root=trust.root, operators=trust.ever_operators
        )
        for entry in entries:
            known = self.certificates.get(entry.peer) == entry.certificate
            if entry.peer not in faults and not known:
                self._set(entry.peer, entry.certificate)
        prints = {entry.peer: fingerprint(bytes.fromhex(entry.key)).hex() for entry in entries}
        self.voters = {
            info.peer: (info.address, prints[info.peer])
            for info in trust.voters
            if info.peer in prints
        }
        return faults

    def admitted_as(self, peer: PeerId, *, root: str, by: TokenSpent) -> None:
        """This node is admitted as `peer`, with the certificate and the signatures of `by`."""
        self.root, self.peer = root, peer
        self.terms, self.signature, self.proof = by.terms, by.signature, by.proof
        self._set(peer, by.certificate)

    def forget(self) -> None:
        """Trust no certificate any more: the node joins another branch of its run."""
        self.certificates = {}

    @property
    def own_fingerprint(self) -> bytes:
        """The fingerprint of this node's key, once it is admitted; b"" before."""
        mine = self.certificates.get(self.peer, b"")
        return fingerprint(key_of(mine)) if mine else b""
