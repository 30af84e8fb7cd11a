"""The command line of the peer on each host."""

from pathlib import Path

import pytest

from lowcomm.config.schema import load_config
from lowcomm.launching.hosts_file import Launch, read_launch
from lowcomm.launching.peer_commands import peer_arguments

ANSWER = {"address": "10.0.0.9", "reached_at": "192.0.2.1"}
RUN = '[run]\nname = "first"\n[node]\ncorpus = "/data"\nlisten = "0.0.0.0:4711"\n'


def launch_of(
    tmp_path: Path, *hosts: str, run: str = RUN, overrides: tuple[str, ...] = ()
) -> Launch:
    (tmp_path / "run.toml").write_text(run + "advertise = 'gpu1:4711'\n" * (run == RUN))
    (tmp_path / "hosts.toml").write_text(f"hosts = {list(hosts)}\n")
    return read_launch(tmp_path / "hosts.toml", overrides)


def settings_of(launch: Launch, place: int, overrides: tuple[str, ...] = ()) -> dict[str, str]:
    arguments = peer_arguments(launch, launch.hosts.hosts[place], ANSWER, overrides=overrides)
    given = [arguments[at + 1] for at, word in enumerate(arguments) if word == "--set"]
    load_config(None, given)  # They are what a configuration takes.
    return {key: value for key, _, value in (each.partition("=") for each in given)}


def test_the_first_host_founds_the_run_and_the_others_join_with_a_token_in_a_file(
    tmp_path: Path,
) -> None:
    launch = launch_of(tmp_path, "gpu1", "gpu2")
    first, second = (peer_arguments(launch, host, ANSWER) for host in launch.hosts.hosts)
    assert first[:3] == ["peer", "runs/first/gpu1/run.toml", "--new"]
    assert second[:3] == ["peer", "--join", "@runs/first/gpu2/token"]


def test_the_run_s_file_is_for_all_but_its_address_for_the_first(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "gpu1", "gpu2 ranks=8 device=cuda node.micro_batch=4")
    assert settings_of(launch, 0) == {
        "node.corpus": '"/data"',
        "node.listen": '"0.0.0.0:4711"',
        "node.advertise": '"gpu1:4711"',
        "node.name": '"gpu1"',
        "node.directory": '"runs/first/gpu1"',
    }
    assert settings_of(launch, 1) == {
        "node.corpus": '"/data"',
        "node.name": '"gpu2"',
        "node.directory": '"runs/first/gpu2"',
        "node.ranks": "8",
        "node.device": '"cuda"',
        "node.micro_batch": "4",
    }


def test_settings_of_the_run_are_the_founder_s_and_those_of_nodes_all_have(tmp_path: Path) -> None:
    both = ("run.outer_steps=7", "node.ranks=2")
    launch = launch_of(tmp_path, "gpu1", "gpu2", overrides=both)
    first, second = (settings_of(launch, place, ("run.outer_steps=7",)) for place in (0, 1))
    assert (first["run.outer_steps"], first["node.ranks"]) == ("7", "2")
    assert "run.outer_steps" not in second
    assert second["node.ranks"] == "2"


@pytest.mark.parametrize(
    ("host", "place", "listen", "advertise"),
    [
        ("gpu1", 0, '"0.0.0.0:0"', '"192.0.2.1:0"'),  # As ssh reaches it.
        ("gpu1 port=5000", 0, '"0.0.0.0:5000"', '"192.0.2.1:5000"'),
        ("gpu1 iface=eth1 port=5000", 0, '"10.0.0.9:5000"', None),
        ("gpu1 advertise=gate:80", 0, '"0.0.0.0:0"', '"gate:80"'),
        ("gpu1 advertise=gate port=5000", 0, '"0.0.0.0:5000"', '"gate:5000"'),
        ("gpu1", 1, None, None),  # It listens where it reaches the first one.
        ("gpu1 port=5000", 1, '"0.0.0.0:5000"', None),
        ("gpu1 iface=eth1", 1, '"10.0.0.9:0"', None),
        ("gpu1 iface=eth1 advertise=gate:80", 1, '"10.0.0.9:0"', '"gate:80"'),
    ],
)
def test_a_node_listens_and_is_dialled_as_its_host_says(
    tmp_path: Path, host: str, place: int, listen: str | None, advertise: str | None
) -> None:
    hosts = [host, "other"] if place == 0 else ["other", host]
    settings = settings_of(launch_of(tmp_path, *hosts, run="[run]\n"), place)
    assert (settings.get("node.listen"), settings.get("node.advertise")) == (listen, advertise)


def test_local_processes_alone_use_loopback(tmp_path: Path) -> None:
    hosts = ("local name=a", "local name=b", "local name=c port=5000")
    launch = launch_of(tmp_path, *hosts, run="[run]\n")
    listens = [settings_of(launch, place).get("node.listen") for place in range(3)]
    assert listens == ['"127.0.0.1:0"', None, '"127.0.0.1:5000"']
    directory = settings_of(launch, 1)["node.directory"]
    assert directory == f'"{tmp_path}/runs/run/b"'


def test_a_program_of_the_user_follows_the_settings(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "gpu1")
    command = ("python", "train.py")
    arguments = peer_arguments(launch, launch.hosts.hosts[0], ANSWER, command=command)
    assert arguments[-3:] == ["--", "python", "train.py"]
