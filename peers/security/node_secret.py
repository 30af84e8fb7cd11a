"""The secret of a node on several hosts: one file with a key and a certificate of it.

A daemon makes it, a person copies it to the node's other hosts. Both sides of a connection then
have this certificate, and trust no other one. Must NOT open a connection.
"""

import ssl
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peers.connections.session import Tls
from peers.security.certificates import BAD, certificate_of, contexts, load_certificate, pem
from peers.storage.fsync import write_private
from protocols.types import ConfigError, PeerId

SECRET_FILE = "hosts-secret.pem"  # noqa: S105 (a name)
"""A file in the node's directory, of which each further host has a copy."""
_NAME = PeerId("hosts-of-a-node")


def make_secret(path: Path) -> None:
    """Write a new secret, unless there is one. Raises ConfigError."""
    if path.exists():
        return
    key = Ed25519PrivateKey.generate()
    certificate = certificate_of(
        _NAME, key.public_key().public_bytes_raw(), signer=key, issuer=_NAME
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(*form, serialization.NoEncryption())
    try:
        write_private(path, pem(certificate) + private)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def secret_tls(path: Path) -> Tls:
    """The TLS contexts of both sides: each shows that it has the secret. Raises ConfigError."""
    try:
        tls = contexts(path, path, [load_certificate(path)])
    except (OSError, *BAD) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no secret"
        raise ConfigError(
            f"{path} cannot be used: {why}; copy {SECRET_FILE} from the node's directory on the "
            "host of its daemon"
        ) from error
    tls.accepting.verify_mode = ssl.CERT_REQUIRED
    return tls
