"""Keys and certificates on disk: the run's authority, a node's own, and TLS made of them.

    ca.pem        the authority's certificate                     every node
    ca-key.pem    its private key, which admits other nodes       the founder, then each voter
    node.pem      this peer's certificate; its common name is the peer id, and nothing else is
    node-key.pem  its private key

All keys are Ed25519, which TLS 1.3 accepts for both sides. Importing takes 0.1 s, so a daemon
listens before. Must NOT decide which node gets a certificate (the log).
"""

import re
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peers.connections.clock_skew import clock_fault
from peers.connections.session import Tls
from peers.storage.fsync import write_private
from protocols.types import ConfigError, PeerId

CA, CA_KEY, OWN, OWN_KEY = "ca.pem", "ca-key.pem", "node.pem", "node-key.pem"
LIFE = timedelta(days=3650)
"""Validity of certificates. A peer is excluded by the log, never by an expired certificate."""
SKEW = timedelta(days=1)
"""A clock may be so much behind that of the signer."""
TOKEN_KEY_INFO = b"lowcomm join token 1"
RENEWAL = b"lowcomm renewal 1\0"
_ANEW = (
    "if other nodes of the run are left, start another node beside this one, which gets the state "
    "from them: `lowcomm token` there, `lowcomm peer --join @FILE --set node.directory=PATH` here; "
    "the log and the checkpoints of this one stay where they are"
)
_NAME = re.compile(r"[!-~]{1,64}")
"""The form of a common name, and so of a peer id."""
BAD = (ValueError, TypeError, InvalidSignature, x509.InvalidVersion)
"""Errors for bytes that are no certificate, or one with a wrong signature."""


class Authority:
    """The certificate authority of a run: holders of its key admit nodes."""

    def __init__(self, key: Ed25519PrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.certificate = certificate
        self.public = raw(key.public_key())
        self.token_key = HKDF(hashes.SHA256(), 32, salt=None, info=TOKEN_KEY_INFO).derive(
            key.private_bytes_raw()
        )

    @staticmethod
    def make(directory: Path | None = None) -> "Authority":
        """Make the authority of a new run. A key without a certificate in the directory is reused:
        writing was interrupted, or the certificate was lost, but the key still is the run's. Raises
        ConfigError."""
        key = _load_key(directory / CA_KEY) if directory is not None else None
        key = key or Ed25519PrivateKey.generate()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lowcomm run")])
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, None)
        )
        return Authority(key, certificate)

    @staticmethod
    def load(directory: Path) -> "Authority | None":
        """The authority in a directory; None if there is no key. Raises ConfigError."""
        key = _load_key(directory / CA_KEY)
        if key is None:
            return None
        try:
            certificate = load_certificate(directory / CA)
        except FileNotFoundError:
            return None
        except (OSError, *BAD) as error:
            raise _unreadable(directory / CA, error, "certificate") from error
        if not _is_of(key, certificate):
            raise ConfigError(f"{directory / CA_KEY} is not the key of {directory / CA}")
        return Authority(key, certificate)

    @staticmethod
    def received(key: bytes, directory: Path) -> "Authority | None":
        """The authority with a received key, if it is the key of the directory's ca.pem; else
        None."""
        try:
            made = serialization.load_der_private_key(key, None)
        except BAD:
            return None
        certificate = load_certificate(directory / CA)
        if not isinstance(made, Ed25519PrivateKey):
            return None
        return Authority(made, certificate) if _is_of(made, certificate) else None

    def save(self, directory: Path) -> None:
        """Write key and certificate. The certificate is the last one: it tells that the run is
        opened."""
        write_private(directory / CA_KEY, _private_pem(self._key))
        write_private(directory / CA, pem(self.certificate))

    def key_bytes(self) -> bytes:
        """The private key, for a voter."""
        return self._key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def certificate_bytes(self) -> bytes:
        """The authority's certificate (DER)."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def sign(self, peer: PeerId, public: bytes) -> bytes:
        """A certificate (DER) of `peer` for this public key. Raises ValueError."""
        if not _NAME.fullmatch(peer):
            raise ValueError(f"a peer id has 1 to 64 printable characters, not {peer!r:.80}")
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer)])
        key = Ed25519PublicKey.from_public_bytes(public)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(name, self.certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .sign(self._key, None)
        )
        return certificate.public_bytes(serialization.Encoding.DER)


@dataclass(frozen=True, slots=True)
class Earlier:
    """The certificate of an earlier peer of a node that asks for one under another id."""

    number: bytes
    """The certificate's number, used as a token's number: it admits one other peer."""
    expires: int
    peer: PeerId


class OwnKey:
    """The key of this node, made when it is first needed; it is kept when the peer id changes."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError."""
        path = directory / OWN_KEY
        self._directory = directory
        key = _load_key(path)
        if key is None and (directory / OWN).exists():
            raise ConfigError(
                f"{path} is missing, and without it this node's certificate ({OWN}) is of no use: "
                f"put it back, or {_ANEW}"
            )
        try:
            if key is None:
                key = Ed25519PrivateKey.generate()
                write_private(path, _private_pem(key))
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from error
        self._key = key
        self.public = raw(key.public_key())

    def certified(self) -> str:
        """The peer id in node.pem; "" without one. Raises ConfigError."""
        path = self._directory / OWN
        try:
            return name_of(load_certificate(path))
        except FileNotFoundError:
            return ""
        except (OSError, *BAD) as error:
            raise _unreadable(path, error, "certificate") from error

    def keep(self, certificate: bytes, authority: bytes) -> None:
        """Store both certificates (DER), which `is_mine` has checked. The node's is the last one,
        so if it is there both are."""
        write_private(self._directory / CA, pem(x509.load_der_x509_certificate(authority)))
        write_private(self._directory / OWN, pem(x509.load_der_x509_certificate(certificate)))

    def is_mine(self, certificate: bytes, peer: PeerId, authority: bytes) -> bool:
        """Is this our certificate as `peer`, signed with the key of this public half?"""
        try:
            made = x509.load_der_x509_certificate(certificate)
        except BAD:
            return False
        mine = name_of(made) == peer and made.public_key() == self._key.public_key()
        return mine and is_signed_by(certificate, authority)

    def renewal(self, peer: PeerId) -> tuple[bytes, bytes]:
        """(certificate of this node's earlier peer, signature for the request to become `peer`).

        Raises FileNotFoundError if there was none.
        """
        earlier = load_certificate(self._directory / OWN)
        proof = self._key.sign(_asked(peer, self.public))
        return earlier.public_bytes(serialization.Encoding.DER), proof


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Is the certificate (DER) signed with the key of this public half? Its time is not checked."""
    try:
        made = x509.load_der_x509_certificate(certificate)
        key = Ed25519PublicKey.from_public_bytes(authority)
        key.verify(made.signature, made.tbs_certificate_bytes)
    except BAD:
        return False
    return True


def untimely(certificate: bytes) -> str:
    """Why a certificate (DER) is not valid now, for a person; "" if it is."""
    made = x509.load_der_x509_certificate(certificate)
    start, end = made.not_valid_before_utc, made.not_valid_after_utc
    return clock_fault((start + SKEW).timestamp(), end.timestamp(), skew_s=SKEW.total_seconds())


def root_of(directory: Path) -> bytes:
    """The authority's certificate (DER) in a node's directory; b"" if none. Raises ConfigError."""
    path = directory / CA
    try:
        return load_certificate(path).public_bytes(serialization.Encoding.DER)
    except FileNotFoundError:
        return b""
    except (OSError, *BAD) as error:
        raise _unreadable(path, error, "certificate") from error


def public_of(authority: bytes) -> bytes:
    """The public key in an authority's certificate (DER); b"" if it is none of this kind."""
    try:
        key = x509.load_der_x509_certificate(authority).public_key()
    except BAD:
        return b""
    return raw(key) if isinstance(key, Ed25519PublicKey) else b""


def earlier_peer(
    certificate: bytes, proof: bytes, peer: PeerId, public: bytes, *, authority: bytes
) -> Earlier | None:
    """The earlier certificate of a renewal; None if the renewal is invalid at any time."""
    if not is_signed_by(certificate, authority):
        return None
    try:
        made = x509.load_der_x509_certificate(certificate)
        key = made.public_key()
        if not isinstance(key, Ed25519PublicKey):
            return None
        key.verify(proof, _asked(peer, public))
    except BAD:
        return None
    number = made.fingerprint(hashes.SHA256())[:16]
    return Earlier(number, int(made.not_valid_after_utc.timestamp()), PeerId(name_of(made)))


def contexts(directory: Path) -> Tls:
    """The TLS contexts of a node with a certificate. Raises ConfigError."""
    _check(directory)
    made: list[ssl.SSLContext] = []
    try:
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = _context(protocol)
            context.load_cert_chain(directory / OWN, directory / OWN_KEY)
            context.load_verify_locations(directory / CA)
            made.append(context)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates in {directory} cannot be used: {error}") from error
    accepting, dialling = made
    # A node without a certificate may only ask for one (connections/mesh.py).
    accepting.verify_mode = ssl.CERT_OPTIONAL
    accepting.num_tickets = 0
    dialling.verify_mode = ssl.CERT_REQUIRED
    return Tls(accepting=accepting, dialling=dialling)


def _check(directory: Path) -> None:
    """Check that the files for TLS are there, readable, of one node and valid now, since errors of
    ssl name no file. Raises ConfigError."""
    for name in (CA, OWN):
        path = directory / name
        try:
            certificate = load_certificate(path)
        except (OSError, *BAD) as error:
            raise _unreadable(path, error, "certificate") from error
        if why := untimely(certificate.public_bytes(serialization.Encoding.DER)):
            raise ConfigError(f"{path} does not count: {why}")
    key = _load_key(directory / OWN_KEY)
    if key is not None and not _is_of(key, load_certificate(directory / OWN)):
        raise ConfigError(
            f"{directory / OWN_KEY} is not the key of {directory / OWN}: put the right one back, "
            f"or {_ANEW}"
        )


def unverified() -> ssl.SSLContext:
    """The context of a node without a certificate. The other side's is checked with `is_signed_by`
    before anything is sent. (A token names a key, not a certificate that ssl could verify.)"""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    return context


def name_of(certificate: x509.Certificate) -> str:
    """The peer id in a certificate; "" if it has none."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _load_key(path: Path) -> Ed25519PrivateKey | None:
    """The private key in a file; None if there is no file. Raises ConfigError."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        return None
    except (OSError, *BAD) as error:
        raise _unreadable(path, error, "private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is no Ed25519 key")
    return key


def _unreadable(path: Path, error: Exception, what: str) -> ConfigError:
    """The error of an unreadable file, in place of OpenSSL's text."""
    why = error.strerror if isinstance(error, OSError) else f"it is no whole PEM {what}"
    return ConfigError(f"{path} cannot be used: {why}; put it back, or {_ANEW}")


def load_certificate(path: Path) -> x509.Certificate:
    """Read a certificate. Raises OSError, or one of BAD."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes_raw()


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = (
        False  # A peer is named by its id, not its host: connections/mesh.py compares.
    )
    return context


def _builder(
    subject: x509.Name, issuer: x509.Name, public: Ed25519PublicKey
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(int(time.time()), UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFE)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _is_of(key: Ed25519PrivateKey, certificate: x509.Certificate) -> bool:
    return key.public_key() == certificate.public_key()


def _asked(peer: PeerId, public: bytes) -> bytes:
    return RENEWAL + peer.encode() + b"\0" + public
