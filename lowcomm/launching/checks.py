"""Judges the hosts before anything is started: one table of all problems.

In: the answers of probe.py. Must NOT start, install or change anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from lowcomm.launching.hosts_file import HostConfig, Launch
from lowcomm.reports.figure_texts import bytes_text
from lowcomm.reports.timeline import printable
from peers.sockets import is_loopback

PYTHON_MIN = (3, 11)
FREE_BYTES_MIN = 1 << 30
"""Less free space than this does not hold a run's log and checkpoints for long."""
CLOCK_MAX_S = 3600.0
"""Certificates bear a clock that is wrong by a day; this leaves a margin."""
INSTALL = "install it there, or give --install REQUIREMENT"
Reports = Mapping[str, Mapping[str, Any] | str]
"""By name of a host its answer, or the reason why there is none."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of one host."""

    host: str
    what: str
    remedy: str
    stops: bool = True
    """Nothing is started before it is mended."""
    lacks_lowcomm: bool = False
    """`--install` mends it."""


def problems_of(
    launch: Launch, answers: Reports, *, own_program: bool, now_s: float
) -> list[Problem]:
    """All problems of all hosts, in the order of the file. `own_program`: the ranks run a program
    of the user; `now_s`: this machine's clock, in Unix seconds."""
    found: list[Problem] = []
    hosts = launch.hosts.hosts
    given = [answers[host.name] for host in hosts]
    nothing: Mapping[str, Any] = {}
    first = next((answer for answer in given if not isinstance(answer, str)), nothing)
    run = launch.run
    source = run.data.source
    same_python = source == "stdlib" or (source == "" and not own_program)
    for host, answer in zip(hosts, given, strict=True):
        if isinstance(answer, str):
            found.append(Problem(host.name, answer, "or take the host out of the file"))
            continue
        found += _versions(host, answer, first, same_python=same_python)
        found += _places(host, answer, now_s=now_s)
    founder, answer = hosts[0], given[0]
    if not isinstance(answer, str) and _is_hidden(launch, founder, answer):
        found.append(
            Problem(
                founder.name,
                "the other hosts have no address of this one, which founds the run",
                "give it advertise=HOST or iface=NAME",
            )
        )
    return found


def print_problems(console: Console, problems: Sequence[Problem]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("host", "problem", "what to do"):
        table.add_column(column, overflow="fold")
    for problem in problems:
        what = problem.what if problem.stops else f"note: {problem.what}"
        # The texts are partly the hosts' own.
        table.add_row(*(printable(text) for text in (problem.host, what, problem.remedy)))
    console.print(table, markup=False, highlight=False)


def _versions(
    host: HostConfig, answer: Mapping[str, Any], first: Mapping[str, Any], *, same_python: bool
) -> list[Problem]:
    found: list[Problem] = []
    python, ours = str(answer["python"]), version("lowcomm")
    if tuple(map(int, python.split(".")[:2])) < PYTHON_MIN:
        least = ".".join(map(str, PYTHON_MIN))
        what = f"Python {python} is older than {least}"
        return [Problem(host.name, what, f"give python=PATH of {least} or newer")]
    if same_python and python != first["python"]:
        what = f"Python {python} differs from the first host's {first['python']}"
        remedy = "use the same Python: the run's text is its library; or set run.data.source"
        found.append(Problem(host.name, what, remedy))
    if answer["lowcomm"] not in (ours, "?"):
        got = f"is {answer['lowcomm']}, here {ours}" if answer["lowcomm"] else "is missing"
        found.append(Problem(host.name, f"lowcomm {got}", INSTALL, lacks_lowcomm=True))
    elif not answer["torch"]:
        found.append(Problem(host.name, "torch is missing", "install it there"))
    elif answer["torch"] != first["torch"] and first["torch"]:
        what = f"torch {answer['torch']} differs from the first host's {first['torch']}"
        found.append(Problem(host.name, what, "equal versions train alike", stops=False))
    return found


def _places(host: HostConfig, answer: Mapping[str, Any], *, now_s: float) -> list[Problem]:
    """The problems of addresses, of the disk and of the clock."""
    found: list[Problem] = []
    if host.iface and not answer["address"]:
        there = ", ".join(map(str, answer["interfaces"]))
        what = f"the interface {host.iface} has no IPv4 address; there are {there}"
        found.append(Problem(host.name, what, "give another iface=NAME, or advertise=HOST"))
    elif answer["port_fault"] and not answer["runs"]:
        what = f"port {host.port} cannot be used: {answer['port_fault']}"
        found.append(Problem(host.name, what, "give another port=NUMBER, or none"))
    if not answer["can_write"]:
        found.append(Problem(host.name, "the run's directory cannot be made", "set directory"))
    elif answer["free_bytes"] < FREE_BYTES_MIN:
        what = f"its disk has only {bytes_text(answer['free_bytes'])} free"
        found.append(Problem(host.name, what, "make room, or set directory to another disk"))
    wrong_s = float(answer["unix_s"]) - now_s
    if abs(wrong_s) > CLOCK_MAX_S:
        what = f"its clock differs from this machine's by {wrong_s:+.0f} s"
        found.append(Problem(host.name, what, "set the clocks: certificates need them"))
    return found


def _is_hidden(launch: Launch, founder: HostConfig, answer: Mapping[str, Any]) -> bool:
    """Whether other hosts cannot dial the founder, as far as the file says."""
    node = launch.node
    named = founder.advertise or node.advertise or (founder.iface and answer["address"])
    set_here = any(setting.startswith("node.advertise") for setting in founder.set)
    if named or set_here or all(host.is_local for host in launch.hosts.hosts):
        return False
    reached = str(answer.get("reached_at", ""))
    return not reached or is_loopback(reached)
