"""A node on two hosts, each in a network namespace of its own, and a second node beside it."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, RanksLost
from peers.processes import TOKEN_VARIABLE
from peers.security.node_secret import SECRET_FILE
from sims.wan import Place, Wan, WanLink, why_not
from tests.cluster.running import (
    Command,
    Shell,
    digests_of,
    new_shell,
    of,
    token_of,
    until,
    write_config,
)

STREAMING = 'name = "streaming_diloco"\ninner_steps = 6\nfragments = 2\noverlap_steps = 2'
HOSTS_PORT = 29400
PROGRAM = "from lowcomm.cli.main import main\nmain()"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    if why := why_not("netns"):
        pytest.skip(why)
    with new_shell(tmp_path) as made:
        yield made


def start(shell: Shell, place: Place, *arguments: str, token: str = "") -> Command:
    """`lowcomm ARGUMENTS` in this place; its ranks find each other by the device."""
    more = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "wan", "COLUMNS": "100"}
    more |= {TOKEN_VARIABLE: token} if token else {}
    environment = {**os.environ, **place.environment, **more}
    return shell.launch(place.command([sys.executable, "-c", PROGRAM, *arguments]), environment)


def settings(name: str, place: Place, **keys: object) -> list[str]:
    keys = {"name": name, "directory": name, "listen": place.listen, **keys}
    return [word for key, value in keys.items() for word in ("--set", _setting(key, value))]


def _setting(key: str, value: object) -> str:
    return f"node.{key}={json.dumps(value)}"


def counted(directory: Path) -> int:
    """Commits in which this node's own contribution was counted."""
    return sum(each.counted for each in of(Commit, directory))


@pytest.mark.long
@pytest.mark.deadline(300)
def test_a_node_on_two_hosts_trains_with_another_one_and_survives_the_loss_of_a_host(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=2, rounds=10_000, method=STREAMING)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    with Wan(WanLink(delay_s=0.001), peers=3, means="netns") as wan:
        first, second, third = wan.places
        listen = f"{first.listen.rpartition(':')[0]}:{HOSTS_PORT}"
        hosts = {"ranks": 2, "other_hosts": [1], "other_hosts_listen": listen}
        nodes = [
            start(shell, first, "peer", "run.toml", "--new", *settings("alpha", first, **hosts))
        ]
        token = token_of(alpha)
        further = ("ranks", listen, "--secret", str(alpha / SECRET_FILE))
        host = start(shell, second, *further)
        nodes.append(start(shell, third, "peer", "run.toml", *settings("beta", third), token=token))
        until(lambda: counted(alpha) >= 5, within_s=120, what="contributions of both hosts")
        host.signal(signal.SIGKILL)
        until(lambda: of(RanksLost, alpha), within_s=40, what="the loss of the host")
        assert of(RanksLost, alpha)[0].why.startswith("host 1 of this node is lost: ")
        had = counted(alpha)
        host = start(shell, second, *further)
        until(lambda: counted(alpha) > had + 3, within_s=100, what="contributions again")
        for each in nodes:
            each.signal(signal.SIGTERM)
            each.wait(within_s=30)
        assert host.wait(within_s=30) == 0, host.err
        assert "the node has ended" in host.err
    ours, theirs = digests_of(alpha), digests_of(beta)
    common = ours.keys() & theirs.keys()
    assert len(common) >= 6
    assert all(ours[key] == theirs[key] for key in common)
    assert len(of(RanksLost, alpha)) == 1
