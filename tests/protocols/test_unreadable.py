"""What a leader decides can be read by every peer, or is not written."""

from dataclasses import replace

import pytest

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.core import PeerCore
from protocols.errors import LogError
from protocols.limits import TEXT_MAX
from protocols.log import Log
from tests.protocols.led import leading
from tests.protocols.scenes import START, A, B, C, identity, info, run

LONG = "x" * (TEXT_MAX + 1)


def test_the_log_takes_nothing_that_no_peer_could_read() -> None:
    log = Log()
    log.append(run(), term=1)
    for body in (e.Left(A, LONG), e.Left(A, "two\nlines"), e.Elected(A[:0]), e.Roots(A, -1, ())):
        with pytest.raises(LogError, match="could not be read"):
            log.append(body, term=1)
    assert log.last_index == 1
    log.append(e.Left(A, LONG[:TEXT_MAX]), term=1)


def test_a_leader_notes_what_it_cannot_write_once_and_goes_on() -> None:
    scene = leading(B)
    office, log = scene.core.office, scene.core.raft.log
    assert office is not None
    last = log.last_index
    for _ in range(3):
        office.leader.gone[B] = (True, LONG)
        scene.on(v.DeadlineReached(), after_s=0.1)
    assert log.last_index == last
    notes = [x.text for x in scene.notes if x.kind == "log"]
    assert len(notes) <= 1
    scene.joins(C)
    assert C in office.head.members, "other decisions follow"


def test_a_founder_whose_first_entry_nobody_could_read_does_not_begin() -> None:
    core = PeerCore(identity(A), join=False)
    said = core.handle(v.Bootstrap(replace(run(), peers_min=1 << 32), (START,)), 0.0)
    (stop,) = [x for x in said if isinstance(x, c.Stop)]
    assert "Run.peers_min: expected an integer in [0, 4294967296)" in stop.why
    assert not any(isinstance(x, c.Persist) for x in said)


def test_a_broken_disk_says_why_in_what_travels() -> None:
    """The path in its reason is as long as a person has made it."""
    scene = leading(B)
    scene.slow_disk = True
    scene.hears(B, m.Join("b", 9, info(B).address, "", ""))
    scene.on(v.PersistFailed(scene.core.raft.disk.ticket, f"cannot write /{'d' * 2000}: full\n"))
    assert len(scene.core.raft.disk.why) <= TEXT_MAX
