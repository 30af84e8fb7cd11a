"""`lowcomm recover --from-checkpoint`: a node whose log cannot be read begins another one.

A checkpoint holds what the log said at its cut. From there the node goes on as the only voter of a
new lineage, as after `recover --force` (recover_forced.py): the same run and the same peer, so that
certificates, revocations, spent tokens, seats and consumed samples stay as they were at the cut,
and so that peers of the old lineage meet a branch and not a stranger. Fenced is what they send by
the lineage, whose fork is drawn at random and whose term is far above any in which the lost log may
have promised something. The old log is put aside, never deleted. Must NOT begin anything while the
log can be read: there `lowcomm resume` loses nothing.
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
from peers.storage.fsync import sync
from peers.storage.wal import FILE, UntrustedError, Wal
from protocols.messages.peer import Kept
from protocols.messages.persisted import Saved
from protocols.peer.branches import fork_of
from protocols.state.log_applier import Logbook
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId

ASIDE = "unreadable"
"""Beneath it a log that was put aside, in a directory of its own."""
TERM_LEAP = 1024
"""The lost log may have promised something in later terms than the checkpoint knows: elections of
a run are few, and none of them comes so far."""


@dataclass(frozen=True, slots=True)
class Anew:
    """What would be done to one node's directory."""

    directory: Path
    why: str
    """What is wrong with its log."""
    _me: PeerId
    _book: Logbook
    """What the checkpoint says of the log."""
    _kept: Kept

    @property
    def others(self) -> list[str]:
        """Names of the other voters at the cut."""
        members = self._book.members
        infos = {**members.seats, **members.witnesses}
        voters = (voter for voter in members.voters if voter != self._me)
        return [infos[voter].name if voter in infos else voter for voter in voters]

    def lines(self) -> list[str]:
        """What happens and what is lost, for a person."""
        members, kept = self._book.members, self._kept
        round_, unit = kept.versions[0].round, "step" if members.stepwise else "round"
        return [
            f"{self.why}",
            f"{members.seats[self._me].name} begins another log at its checkpoint of {unit} "
            f"{round_} (inner step {kept.inner_step:,}, {kept.tokens:,} committed "
            f"{members.progress_unit})",
            f"no longer voters: {', '.join(self.others) or 'none'}",
            f"lost: what was committed after that {unit}; the samples of it are trained again",
            "also lost: revocations and spent tokens since then: revoke those peers again",
            f"the old log stays, in {self.directory / ASIDE}; a node that comes back gives up what "
            "it has and joins anew",
        ]

    def write(self) -> None:
        """Do it; what a crash leaves in between can be done again. Raises WalError, ConfigError."""
        _put_aside(self.directory)
        wal, _ = Wal.open(self.directory)
        with closing(wal):
            fork = fork_of(self._book.members, self._me, self._kept, lonely=False)
            # Drawn: the same checkpoint may be gone on from more than once.
            fork = replace(fork, fork=secrets.randbits(63) | 1, salt=secrets.randbits(64))
            seize(self.directory, wal, self._me, self._book, fork)


@contextmanager
def beginning_anew(directory: Path) -> Generator[Anew]:
    """For one node's directory, or the best one in a run's; holds it meanwhile.

    Raises ConfigError: the node runs, its log can be read, or it has nothing to go on from.
    """
    chosen = best_of(directory)
    with closing(NodeDirectory(chosen, remedy=STOPPED)) as node:
        record, why = node.read(), _why_unreadable(node.path)
        if record is None or not record.run:
            raise cannot(chosen, "it never was in a run")
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
            cut, _, _ = read_checkpoint(path)  # Each digest of its arrays, too.
            snapshot, term = read_log(path)
        except CheckpointError as error:
            raise cannot(chosen, str(error)) from error
        if cut.own.peer != me:
            raise cannot(chosen, f"its checkpoint is of {cut.own.peer}, and this node is {me}")
        book = read_log_of(me, Saved(term + TERM_LEAP, "", snapshot, ()), chosen)
        kept = startup.kept_in(cut)
        if me not in book.members.seats:
            raise cannot(chosen, "it had no place in the run yet")
        if not book.members.is_kept(kept.lineage, kept.versions):
            raise cannot(chosen, "its newest checkpoint is of a branch that the run has left")
        book.raft.disk.snapshot_taken(snapshot)
        yield Anew(chosen, why, me, book, kept)


def _why_unreadable(directory: Path) -> str:
    """ "": it can be read. Raises WalError: the disk refuses."""
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
        return  # It is gone, or was put there before a crash.
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
