"""A run is opened once, and then gives tokens."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowcomm.cli.main import app
from lowcomm.config.schema import load_config
from peers.security.keys import ROOT_KEY, Key
from peers.security.proofs import is_genuine
from protocols.state.tokens import decode_token
from protocols.types.errors import ConfigError


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, standalone_mode=False)
    return result.stdout


def test_init_makes_all_that_the_first_peer_needs(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    out = call("init", str(run), "--advertise", "gpu1.example.org:4711", "--uses", "3")
    (word,) = [line for line in out.splitlines() if line.startswith("lc2-")]
    token, root = decode_token(word), Key.load(run / ROOT_KEY)
    assert root is not None
    assert (token.root, token.issuer, token.prints, token.witness) == (root.public, "", (), False)
    assert is_genuine(token.terms, token.signature, root=root.hex, issuer_key=root.hex)
    assert (token.addresses, token.uses) == (("gpu1.example.org:4711",), 3)
    assert f"lowcomm peer {run / 'run.toml'} --new" in out
    loaded = load_config(run / "run.toml")
    assert loaded.run is not None
    assert loaded.run.name == "my-run"
    assert (loaded.node.listen, loaded.node.advertise) == ("0.0.0.0:4711", "gpu1.example.org:4711")
    assert run.stat().st_mode & 0o777 == 0o700
    assert (run / ROOT_KEY).stat().st_mode & 0o777 == 0o600


def test_a_second_init_changes_nothing(tmp_path: Path) -> None:
    call("init", str(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=r"already: `lowcomm token") as error:
        call("init", str(tmp_path))
    assert "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_init_that_broke_off_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "root-key.pem.new").mkdir()  # The key cannot be written.
    with pytest.raises(ConfigError, match="cannot be made"):
        call("init", str(tmp_path))
    assert not (tmp_path / ROOT_KEY).exists()
    (tmp_path / "root-key.pem.new").rmdir()
    call("init", str(tmp_path))
    assert Key.load(tmp_path / ROOT_KEY) is not None


@pytest.mark.parametrize("command", ["init", "token"])
def test_a_directory_of_an_earlier_format_is_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    with pytest.raises(ConfigError, match="a run that an earlier lowcomm began"):
        call(command, str(tmp_path))


def test_a_file_that_is_there_stays_and_says_where_to_join(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[node]\nlisten = "[::1]:4712"\n', encoding="utf-8")
    out = call("init", str(tmp_path))
    assert "run.toml" not in out.splitlines()[0]
    assert decode_token(call("token", str(tmp_path)).strip()).addresses == ("[::1]:4712",)
    assert file.read_text(encoding="utf-8") == '[node]\nlisten = "[::1]:4712"\n'


def test_each_token_is_another_one(tmp_path: Path) -> None:
    call("init", str(tmp_path))
    words = {call("token", str(tmp_path)) for _ in range(3)}
    assert len({decode_token(word.strip()).number for word in words}) == 3


def test_a_token_for_witnesses_is_asked_for(tmp_path: Path) -> None:
    call("init", str(tmp_path))
    assert decode_token(call("token", str(tmp_path), "--witness").strip()).witness


@pytest.mark.parametrize("command", ["init", "token"])
def test_a_token_replaces_no_device_and_no_pipe(command: str, tmp_path: Path) -> None:
    """As root, `--out /dev/null` would leave a file in place of the device."""
    os.mkfifo(tmp_path / "pipe")
    run = tmp_path / "run"
    if command == "token":
        call("init", str(run))
    for out, why in (("pipe", "is no regular file"), ("none/token", "none is no directory")):
        with pytest.raises(ConfigError, match=why):
            call(command, str(run), "--out", str(tmp_path / out))
    assert (tmp_path / "pipe").is_fifo()
    assert run.exists() == (command == "token"), "nothing is begun of which the token would be lost"


def test_a_link_to_the_token_s_file_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "token").symlink_to(tmp_path / "there" / "token")
    call("init", str(tmp_path / "run"), "--out", str(tmp_path / "token"))
    assert (tmp_path / "token").is_symlink()
    assert (tmp_path / "there" / "token").read_text().startswith("lc2-")
    assert (tmp_path / "there" / "token").stat().st_mode & 0o777 == 0o600


def test_an_operator_s_key_that_cannot_be_read_is_told_with_its_own_remedy(tmp_path: Path) -> None:
    call("init", str(tmp_path / "run"))
    (tmp_path / "mine.pem").write_text("half a key")
    with pytest.raises(ConfigError, match=r"mine\.pem cannot be used: .*another file with --key$"):
        call("token", str(tmp_path / "run"), "--key", str(tmp_path / "mine.pem"))
    (tmp_path / "run" / ROOT_KEY).write_text("half a key")
    with pytest.raises(ConfigError, match=r"root-key\.pem cannot be used: .*--key FILE$"):
        call("token", str(tmp_path / "run"))


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made") as error:
        call("init", str(tmp_path / "file" / "run"))
    assert os.linesep not in str(error.value)
