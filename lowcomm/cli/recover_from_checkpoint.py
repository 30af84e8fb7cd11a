"""`lowcomm recover --from-checkpoint`: a node with an unreadable log begins another one.

A checkpoint contains a snapshot of the log at its cut. From there the node goes on as the only
voter of a new lineage, as after `recover --force` (recover_forced.py). Run and peer stay the same,
so certificates, revocations, spent tokens, participants and consumed samples stay as they were at
the cut, and peers of the old lineage meet another branch of their run, not an unknown peer. The new
lineage fences their messages: its fork is drawn at random, and its term is far above every term in
which the peer may have voted or acknowledged entries in the lost log. The old log is put aside,
never deleted. Must NOT begin a new log while the old one can be read: then `lowcomm resume` loses
nothing.
"""

import os
import secrets
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    CheckpointError,
    newest_checkpoint,
    read_checkpoint,
    read_log,
)
from lowcomm.cli.recover_forced import STOPPED, best_of, cannot, read_log_of, seize
from lowcomm.startup import startup
from lowcomm.startup.identity import NodeDirectory
from peers.storage import FILE, UntrustedError, Wal, sync
from protocols.messages import Kept, Saved
from protocols.peer import fork_of
from protocols.state import LogApplier
from protocols.types import ConfigError, PeerId

ASIDE = "unreadable"
"""The directory, in a node's directory, for logs that were put aside, each in a directory of its
own."""
TERM_LEAP = 1024
"""Terms added to that of the checkpoint. The lost log may contain votes of later terms; a run has
far fewer elections than this."""


@dataclass(frozen=True, slots=True)
class RestartFromCheckpoint:
    """The planned recovery of one node's directory."""

    directory: Path
    why: str
    """The reason why its log cannot be read."""
    _me: PeerId
    _log_applier: LogApplier
    """The log as of the checkpoint."""
    _kept: Kept

    @property
    def others(self) -> list[str]:
        """Names of the other voters at the cut."""
        run_state = self._log_applier.run_state
        infos = {**run_state.seats, **run_state.witnesses}
        voters = (voter for voter in run_state.voters if voter != self._me)
        return [infos[voter].name if voter in infos else voter for voter in voters]

    def lines(self) -> list[str]:
        """Lines for a person: what happens, and what is lost."""
        run_state, kept = self._log_applier.run_state, self._kept
        round_, unit = kept.versions[0].round, "step" if run_state.stepwise else "round"
        return [
            f"{self.why}",
            f"{run_state.seats[self._me].name} begins another log at its checkpoint of {unit} "
            f"{round_} (inner step {kept.inner_step:,}, {kept.tokens:,} committed "
            f"{run_state.progress_unit})",
            f"no longer voters: {', '.join(self.others) or 'none'}",
            f"lost: all that was committed after that {unit}; its samples are trained again",
            "also lost: admissions and revocations since then; revoke those peers again",
            f"the old log stays in {self.directory / ASIDE}; a node that comes back gives up its "
            "own state and joins again",
        ]

    def write(self) -> None:
        """Put the old log aside and begin the new one. After a crash it can be repeated. Raises
        WalError and ConfigError."""
        _put_aside(self.directory)
        wal, _ = Wal.open(self.directory)
        with closing(wal):
            fork = fork_of(self._log_applier.run_state, self._me, self._kept, lonely=False)
            # Random numbers, since the same checkpoint may be used for this more than once.
            fork = replace(fork, fork=secrets.randbits(63) | 1, salt=secrets.randbits(64))
            seize(self.directory, wal, self._me, self._log_applier, fork)


@contextmanager
def beginning_anew(directory: Path) -> Generator[RestartFromCheckpoint]:
    """The recovery of one node's directory, or of the best one in a run's. The directory stays
    locked while the context lasts.

    Raises ConfigError if the node runs, its log can be read, or it has nothing to go on from.
    """
    chosen = best_of(directory)
    with closing(NodeDirectory(chosen, remedy=STOPPED)) as node:
        record, why = node.read(), _why_unreadable(node.path)
        if record is None or not record.run:
            raise cannot(chosen, "it has never joined a run")
        me = PeerId(record.peer)
        if not why:
            raise ConfigError(
                f"the log of {chosen} can be read: go on with `lowcomm resume {chosen}`, or, where "
                f"a majority is gone for good, with `lowcomm recover --force {chosen}`"
            )
        path, skipped = newest_checkpoint(node.path / CHECKPOINTS)
        if path is None:
            raise cannot(chosen, "; ".join(["it has no complete checkpoint", *skipped]))
        try:
            cut, _, _ = read_checkpoint(path)  # Checks the digests of its arrays too.
            snapshot, term = read_log(path)
        except CheckpointError as error:
            raise cannot(chosen, str(error)) from error
        if cut.own.peer != me:
            raise cannot(
                chosen, f"its checkpoint was written by {cut.own.peer}, but this node is {me}"
            )
        log_applier = read_log_of(me, Saved(term + TERM_LEAP, "", snapshot, ()), chosen)
        kept = startup.kept_in(cut)
        if me not in log_applier.run_state.seats:
            raise cannot(chosen, "it was not a member at its newest checkpoint")
        if not log_applier.run_state.is_kept(kept.lineage, kept.versions):
            raise cannot(chosen, "its newest checkpoint is of a branch that the run has left")
        disk = log_applier.raft.disk
        disk.snapshot_taken(snapshot)
        yield RestartFromCheckpoint(chosen, why, me, log_applier, kept)


def _why_unreadable(directory: Path) -> str:
    """The reason why the log cannot be read; "" if it can. Raises WalError if the disk fails."""
    if not (directory / FILE).exists():
        return f"{directory / FILE} is gone"
    try:
        wal, _ = startup.open_log(directory)
    except UntrustedError as error:
        return str(error.__cause__)
    wal.close()
    return ""


def _put_aside(directory: Path) -> None:
    if not (directory / FILE).exists():
        return  # The log is gone, or was put aside before a crash.
    number = 1
    while (place := directory / ASIDE / f"{number:03}").exists():
        number += 1
    try:
        place.mkdir(parents=True)
        os.rename(directory / FILE, place / FILE)
        for changed in (place, place.parent, directory):
            sync(changed)
    except OSError as error:
        raise ConfigError(f"cannot put {directory / FILE} aside: {error.strerror}") from error
