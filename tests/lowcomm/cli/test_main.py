"""The command line without daemons: help, mistakes, exit codes."""

import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from lowcomm.cli import main
from protocols.state.tokens import Token, encode_token
from protocols.types.errors import ConfigError, LowcommError, RefusedError

RUN = """
[run]
name = "tiny"
"""
COMMANDS = (
    "audit",
    "checkpoint",
    "config",
    "continue",
    "demo",
    "export",
    "generate",
    "init",
    "kick",
    "launch",
    "leave",
    "operator",
    "pause",
    "peer",
    "plan",
    "ranks",
    "recover",
    "resume",
    "revoke",
    "set",
    "sim",
    "status",
    "stop",
    "token",
    "tokenizer",
    "witness",
)
CLEAR = "--set node.insecure=true"
FAR, PLAIN = (encode_token(Token((address,))) for address in ("10.1.2.3:4711", "127.0.0.1:4711"))
SEALED = encode_token(
    Token(
        ("127.0.0.1:4711",),
        root=b"r" * 32,
        key=b"n" * 32,
        secret=b"s" * 32,
        signature=b"g" * 64,
    )
)

MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "an unknown key to explain": (
        "config explain inner_stepz",
        ("no key inner_stepz", "run.method.inner_steps"),
    ),
    "an unknown key": (
        "peer run.toml --new --set run.method.inner_stepz=3",
        ("unknown key run.method.inner_stepz", "inner_steps"),
    ),
    "a host without the node's secret": (
        "ranks gpu1:29400 --secret s.pem",
        ("s.pem cannot be used: No such file or directory; copy hosts-secret.pem",),
    ),
    "an impossible value": (
        "peer run.toml --new --set run.data.batch=0",
        ("run.data.batch must be positive, got 0",),
    ),
    "a value of another type": (
        "peer run.toml --new --set run.data.batch=many",
        ("run.data.batch", "integer", "'many'"),
    ),
    "no such file": ("peer nowhere.toml --new", ("cannot read nowhere.toml", "No such file")),
    "a file that is no TOML": ("peer text/words --new", ("text/words is not TOML",)),
    "neither new nor join": ("peer run.toml", ("--new", "--join @FILE", "LOWCOMM_TOKEN")),
    "both new and join": ("peer run.toml --new --join lc2-x", ("--new", "--join")),
    "new without a run": ("peer --new", ("--new needs a [run]", "configuration file")),
    "listening to the world": (
        "peer run.toml --new --set node.listen=0.0.0.0:0",
        ("node.listen: 0.0.0.0:0", "every address", "node.advertise"),
    ),
    "listening to the world in the clear": (
        f"peer run.toml --new {CLEAR} --set node.listen=0.0.0.0:0",
        ("node.listen: 0.0.0.0:0", "this machine only", "127.0.0.0/8"),
    ),
    "advertised to the world in the clear": (
        f"peer run.toml --new {CLEAR} --set node.advertise=10.1.2.3:7",
        ("node.advertise: 10.1.2.3:7", "this machine only", "127.0.0.0/8"),
    ),
    "joining over a network in the clear": (
        f"peer --join {FAR} {CLEAR}",
        ("--join: 10.1.2.3:4711", "this machine only", "127.0.0.0/8"),
    ),
    "joining in the clear what is not": (
        f"peer --join {SEALED} {CLEAR}",
        ("to an encrypted run", "leave node.insecure out"),
    ),
    "joining what is in the clear": (
        f"peer --join {PLAIN}",
        ("without encryption", "--set node.insecure=true"),
    ),
    "an address and no token": ("peer --join 127.0.0.1:4711", ("an address", "lowcomm token")),
    "a witness of no run": ("witness", ("--join @FILE", "LOWCOMM_TOKEN")),
    "no file with a token": ("peer --join @nowhere", ("--join @nowhere", "No such file")),
    "nothing in the file": ("peer --join @text/empty", ("@text/empty is empty", "lowcomm token")),
    "a token to no place": ("token . --advertise h:1 --out new", ("no key that can sign",)),
    "no token": ("witness --join here", ("'here' is no join token", "lowcomm token")),
    "half a token": (f"peer --join {SEALED[:-9]}", ("not all of one", "lowcomm token")),
    "a token of nothing": ("token nowhere", ("cannot read nowhere/run.toml",)),
    "a list of no run": ("token list nowhere", ("nowhere does not exist",)),
    "a setting without a value": ("set . run.outer_steps", ("run.outer_steps=200",)),
    "a pause where no node runs": ("pause nowhere", ("no node runs in nowhere",)),
    "a checkpoint in no time": ("checkpoint . --within 0", ("--within must be positive, got 0",)),
    "a revocation of nothing": ("revoke .", ("say what to revoke", "--token NUMBER")),
    "a revocation of two things": ("revoke . beta --token 1f", ("say what to revoke",)),
    "nodes of no token": ("revoke . beta --nodes", ("--nodes is about a token",)),
    "a token without a key": ("token . --advertise h:1", ("no key that can sign", "lowcomm init")),
    "a token for nobody": ("token . --uses 0", ("--uses", "got 0")),
    "a token for no time": ("token . --hours 0", ("--hours", "got 0")),
    "a run of which nobody knows where it is": (
        "init .",
        ("run.toml", "node.listen", "--advertise HOST:PORT"),
    ),
    "a fault of no form": (
        "peer run.toml --new --fault kill@now",
        ("--fault 'kill@now'", "kill@round=R,chunk=C"),
    ),
    "an override of no form": (
        "peer run.toml --new --set ranks",
        ("--set ranks", "node.ranks=2"),
    ),
    "a name that is a path": (
        "peer run.toml --new --set node.name=a/b",
        ("node.name 'a/b'", "letters"),
    ),
    "a run's name that is a path": (
        "sim run.toml --set run.name=../x",
        ("run.name", "'../x'", "letters"),
    ),
    "status of nothing": ("status nowhere", ("nowhere does not exist", "runs/NAME")),
    "status of no run": ("status text", ("text holds no node", "runs/NAME")),
    "resume of nothing": ("resume nowhere", ("nowhere does not exist", "runs/NAME")),
    "resume of no run": ("resume text", ("text holds no node", "runs/NAME")),
    "an export of nothing": ("export nowhere out", ("nowhere does not exist", "runs/NAME")),
    "an export of no run": ("export text out", ("text holds no node", "runs/NAME")),
    "text of no length": ("generate text --length 0", ("--length must be positive",)),
    "text of no run": ("generate text", ("text holds no node", "runs/NAME")),
    "too few ranks": ("sim run.toml --peers 3 --ranks 1,2", ("--ranks '1,2'", "3 counts")),
    "a launch of no hosts": ("launch nowhere.toml", ("cannot read nowhere.toml",)),
    "a launch that is attached to and started": (
        "launch --attach --detach",
        ("--attach starts nothing",),
    ),
    "a stop of no hosts": ("stop", ("cannot read hosts.toml",)),
    "a plan of no size": ("plan --step 1s --nodes 2 --line 1mbit", ("--params 1.3b", "--from")),
    "a plan without steps": ("plan --params 1m --nodes 2 --line 1mbit", ("--step 350ms",)),
    "a plan for no nodes": ("plan --params 1m --step 1s --line 1mbit", ("--nodes 4",)),
    "a plan for one node": (
        "plan --params 1m --step 1s --line 1mbit --nodes 1",
        ("a plan for 1 nodes", "2 or more"),
    ),
    "a plan without a line": ("plan --params 1m --step 1s --nodes 2", ("--line 100mbit",)),
    "a plan of steps without time": (
        "plan --params 1m --step 0 --nodes 2 --line 1mbit",
        ("a step of 0 s", "above 0"),
    ),
    "a plan of no run": ("plan --from nowhere", ("nowhere does not exist", "runs/NAME")),
    "a plan in bytes": (
        "plan --params 1m --step 1s --nodes 2 --line 100MB",
        ("--line '100MB'", "mbit"),
    ),
    "a plan of a tiny model": (
        "plan --params 20 --step 1s --nodes 2 --line 1mbit",
        ("20 parameters in 24 layers",),
    ),
    "a plan of an impossible share": ("plan --share 100%", ("--share 100%", "90%")),
    "a plan for no memory": (
        "plan --params 1b --step 1s --nodes 2 --line 1mbit --memory 1gib",
        ("fits into 1.00 GiB", "the least"),
    ),
    "a plan for memory of nothing": (
        "plan --params 1b --step 1s --nodes 2 --line 1mbit --memory 0gib",
        ("--memory 0gib", "above 0"),
    ),
    "a plot of another kind": ("plan --plot plan.png", ("--plot plan.png", ".svg")),
    "a full directory": ("demo --directory text", ("--directory text is not empty", "another")),
    "a directory below a file": ("demo --directory run.toml/x", ("run.toml/x", "--directory")),
}


Call = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """`lowcomm ARGUMENTS` in a directory with a configuration: (exit code, stdout, stderr)."""
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "words").write_text("words = [", encoding="utf-8")
    (tmp_path / "text" / "empty").touch(mode=0o600)
    monkeypatch.chdir(tmp_path)

    def run(arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lowcomm", *arguments.split()])
        with pytest.raises(SystemExit) as end:
            main.main()
        told = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, told.out, told.err

    return run


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(case: str, call: Call, tmp_path: Path) -> None:
    arguments, words = MISTAKES[case]
    code, out, err = call(arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("lowcomm: ")
    for word in words:
        assert word in line
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "root-key.pem").exists()


@pytest.mark.parametrize("command", [*COMMANDS, "config explain", "tokenizer train"])
def test_help_has_examples_that_keep_their_lines(command: str, call: Call) -> None:
    code, out, err = call(f"{command} --help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    at = lines.index("  Examples:")
    assert lines[at + 1].startswith(f"    lowcomm {command}")
    assert "\b" not in out
    assert max(map(len, lines)) <= 80


def test_help_says_what_stands_in_brackets(call: Call) -> None:
    assert "TOML with [run], and [node] for all nodes." in call("sim --help")[1]
    assert "TOML with [run] and [node]." in call("peer --help")[1]
    assert "[default: runs/NAME]" in " ".join(call("sim --help")[1].split())


def test_all_commands_are_listed_in_whole_sentences(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    listed = [line.split() for line in out.partition("Commands:")[2].splitlines() if line]
    assert [words[0] for words in listed] == list(COMMANDS)
    assert all(words[-1].endswith(".") and "..." not in words[-1] for words in listed)


def test_the_version_is_the_distributions(call: Call) -> None:
    assert call("--version") == (0, version("lowcomm") + "\n", "")


@pytest.mark.parametrize("arguments", ["fly", "peer --fly", "sim", "demo --seed x"])
def test_what_is_no_command_has_exit_code_2(arguments: str, call: Call) -> None:
    code, out, err = call(arguments)
    assert (code, out) == (2, "")
    assert "Try 'lowcomm" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("lowcomm wit", "witness"),
        ("lowcomm sim --pe", "--peers"),
        ("lowcomm peer --set node.ran", "node.ranks="),
        ("lowcomm sim --set run.protocol.silence_t", "run.protocol.silence_timeout_s="),
        ("lowcomm config explain node.ran", "node.ranks"),
    ],
)
def test_a_shell_completes_what_is_typed(
    words: str, expected: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_LOWCOMM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    code, out, err = call("")
    assert (code, err) == (0, "")
    assert expected in out.split()


def test_a_program_after_two_dashes_is_for_peer_only(call: Call) -> None:
    code, _, err = call("status nowhere -- train.py")
    assert code == 2
    assert "train.py" in err


@pytest.mark.parametrize("left", ["checkpoints/round-000007", "wal"])
def test_a_new_run_does_not_mix_with_an_earlier_one(call: Call, tmp_path: Path, left: str) -> None:
    (tmp_path / "node" / left).mkdir(parents=True)
    code, _, err = call("peer run.toml --new --set node.directory=node")
    assert code == 2
    assert "node holds the log or checkpoints of an earlier run" in err
    assert "lowcomm resume node" in err


def test_a_node_s_directory_may_begin_with_the_home_directory(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "node" / "wal").mkdir(parents=True)
    code, _, err = call("peer run.toml --new --set node.directory=~/node")
    assert code == 2
    assert "home/node holds the log or checkpoints of an earlier run" in err
    assert not (tmp_path / "~").exists(), "keys would lie in it"


def test_the_system_says_no_in_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "node.json").mkdir()
    code, _, err = call("resume .")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "Is a directory" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (RefusedError("x"), 3),
        (LowcommError("x"), 4),
        (OSError(28, "x"), 4),
    ],
)
def test_exit_codes(error: LowcommError | OSError, code: int) -> None:
    assert main.exit_code(error) == code
