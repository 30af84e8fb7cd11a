"""Emulated networks with real processes: what a line does to them, and nothing left behind.

Figures have wide bounds, for a busy machine is late; `python -m sims.wan --check` shows them.
"""

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lowcomm.reports.events import Finished
from peers.processes.processes import dying_with_us
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.paced.cluster import start_paced
from sims.wan import Means, Place, Wan, WanLink, why_not
from sims.wan.probe import READY
from tests.cluster.running import marked_processes, of, until, write_config

WITHIN_S = 30.0
DELAY_S = 0.03
LATE_S = 0.5
"""More than a busy machine adds to a round trip."""
PAYLOAD_BYTES = 4 << 20
SEND = """
import hashlib, os, socket, sys
data = os.urandom(int(sys.argv[2]))
host, _, port = sys.argv[1].rpartition(":")
with socket.create_connection((host, int(port))) as connection:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(100).decode() == hashlib.sha256(data).hexdigest()
"""
RECEIVE = """
import hashlib, os, socket
host, _, port = os.environ["LOWCOMM_LISTEN"].rpartition(":")
with socket.create_server((host, int(port))) as listener:
    print("ready", flush=True)
    connection, _ = listener.accept()
    with connection:
        digest = hashlib.sha256()
        while data := connection.recv(1 << 20):
            digest.update(data)
        connection.sendall(digest.hexdigest().encode())
"""
OWN = """
import json, os, subprocess, sys, time
from sims.wan import Wan, WanLink
with Wan(WanLink(delay_s=0.01), peers=3, means=sys.argv[1]) as wan:
    place = wan.places[1]
    child = subprocess.Popen(place.command(["sleep", "60"]))
    made = [os.readlink(place.prefix[-1]) for place in wan.places if place.prefix]
    fork = os.fork()  # It has the owner's end of the connection too.
    if fork:
        print(json.dumps([wan.carrier_pid, child.pid, fork, *made]), flush=True)
    time.sleep(60)
"""


@functools.cache
def missing(means: Means) -> str:
    return why_not(means)


@pytest.fixture(params=["netns", "proxy"])
def means(request: pytest.FixtureRequest) -> Means:
    return needed(request.param)


def needed(means: Means) -> Means:
    if why := missing(means):
        pytest.skip(why)
    return means


@contextmanager
def running(place: Place, *argv: str) -> Generator["subprocess.Popen[str]"]:
    popen = subprocess.Popen(
        dying_with_us(place.command(argv)),
        env={**os.environ, **place.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    with popen:
        try:
            yield popen
        finally:
            popen.kill()


@contextmanager
def serving(place: Place, *argv: str) -> Generator[None]:
    argv = argv or (sys.executable, "-m", "sims.wan.probe", "serve", place.listen)
    with running(place, *argv) as server:
        assert server.stdout is not None
        assert server.stdout.readline().strip() == READY
        yield


def ask(place: Place, target: str, **options: float) -> dict[str, float]:
    """With the probe, which pings only if nothing else is asked."""
    options = {"pings": 0, "seconds": 0, **options}
    typed = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with running(place, sys.executable, "-m", "sims.wan.probe", "ask", target, *typed) as asker:
        out, _ = asker.communicate(timeout=WITHIN_S)
        assert asker.returncode == 0
    return json.loads(out)


def run(place: Place, *argv: str) -> int:
    with running(place, *argv) as command:
        return command.wait(WITHIN_S)


def namespaces() -> set[str]:
    """All that a process of this machine is in, or holds."""
    found: set[str] = set()
    for link in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")):
        with contextlib.suppress(OSError):
            found.add(os.readlink(link))
    return {name for name in found if name.startswith("net:[")}


def namespaces_of(wan: Wan) -> set[str]:
    return {os.readlink(place.prefix[-1]) for place in wan.places if place.prefix}


@pytest.fixture(autouse=True)
def nothing_named() -> Iterator[None]:
    """Namespaces and interfaces that others see: none, beside the leaks that every test here is
    checked for."""
    named = set(Path("/var/run/netns").glob("*"))
    interfaces = socket.if_nameindex()
    yield
    assert set(Path("/var/run/netns").glob("*")) == named
    assert socket.if_nameindex() == interfaces


def test_every_direction_has_its_own_delay_and_nobody_else_pays(means: Means) -> None:
    links = {(0, 2): WanLink(delay_s=2 * DELAY_S), (2, 0): WanLink(delay_s=DELAY_S)}
    with Wan(links, peers=3, means=means) as wan, serving(wan.places[2]):
        first, second, _ = wan.places
        far = ask(first, first.dialled[2], pings=10)
        near = ask(second, second.dialled[2], pings=10)
        counters = wan.counters()
    assert 3 * DELAY_S <= far["rtt_min_s"] < 3 * DELAY_S + LATE_S
    assert near["rtt_min_s"] < 3 * DELAY_S
    carried = {pair for pair, each in counters.items() if each.packets}
    assert carried == {(0, 2), (2, 0), (1, 2), (2, 1)}


def test_a_line_is_no_faster_than_asked_and_changes_while_it_works(means: Means) -> None:
    asked = WanLink(rate_bps=1e8, delay_s=0.005)
    with Wan(asked, peers=2, means=means) as wan, serving(wan.places[1]):
        place = wan.places[0]
        before = 8 * ask(place, place.dialled[1], seconds=2)["bytes_per_s"]
        wan.change(0, 1, rate_bps=1e7)
        after = 8 * ask(place, place.dialled[1], seconds=2)["bytes_per_s"]
        counters = wan.counters()[0, 1]
    assert 2e7 < before < 1.1e8
    assert 2e6 < after < 1.1e7
    assert counters.queue_max_s > 0


def test_a_link_that_is_cut_carries_nothing_until_it_is_mended(means: Means) -> None:
    with Wan(WanLink(delay_s=0.001), peers=2, means=means) as wan, serving(wan.places[1]):
        place = wan.places[0]
        program = [sys.executable, "-m", "sims.wan.probe", "ask", place.dialled[1]]
        with running(place, *program, "--pings", "500", "--seconds", "0") as asker:
            until(lambda: wan.counters()[1, 0].packets > 50, within_s=WITHIN_S, what="pinging")
            wan.cut(0, 1)
            time.sleep(0.1)
            counted = wan.counters()[1, 0].packets
            time.sleep(0.5)
            assert wan.counters()[1, 0].packets <= counted + 5  # Repetitions are offered too.
            assert asker.poll() is None
            wan.mend(0, 1)
            out, _ = asker.communicate(timeout=WITHIN_S)
    assert 0.5 < json.loads(out)["rtt_max_s"] < WITHIN_S


@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_a_stream_arrives_whole_whatever_the_line_does(means: Means, loss: float) -> None:
    link = WanLink(rate_bps=2e8, delay_s=0.003, jitter_s=0.002, loss=loss, queue_s=0.02)
    size = PAYLOAD_BYTES // (16 if loss and means == "proxy" else 1)  # Each loss is a pause.
    with (
        Wan(link, peers=2, means=means) as wan,
        serving(wan.places[1], sys.executable, "-c", RECEIVE),
    ):
        target = wan.places[0].dialled[1]
        assert run(wan.places[0], sys.executable, "-c", SEND, target, str(size)) == 0
        counters = wan.counters()[0, 1]
    assert counters.bytes > size
    assert bool(counters.lost) == bool(loss)


def test_the_asked_share_of_datagrams_is_lost() -> None:
    with Wan(WanLink(loss=0.1), peers=2, means=needed("netns")) as wan, serving(wan.places[1]):
        lost = ask(wan.places[0], wan.places[1].listen, datagrams=3000)["loss"]
    assert 0.06 < lost < 0.2


def test_a_shared_loopback_is_one_line() -> None:
    with Wan(WanLink(rate_bps=1e8), peers=2, means=needed("loopback")) as wan:
        first, second = wan.places
        with serving(second):
            measured = 8 * ask(first, first.dialled[1], seconds=2)["bytes_per_s"]
        counters = wan.counters()
        wan.change(0, 1, rate_bps=None)
        assert wan.link(1, 0).rate_bps is None
    assert 2e7 < measured < 1.1e8
    assert counters[0, 0].bytes > measured / 8


def test_one_address_for_all_who_dial_is_the_dialler_s_own_link() -> None:
    links = {(1, 2): WanLink(delay_s=DELAY_S)}
    with Wan(links, peers=3, means="proxy") as wan, serving(wan.places[2]):
        ask(wan.places[1], wan.places[2].advertise, pings=3)
        carried = {pair for pair, each in wan.counters().items() if each.packets}
    assert carried == {(1, 2), (2, 1)}


def test_nothing_is_left_when_the_owner_fails(means: Means) -> None:
    made: set[str] = set()
    carrier = 0
    with (
        contextlib.suppress(ZeroDivisionError),
        Wan(WanLink(), peers=3, means=means) as wan,
        running(wan.places[0], "sleep", "60"),
    ):
        made, carrier = namespaces_of(wan), wan.carrier_pid
        assert made <= namespaces()
        raise ZeroDivisionError
    assert len(made) == (3 if means == "netns" else 0)
    with pytest.raises(ProcessLookupError):
        os.kill(carrier, 0)
    until(lambda: not made & namespaces(), within_s=5, what="without namespaces")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_owner_is_killed(means: Means, number: signal.Signals) -> None:
    command = dying_with_us([sys.executable, "-c", OWN, means])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        carrier, peer, fork, *made = json.loads(owner.stdout.readline())

        def are_there() -> bool:
            """Until the peer has entered its place it would end by itself when that is gone."""
            here = marked_processes()  # Who becomes another program is not, for a moment.
            return {carrier, fork} <= set(here) and here.get(peer, "").startswith("sleep")

        try:
            until(are_there, within_s=10, what="all of them in their places")
            assert set(made) <= namespaces()
            owner.send_signal(number)
            owner.wait(10)
            os.kill(peer, signal.SIGKILL)  # It is its owner's, and was not started to die with it.
            until(lambda: carrier not in marked_processes(), within_s=10, what="ended")
        finally:
            os.kill(fork, signal.SIGKILL)
    until(lambda: not set(made) & namespaces(), within_s=5, what="without namespaces")


def test_a_place_says_when_its_network_is_gone() -> None:
    with Wan(WanLink(), peers=2, means=needed("netns")) as wan:
        place = wan.places[0]
    result = subprocess.run(
        place.command(["true"]), capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert result.returncode == 1
    assert "is gone" in result.stderr


def wan_command(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        dying_with_us([sys.executable, "-m", "sims.wan", *arguments]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_command_runs_once_for_each_peer(means: Means) -> None:
    told = "echo $LOWCOMM_PEER of $LOWCOMM_PEERS at $LOWCOMM_LISTEN $LOWCOMM_ADDRESSES; "
    program = told + "exit $((LOWCOMM_PEER * 3))"
    with wan_command("--peers", "3", "--means", means, "--", "sh", "-c", program) as command:
        out, err = command.communicate(timeout=WITHIN_S)
    assert command.returncode == 3, err
    lines = sorted(out.splitlines())
    assert [line.split(" at ")[0] for line in lines] == ["0 of 3", "1 of 3", "2 of 3"]
    for number, line in enumerate(lines):
        listen, addresses = line.split(" at ")[1].split()
        assert addresses.split(",")[number] == listen


def test_the_command_ends_all_when_it_is_interrupted(means: Means) -> None:
    with wan_command("--means", means, "--", "sh", "-c", "echo up; exec sleep 60") as command:
        assert command.stdout is not None
        assert [command.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=10)
    assert command.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--rate", "fast", "--", "true"], "--rate 'fast'"), (["--peers", "3"], "nothing to run")],
)
def test_the_command_says_in_one_line_what_is_wrong(arguments: Sequence[str], said: str) -> None:
    with wan_command(*arguments) as command:
        _, err = command.communicate(timeout=WITHIN_S)
    assert command.returncode == 2
    assert said in err
    assert len(err.splitlines()) == 1


def test_without_root_one_line_says_what_is_missing() -> None:
    program = """
import os
from sims.wan.link import WanError
from sims.wan.namespaces import require_root
if os.geteuid() == 0:
    os.setuid(65534)
try:
    require_root()
except WanError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    assert len(result.stdout.splitlines()) == 1
    assert "need root" in result.stdout


def test_without_tc_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    needed("netns")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "apt install iproute2" in why_not("loopback")


@pytest.mark.long
@pytest.mark.deadline(90)
def test_real_peers_train_over_a_long_line(means: Means, tmp_path: Path) -> None:
    names, link = ("alpha", "beta", "gamma"), WanLink(rate_bps=1e8, delay_s=0.01, jitter_s=0.002)
    config = write_config(tmp_path, peers=len(names), rounds=5)

    async def train(wan: Wan) -> None:
        async with LocalCluster(tmp_path / "run") as cluster:

            def start(name: str, token: str) -> LocalNode:
                place = wan.places[names.index(name)]
                return start_paced(cluster, name, config, join=token, place=place)

            await cluster.start_all(names, start)
            async with asyncio.timeout(60):
                await asyncio.gather(*(node.child.wait() for node in cluster.nodes))

    with Wan(link, peers=len(names), means=means, loopback_addresses=True) as wan:
        asyncio.run(train(wan))
        counters = wan.counters()
    finished = of(Finished, tmp_path / "run")
    assert len({event.state_digest for event in finished}) == 1
    assert len(finished) == len(names)
    assert all(each.packets for each in counters.values()), counters
    # Nothing but what crossed the links can have brought the parameters to everybody.
    assert counters[0, 1].bytes > 1 << 18
    assert counters[0, 2].bytes > 1 << 18
