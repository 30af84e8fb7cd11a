"""The table of the problems that hosts have before a start."""

import io
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lowcomm.launching.checks import Problem, print_problems, problems_of
from lowcomm.launching.hosts_file import Launch, read_launch

NOW = 1_700_000_000.0
FIT = {
    "python": "3.11.7",
    "lowcomm": version("lowcomm"),
    "torch": "2.13.0",
    "address": "",
    "interfaces": ["lo", "eth0"],
    "port_fault": "",
    "free_bytes": 1 << 40,
    "can_write": True,
    "runs": False,
    "unix_s": NOW,
    "reached_at": "10.0.0.1",
}


def launch_of(tmp_path: Path, hosts: str, run: str = "[run]\n") -> Launch:
    (tmp_path / "run.toml").write_text(run, encoding="utf-8")
    (tmp_path / "hosts.toml").write_text(f"hosts = {hosts}\n", encoding="utf-8")
    return read_launch(tmp_path / "hosts.toml")


def found(launch: Launch, *answers: dict[str, Any] | str, own: bool = False) -> list[Problem]:
    names = [host.name for host in launch.hosts.hosts]
    given = [answer if isinstance(answer, str) else {**FIT, **answer} for answer in answers]
    answers_by_name = dict(zip(names, given, strict=True))
    return problems_of(launch, answers_by_name, own_program=own, now_s=NOW)


def test_hosts_that_are_fit_have_no_problem(tmp_path: Path) -> None:
    assert (
        found(launch_of(tmp_path, "['gpu1', 'gpu2 iface=eth0']"), {}, {"address": "1.2.3.4"}) == []
    )


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("its host key is not in known_hosts", "its host key is not in known_hosts"),
        ({"python": "3.9.2"}, "Python 3.9.2 is older than 3.11"),
        ({"python": "3.12.0"}, "Python 3.12.0 differs from the first host's 3.11.7"),
        ({"lowcomm": ""}, "lowcomm is missing"),
        ({"lowcomm": "9.0"}, f"lowcomm is 9.0, here {version('lowcomm')}"),
        ({"torch": ""}, "torch is missing"),
        ({"port_fault": "Address already in use"}, "port 4711 cannot be used: Address already"),
        ({"free_bytes": 1 << 20}, "its disk has only"),
        ({"can_write": False}, "the run's directory cannot be made"),
        ({"unix_s": NOW - 7200}, "its clock differs from this machine's by -7200 s"),
    ],
)
def test_each_fault_is_a_problem_that_stops(
    tmp_path: Path, answer: dict[str, Any] | str, what: str
) -> None:
    launch = launch_of(tmp_path, "['gpu1', 'gpu2 port=4711']")
    (problem,) = found(launch, {}, answer)
    assert problem.host == "gpu2"
    assert problem.what.startswith(what)
    assert problem.stops
    assert problem.remedy
    assert problem.lacks_lowcomm == what.startswith("lowcomm")


def test_another_torch_is_only_a_note(tmp_path: Path) -> None:
    (problem,) = found(launch_of(tmp_path, "['gpu1', 'gpu2']"), {}, {"torch": "2.12.0"})
    assert not problem.stops


def test_another_python_matters_only_if_its_library_is_the_text(tmp_path: Path) -> None:
    hosts = "['gpu1', 'gpu2']"
    assert found(launch_of(tmp_path, hosts), {}, {"python": "3.12.0"}, own=True) == []
    files = '[run]\n[run.data]\nsource = "files"\n'
    assert found(launch_of(tmp_path, hosts, files), {}, {"python": "3.12.0"}) == []


def test_the_port_of_a_node_that_runs_is_its_own(tmp_path: Path) -> None:
    taken = {"port_fault": "Address already in use", "runs": True}
    assert found(launch_of(tmp_path, "['gpu1', 'gpu2 port=4711']"), {}, taken) == []


def test_an_interface_without_address_is_named_with_those_that_exist(tmp_path: Path) -> None:
    (problem,) = found(launch_of(tmp_path, "['gpu1', 'gpu2 iface=ib0']"), {}, {})
    assert problem.what == "the interface ib0 has no IPv4 address; there are lo, eth0"


@pytest.mark.parametrize(
    ("first", "hidden"),
    [
        ("local", True),
        ("local advertise=me.example.org", False),
        ("local iface=eth0", False),
        ("local node.advertise=me:4711", False),
        ("gpu1", False),
    ],
)
def test_other_hosts_need_an_address_of_the_founder(
    tmp_path: Path, first: str, hidden: bool
) -> None:
    reached = "127.0.0.1" if first.startswith("local") else "10.0.0.1"
    answer = {"reached_at": reached, "address": "10.0.0.9" if "iface" in first else ""}
    problems = found(launch_of(tmp_path, f"['{first}', 'gpu2']"), answer, {})
    assert [problem.remedy for problem in problems] == [
        "give it advertise=HOST or iface=NAME"
    ] * hidden


def test_one_table_has_all_problems_and_no_escape_code() -> None:
    console = Console(file=io.StringIO(), width=100)
    problems = [
        Problem("gpu1", "torch is missing", "install it there"),
        Problem("gpu2", "odd \x1b[31m", "equal versions train alike", stops=False),
    ]
    print_problems(console, problems)
    assert isinstance(console.file, io.StringIO)
    assert [line.split() for line in console.file.getvalue().splitlines()] == [
        ["host", "problem", "what", "to", "do"],
        ["gpu1", "torch", "is", "missing", "install", "it", "there"],
        ["gpu2", "note:", "odd", "?[31m", "equal", "versions", "train", "alike"],
    ]
