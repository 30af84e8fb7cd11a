"""The secret of a node on several hosts, as a file."""

import stat
from pathlib import Path

import pytest

from peers.security.node_secret import make_secret, secret_tls
from protocols.types import ConfigError


def test_a_secret_is_private_and_made_once(tmp_path: Path) -> None:
    path = tmp_path / "secret.pem"
    make_secret(path)
    content = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    make_secret(path)
    assert path.read_bytes() == content
    secret_tls(path)


@pytest.mark.parametrize("content", [None, b"", b"text"])
def test_a_file_that_is_no_secret_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "secret.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"secret\.pem cannot be used: .*hosts-secret\.pem"):
        secret_tls(path)
