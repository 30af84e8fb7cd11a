"""hosts.toml: lines and tables of hosts, and one error for each that is wrong."""

from pathlib import Path

import pytest

from lowcomm.launching.hosts_file import HostConfig, read_hosts, read_launch
from protocols.types import ConfigError


def written(tmp_path: Path, text: str, run: str = '[run]\nname = "first"\n') -> Path:
    (tmp_path / "run.toml").write_text(run, encoding="utf-8")
    path = tmp_path / "hosts.toml"
    path.write_text(text, encoding="utf-8")
    return path


def error_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_launch(path)
    return str(caught.value)


def test_a_line_and_a_table_say_the_same(tmp_path: Path) -> None:
    text = """
    hosts = [
      "gpu1.example.org",
      "user@gpu2 ranks=8 iface=eth1 node.micro_batch=4 set=node.compute=bf16",
      {host = "user@gpu2", name = "gpu3", ranks = 8, iface = "eth1", set = SET},
      "10.0.0.7 port=4711 ssh_port=2222 python=~/venv/bin/python device=cuda",
      "local",
    ]
    """.replace("SET", '["node.micro_batch=4", "node.compute=bf16"]')
    first, second, third, fourth, here = read_hosts(written(tmp_path, text)).hosts
    assert first == HostConfig(host="gpu1.example.org", name="gpu1", python="python3")
    assert second.name == "gpu2"
    assert (second.ranks, second.iface, second.set) == (third.ranks, third.iface, third.set)
    assert second.set == ("node.micro_batch=4", "node.compute=bf16")
    assert (fourth.name, fourth.port, fourth.ssh_port) == ("10-0-0-7", 4711, 2222)
    assert (fourth.python, fourth.device) == ("~/venv/bin/python", "cuda")
    assert here.is_local
    assert here.python == ""


def test_hosts_may_be_lines_of_one_text(tmp_path: Path) -> None:
    text = 'hosts = """\n# two\ngpu1   # the first\n\nuser@gpu2 ranks=2\n"""\npython = "py"\n'
    hosts = read_hosts(written(tmp_path, text)).hosts
    assert [(host.host, host.ranks, host.python) for host in hosts] == [
        ("gpu1", 0, "py"),
        ("user@gpu2", 2, "py"),
    ]


def test_each_wrong_host_is_one_line(tmp_path: Path) -> None:
    text = """hosts = ["gpu1 ranks", "gpu2 rank=2", "gpu3 ranks=many", 7, "gpu4 port=70000", "ok",
    "gpu5 set=run.seed=1", "gpu6 ranks=1 ranks=2"]"""
    lines = error_of(written(tmp_path, text)).splitlines()
    assert [line.split("hosts.toml: ")[1] for line in lines] == [
        "host 1: 'ranks' is no KEY=VALUE",
        "host 2: unknown key rank; known here: advertise, device, host, iface, name, port, python,"
        " ranks, set, ssh_port",
        "host 3: ranks: Input should be a valid integer, got 'many'",
        "host 4: write a line or a table, got 7",
        "host 5: port must be at most 65535, got 70000",
        "host 7: set: write node.KEY=VALUE, got 'run.seed=1'",
        "host 8: ranks is there twice",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hosts = []", "hosts must be a list of 1 to 1000 hosts"),
        ("run = 'run.toml'", "hosts must be a list"),
        ("hosts = ['gpu1']\nport = 3", "unknown key port; known here: directory, hosts"),
        ("hosts = ['gpu1', 'me@gpu1']", "hosts 1 and 2 are both named gpu1: give one a name="),
        ("hosts = ['-oProxyCommand=x']", "host must be `local`, HOST or USER@HOST"),
        ("hosts = ['gpu1 name=a/b']", "host 1: node.name 'a/b' cannot be used"),
        ("hosts = ['gpu1']\nrun = 'none.toml'", "cannot read"),
        ("hosts = [", "is not TOML"),
    ],
)
def test_an_error_names_its_place(tmp_path: Path, text: str, says: str) -> None:
    assert says in error_of(written(tmp_path, text))


def test_the_run_directory_has_the_run_s_name(tmp_path: Path) -> None:
    launch = read_launch(written(tmp_path, "hosts = ['gpu1']"))
    assert launch.directory == "runs/first"
    assert launch.node_directory(launch.hosts.hosts[0]) == "runs/first/gpu1"
    launch = read_launch(written(tmp_path, "hosts = ['gpu1']\ndirectory = '/scratch/x/'"))
    assert launch.node_directory(launch.hosts.hosts[0]) == "/scratch/x/gpu1"


def test_a_run_s_file_names_no_node(tmp_path: Path) -> None:
    named = written(tmp_path, "hosts = ['gpu1']", run='[run]\n[node]\nname = "a"\n')
    assert "node.name would be the same on all hosts" in error_of(named)
    assert "has no [run]" in error_of(written(tmp_path, "hosts = ['gpu1']", run="[node]\n"))
