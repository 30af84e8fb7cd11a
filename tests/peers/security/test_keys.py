"""Keys on disk: made once, private, and never those of an earlier format."""

from pathlib import Path

import pytest

from peers.security.certificates import name_of
from peers.security.keys import OWN, OWN_KEY, Key, KeySignatures, OwnKey, check_format, is_signed
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId

ALPHA, BETA = PeerId("alpha.00000001"), PeerId("beta.00000002")


def test_a_key_comes_back_from_its_file(tmp_path: Path) -> None:
    key = Key.make()
    key.save(tmp_path / "key.pem")
    loaded = Key.load(tmp_path / "key.pem")
    assert loaded is not None
    assert (loaded.public, loaded.secret) == (key.public, key.secret)
    assert Key.of(key.secret).hex == key.hex
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    assert Key.load(tmp_path / "none.pem") is None


def test_a_signature_is_of_one_key_and_one_content() -> None:
    key = Key.make()
    signature = key.sign(b"content")
    assert is_signed(b"content", signature, key.public)
    assert not is_signed(b"contents", signature, key.public)
    assert not is_signed(b"content", signature, Key.make().public)
    assert not is_signed(b"content", b"", b"")


def test_a_core_checks_signatures_of_any_key_and_signs_with_its_own(tmp_path: Path) -> None:
    key = OwnKey(tmp_path).key
    checks = KeySignatures()
    signed = KeySignatures(tmp_path).sign(b"content")
    assert checks.verify(key.hex, b"content", signed)
    assert not checks.verify(key.hex, b"contents", signed)
    assert not checks.verify(Key.make().hex, b"content", signed)
    assert not checks.verify("", b"content", signed)
    assert checks.sign(b"content") == b""


def test_a_node_keeps_its_key_and_has_a_certificate_for_each_of_its_ids(tmp_path: Path) -> None:
    first = OwnKey(tmp_path)
    certificate = first.certificate(ALPHA)
    again = OwnKey(tmp_path)
    assert again.key.public == first.key.public
    assert again.certificate(ALPHA) == certificate
    assert name_of(again.certificate(BETA)) == BETA


def test_a_certificate_of_another_key_is_one_line(tmp_path: Path) -> None:
    OwnKey(tmp_path).certificate(ALPHA)
    (tmp_path / OWN_KEY).unlink()
    with pytest.raises(ConfigError, match=r"node-key\.pem is missing"):
        OwnKey(tmp_path)
    Key.make().save(tmp_path / OWN_KEY)
    with pytest.raises(ConfigError, match=r"is not the key of .*node\.pem"):
        OwnKey(tmp_path).certificate(ALPHA)
    (tmp_path / OWN).write_text("torn")
    with pytest.raises(ConfigError, match="no whole PEM certificate"):
        OwnKey(tmp_path).certificate(ALPHA)


def test_a_directory_of_an_earlier_format_is_one_line(tmp_path: Path) -> None:
    check_format(tmp_path)
    (tmp_path / "ca.pem").touch()
    with pytest.raises(ConfigError, match="an earlier lowcomm") as error:
        check_format(tmp_path)
    assert "\n" not in str(error.value)
