"""Real daemons that get forged frames from a node with a valid certificate."""

import asyncio
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit
from protocols.types.ids import PeerId
from sims.scenarios.forgery import Forger
from tests.cluster.liar import Liar
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import commits_until, ending, listens, of, record, token_of, write_config
from tests.peers.mesh_node import Up

BATCH = 50
GROWN_BYTES_MAX = 48 << 20
"""Resident memory may grow by so much: buffers of connections, and the log of the rounds."""
GAP_MAX_S = 2.0
"""No two commits may be further apart meanwhile."""
NAMES = ("alpha", "beta")


@pytest.mark.deadline(600)
@pytest.mark.long
@pytest.mark.parametrize("frames", [10_000, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_forged_frames_end_no_daemon_stop_no_round_and_stay_in_no_memory(
    frames: int, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=1, rounds=100_000)
    with ending(PacedShell(tmp_path)) as run:
        daemons = [run.node("alpha", "--new")]
        token = token_of(tmp_path / "alpha")
        commits_until(tmp_path / "alpha", 1)
        daemons.append(run.node("beta", "--join", token))
        gamma = run.node("gamma", "--join", token)
        counts_together(tmp_path / "alpha", ["alpha", "beta", "gamma"])
        gamma.popen.send_signal(signal.SIGKILL)
        gamma.popen.wait()
        counts_together(tmp_path / "alpha", NAMES)
        asyncio.run(send_forged(tmp_path, 5_000, seed=1))
        before = [resident(daemon.pid) for daemon in daemons]
        began = time.time()
        asyncio.run(send_forged(tmp_path, frames, seed=2))
        times = [x.t for x in of(Commit, tmp_path / "alpha") if x.t >= began]
        assert max(other - one for one, other in pairwise(times)) < GAP_MAX_S
        counts_together(tmp_path / "alpha", NAMES)
        for daemon, was in zip(daemons, before, strict=True):
            assert daemon.popen.poll() is None
            assert "Traceback" not in daemon.err
            assert resident(daemon.pid) - was < GROWN_BYTES_MAX


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def send_forged(directory: Path, frames: int, seed: int) -> None:
    """Send so many frames, to both; connect anew when a daemon hangs up."""
    others = {PeerId(record(directory / name)["peer"]): name for name in NAMES}
    forger = Forger(seed)
    sent = connections = 0
    while sent < frames:
        liar = Liar(directory / "gamma")
        liar.incarnation += connections
        connections += 1
        liar.mesh.listen(liar.socket)
        for peer, name in others.items():
            liar.mesh.connect(listens(directory / name), peer=peer)
        try:
            await liar.until(lambda liar=liar: any(isinstance(x, Up) for x in liar.seen))
            while sent < frames and liar.mesh.sessions:
                for _, message in (x for x in liar.seen if isinstance(x, tuple)):
                    forger.saw(message)
                liar.seen.clear()
                for _ in range(BATCH):
                    to = forger.random.choice(list(others))
                    message = forger.forge([*others, liar.peer])
                    if to in liar.mesh.sessions and message is not None:
                        liar.mesh.send(to, message)
                        sent += 1
                await asyncio.sleep(0.01)
        finally:
            await liar.mesh.close()
            if liar.socket:
                liar.socket.close()
