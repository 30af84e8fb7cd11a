"""Real daemons, and a client with the certificate and key of an admitted node that lies to them."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, Elected, Lost, Note
from protocols.messages import peer as m
from protocols.types.ids import PeerId
from tests.cluster.liar import Liar
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import (
    commits_until,
    ending,
    listens,
    of,
    record,
    token_of,
    write_config,
)
from tests.peers.mesh_node import Up

EVERY_S, FOR_S = 0.3, 6.0
GAP_MAX_S = 2.0
"""No two commits may be further apart while a peer lies."""


Lie = Callable[[Liar, list[PeerId], int], list[m.Control]]
LIES: dict[str, Lie] = {
    "append": lambda liar, voters, _: [liar.append(voters)],
    "votes": lambda liar, voters, _: [liar.leads(voters), liar.append(voters)],
    "terms": lambda liar, _, number: [
        m.Appended(liar.term + 1 + number, False, 0),
        m.Voted(liar.term + 1 + number, False, False),
    ],
    "urgent": lambda liar, _, number: [
        m.Vote(liar.term + 1 + number, liar.last + 99, liar.term + 1, False, True, b"s" * 64)
    ],
    "branch": lambda liar, _, __: [m.OnBranch((9,), 1 << 62, True, True, liar.address)],
    "install": lambda liar, _, __: [
        m.Install(liar.run, liar.term + 1, liar.last + 50, liar.term, 0, 8, b"an image")
    ],
}
NAMED = ("append", "votes")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PacedShell]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with ending(PacedShell(tmp_path)) as shell:
        yield shell


@pytest.mark.deadline(240)
@pytest.mark.long
def test_an_admitted_node_that_lies_about_leaders_and_terms_changes_nothing(
    run: PacedShell, tmp_path: Path
) -> None:
    run.node("alpha", "--new")
    word = token_of(tmp_path / "alpha")
    commits_until(tmp_path / "alpha", 1)
    run.node("beta", "--join", word)
    gamma = run.node("gamma", "--join", word)
    counts_together(tmp_path / "alpha", ["alpha", "beta", "gamma"])
    gamma.popen.send_signal(signal.SIGKILL)
    gamma.popen.wait()
    counts_together(tmp_path / "alpha", ["alpha", "beta"])
    for what in LIES:
        began = time.time()
        asyncio.run(lie(tmp_path, what))
        check(tmp_path, what, began)
    counts_together(tmp_path / "alpha", ["alpha", "beta"])


async def lie(directory: Path, what: str) -> None:
    liar = Liar(directory / "gamma")
    others = {PeerId(record(directory / name)["peer"]): name for name in ("alpha", "beta")}
    liar.mesh.listen(liar.socket)
    for peer, name in others.items():
        liar.mesh.connect(listens(directory / name), peer=peer)
    try:
        await liar.until(lambda: {x.peer for x in liar.seen if isinstance(x, Up)} == set(others))
        for number in range(round(FOR_S / EVERY_S)):
            for message in LIES[what](liar, list(others), number):
                for peer in others:
                    liar.mesh.send(peer, message)
            await asyncio.sleep(EVERY_S)
    finally:
        await liar.mesh.close()


def check(directory: Path, what: str, began: float) -> None:
    for name in ("alpha", "beta"):
        commits = [x for x in of(Commit, directory / name) if x.t >= began]
        gap_s = max(other.t - one.t for one, other in pairwise(commits))
        assert gap_s < GAP_MAX_S, f"{name}, {what}"
        elected = [x for x in of(Elected, directory / name) if x.t >= began]
        assert len(elected) <= (5 if what == "terms" else 0), what
        assert not [x for x in of(Lost, directory / name) if x.why == "said a liar"]
    told = [x for x in of(Note, directory / "beta") if x.t >= began and x.topic == "misbehaviour"]
    assert any("claims to lead term" in x.text for x in told) == (what in NAMED), what
