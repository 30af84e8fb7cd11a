"""Certificates: their content, their time, and TLS made of them.

A certificate binds a peer id (its common name) to the key of a node. The node signs it itself: it
counts because the log admits it, and no certificate can sign another one. Importing takes 0.1 s, so
a daemon listens before. Must NOT decide which certificates are trusted (trust_store.py).
"""

import re
import ssl
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peers.connections.clock_skew import clock_fault
from peers.connections.session import Tls
from protocols.types import CERTIFICATE_BYTES_MAX, PeerId

ROOT_NAME = "lowcomm run"
"""The issuer that is named in a certificate which the root key signed."""
LIFE = timedelta(days=3650)
"""Validity of certificates. A peer is excluded by the log, never by an expired certificate."""
SKEW = timedelta(days=1)
"""A clock may be so much behind that of the signer."""
_NAME = re.compile(r"[!-~]{1,64}")
"""The form of a common name, and so of a peer id."""
BAD = (ValueError, TypeError, InvalidSignature, x509.InvalidVersion)
"""Errors for bytes that are no certificate, or one with a wrong signature."""


def certificate_of(peer: PeerId, public: bytes, *, signer: Ed25519PrivateKey, issuer: str) -> bytes:
    """A certificate (DER) of `peer` for this public key. Raises ValueError."""
    if not _NAME.fullmatch(peer):
        raise ValueError(f"a peer id has 1 to 64 printable characters, not {peer!r:.80}")
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    now = datetime.fromtimestamp(int(time.time()), UTC)
    certificate = (
        x509.CertificateBuilder(
            subject_name=_name(peer),
            issuer_name=_name(issuer),
            public_key=Ed25519PublicKey.from_public_bytes(public),
        )
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFE)
        # It signs no other certificate, also where it is trusted by itself.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .sign(signer, None)
    )
    return certificate.public_bytes(serialization.Encoding.DER)


def certificate_fault(certificate: bytes, peer: PeerId, public: bytes, *, root: bytes) -> str:
    """Why this is no certificate (DER) of the peer with this public key; "" if it is one at some
    time. It is signed with that key, or with the root key."""
    signed = is_signed_by(certificate, public) or is_signed_by(certificate, root)
    if len(certificate) > CERTIFICATE_BYTES_MAX or not signed:
        return "its certificate is not signed with its key"
    if name_of(certificate) != peer or not _NAME.fullmatch(peer) or key_of(certificate) != public:
        return "its certificate is of another peer or key"
    return ""


def is_signed_by(certificate: bytes, public: bytes) -> bool:
    """Is the certificate (DER) signed with the key of this public half? Its time is not checked."""
    try:
        made = x509.load_der_x509_certificate(certificate)
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(made.signature, made.tbs_certificate_bytes)
    except BAD:
        return False
    return True


def untimely(certificate: bytes) -> str:
    """Why a certificate (DER) is not valid now, for a person; "" if it is."""
    made = x509.load_der_x509_certificate(certificate)
    start, end = made.not_valid_before_utc, made.not_valid_after_utc
    return clock_fault((start + SKEW).timestamp(), end.timestamp(), skew_s=SKEW.total_seconds())


def key_of(certificate: bytes) -> bytes:
    """The public key in a certificate (DER); b"" if it is none of this kind."""
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except BAD:
        return b""
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else b""


def name_of(certificate: bytes) -> str:
    """The peer id in a certificate (DER); "" if it has none."""
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
    except BAD:
        return ""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def contexts(own: Path, key: Path, trusted: Iterable[bytes]) -> Tls:
    """The TLS contexts of a node with the certificate and key in these files, which trusts these
    certificates (DER). Raises OSError, ssl.SSLError among them."""
    made: list[ssl.SSLContext] = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = _context(protocol)
        # Each certificate is trusted by itself: none was signed by another one that is trusted.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_cert_chain(own, key)
        made.append(context)
    accepting, dialling = made
    # A node that the log does not admit may only ask for that (connections/mesh.py).
    accepting.verify_mode = ssl.CERT_OPTIONAL
    accepting.num_tickets = 0
    dialling.verify_mode = ssl.CERT_REQUIRED
    tls = Tls(accepting=accepting, dialling=dialling)
    trust_more(tls, trusted)
    return tls


def trust_more(tls: Tls, certificates: Iterable[bytes]) -> None:
    """Let running contexts trust these certificates (DER) too, from their next handshake on."""
    content = b"".join(certificates)
    for context in (tls.accepting, tls.dialling) if content else ():
        context.load_verify_locations(cadata=content)


def unverified() -> ssl.SSLContext:
    """The context of a node that is not admitted. The other side's certificate is checked before
    anything is sent. (A token names a key, not a certificate that ssl could verify.)"""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    return context


def load_certificate(path: Path) -> bytes:
    """Read a certificate; returns it in DER. Raises OSError, or one of BAD."""
    made = x509.load_pem_x509_certificate(path.read_bytes())
    return made.public_bytes(serialization.Encoding.DER)


def pem(certificate: bytes) -> bytes:
    """A certificate (DER) as PEM."""
    made = x509.load_der_x509_certificate(certificate)
    return made.public_bytes(serialization.Encoding.PEM)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = (
        False  # A peer is named by its id, not its host: connections/mesh.py compares.
    )
    return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=False,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
