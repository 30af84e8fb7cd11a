"""A state from several real donors over slow lines, one of which dies in the middle."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lowcomm.reports.events import SnapshotReceived, SnapshotServed, Traffic
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.paced.cluster import start_paced
from sims.paced.rank import RankSpeed
from sims.wan import Wan, WanLink, why_not
from tests.cluster.running import marked_processes, of, until, write_config

ELEMENTS = 8 << 20
STATE_BYTES = 2 * 4 * ELEMENTS
"""64 MiB: parameters and momentum."""
SLOW = WanLink(rate_bps=8e7, delay_s=0.01)
"""10 MB/s from each donor."""
PACE = RankSpeed(step_s=1.0, elements=ELEMENTS)
JOINER = 3
WITHIN_S = 40.0


async def comes(look: Callable[[], bool]) -> None:
    """Wait for it."""
    await asyncio.to_thread(until, look, within_s=WITHIN_S, what="what was waited for")


async def joined(run_dir: Path, config: Path, wan: Wan) -> tuple[LocalNode, list[LocalNode]]:
    """The joiner, and its donors: the second one was killed when it had sent a part."""
    async with LocalCluster(run_dir) as cluster:
        donors: list[LocalNode] = []
        token = ""
        for number in range(JOINER):
            place = wan.places[number]
            donors.append(
                start_paced(cluster, f"d{number}", config, pace=PACE, join=token, place=place)
            )
            token = token or await cluster.token_of(donors[0])
            if number:
                await comes(lambda node=donors[-1]: bool(of(SnapshotReceived, node.directory)))
        place = wan.places[JOINER]
        joiner = start_paced(cluster, "joiner", config, pace=PACE, join=token, place=place)
        await comes(lambda: wan.counters()[1, JOINER].bytes > 3 << 20)
        os.kill(donors[1].child.pid, signal.SIGKILL)
        await comes(lambda: bool(of(SnapshotReceived, joiner.directory)))
        os.kill(joiner.child.pid, signal.SIGTERM)
        await joiner.child.wait()
        return joiner, donors


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.deadline(90)
@pytest.mark.skipif(sys.platform != "linux" or bool(why_not("netns")), reason="needs namespaces")
def test_a_donor_that_dies_in_the_middle_costs_little_more_than_what_it_had_under_way(
    tmp_path: Path,
) -> None:
    config = write_config(tmp_path, peers=2, rounds=99, inner=10_000)
    slow = {(donor, JOINER): SLOW for donor in range(JOINER)}

    async def play() -> tuple[LocalNode, list[LocalNode]]:
        async with asyncio.timeout(80):
            with Wan(slow, peers=JOINER + 1, means="netns") as wan:
                return await joined(tmp_path / "run", config, wan)

    joiner, donors = asyncio.run(play())
    (state,) = of(SnapshotReceived, joiner.directory)
    assert sum(state.donor_bytes) == STATE_BYTES
    assert len(state.donors) == JOINER, "what the dead one gave is kept"
    traffic = of(Traffic, joiner.directory)[-1]
    assert STATE_BYTES <= sum(traffic.transfer_received_bytes) < 1.3 * STATE_BYTES
    for donor in (donors[0], donors[2]):
        served = of(SnapshotServed, donor.directory)[-1]
        assert served.size_bytes > STATE_BYTES / 4
    assert marked_processes() == {}


@pytest.mark.long
@pytest.mark.deadline(80)
def test_the_command_measures_joins_beside_rounds_without_one() -> None:
    asked = {"mib": 4, "peers": 2, "joins": 1, "train": 0.05, "rounds": 2}
    argv = [sys.executable, "-m", "benchmarks", "joining", "--json"]
    argv += [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=70)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["joins"], told["state_bytes"]) == (1, 8 << 20)
    assert 0 < told["cut_to_verified_s"] <= told["connection_to_verified_s"]
    assert sum(told["bytes_by_donor"]) == told["state_bytes"]
    assert told["rounds_alone"] >= 2
    assert marked_processes() == {}
