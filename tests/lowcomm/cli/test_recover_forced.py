"""What a person reads before a survivor goes on alone."""

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lowcomm.cli.recover_forced import ForcedRecovery
from lowcomm.reports.event_log import EVENTS
from lowcomm.startup.startup import whole_log
from peers.storage.wal import Wal
from protocols.messages import log_entries as e
from protocols.messages.peer import Kept
from protocols.messages.persisted import Saved
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId, PeerInfo, TensorSpec, Version, digest_text
from protocols.wire.layout import pack_layout

ALPHA, BETA = PeerId("alpha.00000001"), PeerId("beta.00000002")
LAYOUT = (TensorSpec(0, "w", (8,), 0),)
ROUNDS = e.Run(1, "{}", "", 2, 99, 1, pack_layout(LAYOUT), (8,), ALPHA)
STEPS = replace(ROUNDS, commit_every_steps=4, snapshot_every_steps=8)
START = digest_text("the initial state")


@contextmanager
def recovery_of(directory: Path, kept: Kept, *bodies: e.Entry) -> Generator[ForcedRecovery]:
    """Beta, with this log and that checkpoint."""
    entries = tuple(e.LogEntry(index, 1, body) for index, body in enumerate(bodies, start=1))
    log_applier = whole_log(BETA, Saved(1, ALPHA, None, entries))
    wal, _ = Wal.open(directory)
    with closing(wal):
        yield ForcedRecovery(directory, wal, BETA, log_applier, kept)


def lines_of(directory: Path, kept: Kept, *bodies: e.Entry) -> list[str]:
    with recovery_of(directory, kept, *bodies) as recovery:
        return recovery.lines()


def begun(run: e.Run) -> tuple[e.Entry, ...]:
    alpha, beta = (
        PeerInfo(peer, peer.partition(".")[0], 1, "", slot)
        for slot, peer in enumerate((ALPHA, BETA))
    )
    cut = e.Cut(beta, (ALPHA,), (Version(0, 0, START),))
    return (run, e.Member(alpha), cut, e.Member(beta), e.Voter(BETA, votes=True, why=""))


def test_a_log_of_steps_counts_batches(tmp_path: Path) -> None:
    roster = (ALPHA, BETA)
    steps = (e.View(1, roster, (), (1,)), e.StepCommit(1, 8, START), e.StepCommit(1, 12, START))
    kept = Kept(0, (Version(0, 8, START),), 8, 16)
    assert lines_of(tmp_path, kept, *begun(STEPS), *steps)[:3] == [
        "beta goes on alone from its checkpoint of step 8 (inner step 8, 16 committed batches)",
        "no longer voters: alpha",
        "lost: 4 committed steps (4 inner steps, 8 batches)",
    ]


@pytest.mark.parametrize(("run", "unit"), [(ROUNDS, "round"), (STEPS, "step")])
def test_who_lost_nothing_reads_that(tmp_path: Path, run: e.Run, unit: str) -> None:
    kept = Kept(0, (Version(0, 0, START),), 0, 0)
    lines = lines_of(tmp_path, kept, *begun(run))
    assert lines[2] == f"lost: no committed {unit} that its log knows of"


def test_a_finished_run_of_steps_is_not_forked_in_vain(tmp_path: Path) -> None:
    """Seen: the fork was on the disk when the refusal was printed."""
    run = replace(STEPS, outer_steps=12)
    roster = (ALPHA, BETA)
    steps = (e.View(1, roster, (), (1,)), e.StepCommit(1, 8, START), e.StepCommit(1, 12, START))
    kept = Kept(0, (Version(0, 12, START),), 12, 24)
    with (
        recovery_of(tmp_path, kept, *begun(run), *steps) as recovery,
        pytest.raises(ConfigError, match="cannot change with a per-step method"),
    ):
        recovery.prolong("20", unix_s=1)
    assert not (tmp_path / EVENTS).exists()


def test_the_log_begins_after_the_fork(tmp_path: Path) -> None:
    """Seen: a peer that had been a member at the beginning of the log read the fork, which a
    majority of the voters it knew had not signed, and never followed its leader."""
    kept = Kept(0, (Version(0, 0, START),), 0, 0)
    with recovery_of(tmp_path, kept, *begun(ROUNDS)) as recovery:
        recovery.write()
    wal, saved = Wal.open(tmp_path)
    wal.close()
    assert saved is not None
    assert saved.entries == ()
    run_state = whole_log(BETA, saved).run_state
    assert (run_state.voters, len(run_state.forks)) == ((BETA,), 1)
