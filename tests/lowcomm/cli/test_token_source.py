"""A join token comes from a file, the standard input, the environment, or, with a warning, from the
arguments."""

import io
import os
from pathlib import Path

import pytest

from lowcomm.cli.token_source import take_token, warn_if_exposed
from peers.processes.adopted import TOKEN_VARIABLE
from protocols.types.errors import ConfigError


def test_the_argument_is_the_token_but_every_user_can_read_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert take_token("lc2-x") == "lc2-x"
    warn_if_exposed("lc2-x")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lowcomm: warning: ")
    assert all(way in line for way in ("--join @FILE", "--join @-", TOKEN_VARIABLE))


def test_a_private_file_is_read_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("lc2-x\n")
    file.chmod(0o600)
    assert take_token(f"@{file}") == "lc2-x"
    warn_if_exposed(f"@{file}")
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    assert take_token(f"@{file}") == "lc2-x"
    assert f"chmod 600 {file}" in capsys.readouterr().err


def test_a_file_below_the_home_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_text("lc2-x\n")
    assert take_token("@~/token") == "lc2-x", "no shell replaces ~ after @"


def test_the_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("lc2-x\n"))
    assert take_token("@-") == "lc2-x"
    with pytest.raises(ConfigError, match="--join @- is empty"):
        take_token("@-")


def test_the_variable_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert take_token("") == ""
    monkeypatch.setenv(TOKEN_VARIABLE, "lc2-x\n")
    assert take_token("") == "lc2-x"
    assert TOKEN_VARIABLE not in os.environ, "children would inherit it"


def test_the_option_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "lc2-other")
    assert take_token("lc2-x") == "lc2-x"
    assert TOKEN_VARIABLE not in os.environ


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is not text"):
        take_token(f"@{file}")
