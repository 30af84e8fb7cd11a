"""Private keys and own certificates on disk.

    root-key.pem  the run's root key, where `lowcomm init` or the founder made it; it never leaves
    node-key.pem  this node's key, which is made here and never leaves
    node.pem      this peer's certificate, signed with node-key.pem; the founder's with the root key

All keys are Ed25519, which TLS 1.3 accepts for both sides. Must NOT decide which certificates are
trusted (trust_store.py).
"""

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from peers.security.certificates import (
    BAD,
    ROOT_NAME,
    certificate_of,
    key_of,
    load_certificate,
    name_of,
    pem,
)
from peers.storage.fsync import write_private
from protocols.types import ConfigError, PeerId

ROOT_KEY, OWN, OWN_KEY = "root-key.pem", "node.pem", "node-key.pem"
OUTDATED = "ca.pem"
"""A file of runs in an earlier format, in which one key of all voters signed certificates."""
ANEW = (
    "if other nodes of the run are left, start another node beside this one, which gets the state "
    "from them: `lowcomm token` there, `lowcomm peer --join @FILE --set node.directory=PATH` here; "
    "the log and the checkpoints of this one stay where they are"
)


class Key:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @staticmethod
    def make() -> "Key":
        return Key(Ed25519PrivateKey.generate())

    @staticmethod
    def of(secret: bytes) -> "Key":
        """The key with this private half."""
        return Key(Ed25519PrivateKey.from_private_bytes(secret))

    @property
    def secret(self) -> bytes:
        """The private half."""
        return self._key.private_bytes_raw()

    @property
    def hex(self) -> str:
        """The public half, 64 hex digits."""
        return self.public.hex()

    def sign(self, content: bytes) -> bytes:
        return self._key.sign(content)

    def certificate(self, peer: PeerId, public: bytes) -> bytes:
        """The certificate (DER) of the founder with this public key, signed by this root key.
        Raises ValueError."""
        return certificate_of(peer, public, signer=self._key, issuer=ROOT_NAME)

    def own_certificate(self, peer: PeerId) -> bytes:
        """A certificate (DER) of `peer` with this key. Raises ValueError."""
        return certificate_of(peer, self.public, signer=self._key, issuer=peer)

    def save(self, path: Path) -> None:
        """Raises OSError."""
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write_private(path, self._key.private_bytes(*form, serialization.NoEncryption()))

    @staticmethod
    def load(path: Path, *, remedy: str = f"put it back, or {ANEW}") -> "Key | None":
        """The key in a file; None if there is no file. Raises ConfigError, which ends with the
        remedy: without other words that for a node's own key."""
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except FileNotFoundError:
            return None
        except (OSError, *BAD) as error:
            raise unreadable(path, error, "private key", remedy=remedy) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{path} is no Ed25519 key")
        return Key(key)


class OwnKey:
    """The key of this node, made when it is first needed; it is kept when the peer id changes."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError."""
        path = directory / OWN_KEY
        self._directory = directory
        key = Key.load(path)
        if key is None and (directory / OWN).exists():
            raise ConfigError(
                f"{path} is missing, and without it this node's certificate ({OWN}) is of no use: "
                f"put it back, or {ANEW}"
            )
        try:
            if key is None:
                key = Key.make()
                key.save(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from error
        self.key = key

    def certificate(self, peer: PeerId) -> bytes:
        """This node's certificate (DER) as `peer`, made and stored if there is none. Raises
        ConfigError."""
        path = self._directory / OWN
        try:
            known = load_certificate(path)
        except FileNotFoundError:
            known = b""
        except (OSError, *BAD) as error:
            raise unreadable(path, error, "certificate") from error
        if known and name_of(known) == peer and key_of(known) == self.key.public:
            return known
        if known and key_of(known) != self.key.public:
            raise ConfigError(
                f"{self._directory / OWN_KEY} is not the key of {path}: put the right one back, or "
                f"{ANEW}"
            )
        try:
            made = self.key.own_certificate(peer)
            self.store_certificate(made)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be made: {error}") from error
        return made

    def store_certificate(self, certificate: bytes) -> None:
        """Store this node's certificate (DER). Raises OSError."""
        write_private(self._directory / OWN, pem(certificate))


class KeySignatures:
    """Signatures of a node's key, and checks of any key's, for its core."""

    def __init__(self, directory: Path | None = None) -> None:
        """`directory`: the node's, of which the key is read when it is needed; None: signatures
        are only checked."""
        self._directory = directory
        self._key: Key | None = None

    def sign(self, statement: bytes) -> bytes:
        """Raises ConfigError if the node's key cannot be read."""
        if self._directory is None:
            return b""
        if self._key is None:
            self._key = OwnKey(self._directory).key
        return self._key.sign(statement)

    def verify(self, key_hex: str, statement: bytes, signature: bytes) -> bool:
        return is_signed(statement, signature, bytes.fromhex(key_hex))


def check_format(directory: Path) -> None:
    """Raise ConfigError if the directory is of a run in an earlier format."""
    if (directory / OUTDATED).exists():
        raise ConfigError(
            f"{directory} is of a run that an earlier lowcomm began ({OUTDATED}), with other keys "
            "and another log: go on with that version, or begin a new run in another directory"
        )


def is_signed(content: bytes, signature: bytes, key: bytes) -> bool:
    """Is this the signature of the content by the key with this public half?"""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def unreadable(
    path: Path, error: Exception, what: str, *, remedy: str = f"put it back, or {ANEW}"
) -> ConfigError:
    """The error of an unreadable file, in place of OpenSSL's text."""
    why = error.strerror if isinstance(error, OSError) else f"it is no whole PEM {what}"
    return ConfigError(f"{path} cannot be used: {why}; {remedy}")
