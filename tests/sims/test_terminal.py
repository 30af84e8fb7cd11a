"""What a person sees beside the result."""

import pytest

from protocols.types.errors import ConfigError, LowcommError
from sims.terminal import bar, run


def test_without_a_terminal_only_what_is_told_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bar("seeds", 2) as (advance, tell):
        advance("")
        tell("[red]as it is")
        advance("1 failed")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "[red]as it is\n")


def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bar("seeds", 2) as (advance, tell):
        advance("1 failed")
        tell("a story")
    shown = capsys.readouterr()
    assert "1/2" in shown.err
    assert "a story" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(("error", "status"), [(ConfigError, 2), (LowcommError, 1)])
def test_an_expected_error_is_one_line(
    error: type[LowcommError],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["command"])

    def command() -> None:
        raise error("--peers 'x': write a number")

    with pytest.raises(SystemExit) as ended:
        run(command)
    assert ended.value.code == status
    assert capsys.readouterr().err == "error: --peers 'x': write a number\n"
