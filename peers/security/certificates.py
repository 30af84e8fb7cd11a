"""Keys and certificates on disk: the run's authority, a node's own, and TLS made of them.

    ca.pem        the authority's certificate                     every node
    ca-key.pem    its private key: who has it can let others in   the founder, then each voter
    node.pem      this peer's certificate; its common name is the peer id, and nothing else is
    node-key.pem  its private key

All Ed25519, which TLS 1.3 takes for both sides. Must NOT decide who gets a certificate: the log
does. Imports slowly (0.1 s): a daemon listens before.
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
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId

CA, CA_KEY, OWN, OWN_KEY = "ca.pem", "ca-key.pem", "node.pem", "node-key.pem"
LIFE = timedelta(days=3650)
"""Who may no longer take part is out of the log: no run waits for a certificate to expire."""
SKEW = timedelta(days=1)
"""A clock may be behind the signer's by so much."""
TOKEN_KEY_INFO = b"lowcomm join token 1"
RENEWAL = b"lowcomm renewal 1\0"
_ANEW = (
    "if other nodes of the run are left, start another node beside this one, which gets the state "
    "from them: `lowcomm token` there, `lowcomm peer --join TOKEN --set node.directory=PATH` here; "
    "the log and the checkpoints of this one stay where they are"
)
_NAME = re.compile(r"[!-~]{1,64}")
"""What a common name can be, and a peer id therefore."""
BAD = (ValueError, TypeError, InvalidSignature, x509.InvalidVersion)
"""What comes of bytes that are no certificate, or not of whom they should be."""


class Authority:
    """Who holds its key says who belongs to the run."""

    def __init__(self, key: Ed25519PrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.certificate = certificate
        self.public = raw(key.public_key())
        self.token_key = HKDF(hashes.SHA256(), 32, salt=None, info=TOKEN_KEY_INFO).derive(
            key.private_bytes_raw()
        )

    @staticmethod
    def make(directory: Path | None = None) -> "Authority":
        """For a new run. A key that is in the directory already, without a certificate, is used: it
        was not written to the end, and if somebody lost the certificate, the key still is the
        run's. Raises ConfigError."""
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
        """What a directory holds; None: it has no authority's key. Raises ConfigError."""
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
        """Made of what `key_bytes` gave, if it is the key of the directory's ca.pem."""
        try:
            made = serialization.load_der_private_key(key, None)
        except BAD:
            return None
        certificate = load_certificate(directory / CA)
        if not isinstance(made, Ed25519PrivateKey):
            return None
        return Authority(made, certificate) if _is_of(made, certificate) else None

    def save(self, directory: Path) -> None:
        """The key, too. The certificate comes last: it says that the run was opened."""
        write_private(directory / CA_KEY, _private_pem(self._key))
        write_private(directory / CA, pem(self.certificate))

    def key_bytes(self) -> bytes:
        """For a voter."""
        return self._key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def certificate_bytes(self) -> bytes:
        """DER."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def sign(self, peer: PeerId, public: bytes) -> bytes:
        """A certificate (DER) for who holds the private half. Raises ValueError."""
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
    """The certificate of an earlier peer of a node, which asks for one under another id."""

    number: bytes
    """Names the certificate as a token's number names the token: it is good for one other."""
    expires: int
    peer: PeerId


class OwnKey:
    """This node's, made when it is needed first; it outlives the peer id."""

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
        """The peer that node.pem is of; "" without one. Raises ConfigError."""
        path = self._directory / OWN
        try:
            return name_of(load_certificate(path))
        except FileNotFoundError:
            return ""
        except (OSError, *BAD) as error:
            raise _unreadable(path, error, "certificate") from error

    def keep(self, certificate: bytes, authority: bytes) -> None:
        """Both DER, and looked at (`is_mine`). The node's comes last: who has it has both."""
        write_private(self._directory / CA, pem(x509.load_der_x509_certificate(authority)))
        write_private(self._directory / OWN, pem(x509.load_der_x509_certificate(certificate)))

    def is_mine(self, certificate: bytes, peer: PeerId, authority: bytes) -> bool:
        """Is this our certificate as `peer`, signed by whoever has this public key?"""
        try:
            made = x509.load_der_x509_certificate(certificate)
        except BAD:
            return False
        mine = name_of(made) == peer and made.public_key() == self._key.public_key()
        return mine and is_signed_by(certificate, authority)

    def renewal(self, peer: PeerId) -> tuple[bytes, bytes]:
        """(the certificate of our earlier peer, the proof that it is ours and wants to be `peer`).

        Raises FileNotFoundError: there was none.
        """
        earlier = load_certificate(self._directory / OWN)
        proof = self._key.sign(_asked(peer, self.public))
        return earlier.public_bytes(serialization.Encoding.DER), proof


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """A certificate (DER), whether of now or not, signed with the key of this public half?"""
    try:
        made = x509.load_der_x509_certificate(certificate)
        key = Ed25519PublicKey.from_public_bytes(authority)
        key.verify(made.signature, made.tbs_certificate_bytes)
    except BAD:
        return False
    return True


def untimely(certificate: bytes) -> str:
    """Why a certificate (DER) does not count now, for a person; "" if it counts."""
    made = x509.load_der_x509_certificate(certificate)
    start, end = made.not_valid_before_utc, made.not_valid_after_utc
    return clock_fault((start + SKEW).timestamp(), end.timestamp(), skew_s=SKEW.total_seconds())


def root_of(directory: Path) -> bytes:
    """The authority's certificate (DER) that a node has; b"": none. Raises ConfigError."""
    path = directory / CA
    try:
        return load_certificate(path).public_bytes(serialization.Encoding.DER)
    except FileNotFoundError:
        return b""
    except (OSError, *BAD) as error:
        raise _unreadable(path, error, "certificate") from error


def public_of(authority: bytes) -> bytes:
    """The public key in an authority's certificate (DER); b"": it is none of ours."""
    try:
        key = x509.load_der_x509_certificate(authority).public_key()
    except BAD:
        return b""
    return raw(key) if isinstance(key, Ed25519PublicKey) else b""


def earlier_peer(
    certificate: bytes, proof: bytes, peer: PeerId, public: bytes, *, authority: bytes
) -> Earlier | None:
    """What a renewal stands on; None: it does not hold, whatever the time is."""
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
    """Of a node that has its certificate. Raises ConfigError."""
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
    # Who has no certificate may ask for one, once, and say nothing else (connections/mesh.py).
    accepting.verify_mode = ssl.CERT_OPTIONAL
    accepting.num_tickets = 0
    dialling.verify_mode = ssl.CERT_REQUIRED
    return Tls(accepting=accepting, dialling=dialling)


def _check(directory: Path) -> None:
    """That the files which TLS is made of are there, whole, of one node and of now: what ssl says
    of them names none. Raises ConfigError."""
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
    """For who has no certificate yet: the other side's is looked at by `is_signed_by`, before
    anything is said. (A token names a key, and not a certificate that ssl could look up.)"""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    return context


def name_of(certificate: x509.Certificate) -> str:
    """The peer that it is of; "": it names none."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _load_key(path: Path) -> Ed25519PrivateKey | None:
    """None: there is none. Raises ConfigError."""
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
    """OpenSSL's own words say nothing to a person."""
    why = error.strerror if isinstance(error, OSError) else f"it is no whole PEM {what}"
    return ConfigError(f"{path} cannot be used: {why}; put it back, or {_ANEW}")


def load_certificate(path: Path) -> x509.Certificate:
    """Raises OSError, or one of BAD."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes_raw()


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = (
        False  # A peer is its id, wherever it listens: connections/mesh.py compares.
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
