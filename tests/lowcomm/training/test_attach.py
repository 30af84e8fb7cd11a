"""Finding the daemon by the environment, and what `import lowcomm` costs."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import lowcomm
from lowcomm.training.attach import attach
from protocols.types.errors import ConfigError, LowcommError

ROOT = Path(__file__).parents[3]
VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOWCOMM_SOCKET",
    "LOWCOMM_ATTEMPT",
    "TORCHELASTIC_RESTART_COUNT",
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_without_a_daemon_it_says_how_to_start() -> None:
    with pytest.raises(ConfigError, match=r"start it as `lowcomm peer run\.toml --new -- "):
        attach()


def test_several_ranks_cannot_start_their_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"start them by it, as in .* -- torchrun train\.py`"):
        attach(run="run.toml")


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE 2"),
        ({"RANK": "one"}, "RANK must be a number, got 'one'"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE must be a number, got '-1'"),
        ({"LOWCOMM_ATTEMPT": "x"}, "LOWCOMM_ATTEMPT must be a number"),
        ({"TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT must be a number"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(
    variables: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWCOMM_SOCKET", "/nonexistent")
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=complaint):
        attach()


def test_a_daemon_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWCOMM_SOCKET", str(tmp_path / "lifeline"))
    with pytest.raises(LowcommError, match=f"no lowcomm daemon listens at {tmp_path}"):
        attach()


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_importing_lowcomm_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, lowcomm; print(sorted({'torch', 'numpy', 'zmq'} & set(sys.modules)))"
    assert run(code) == "[]"


def test_attach_is_the_function_whatever_was_imported_before() -> None:
    code = (
        "import lowcomm.training.attach, lowcomm.config.schema, lowcomm\n"
        "assert callable(lowcomm.attach) and 'attach' in dir(lowcomm)\n"
        "import sys; print('torch' in sys.modules)"
    )
    assert run(code) == "False"


def test_what_lowcomm_exports() -> None:
    from lowcomm.training.round_methods import DiLoCo

    assert lowcomm.DiLoCo is DiLoCo
    assert lowcomm.attach is attach
    assert lowcomm.__version__ == version("lowcomm")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = lowcomm.nothing  # pyright: ignore
