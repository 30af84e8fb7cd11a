"""Functions with which a daemon founds a run, joins one, or goes on in one after a restart.

Must NOT hold connections or processes (daemon/daemon.py).
"""

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    CheckpointCut,
    newest_checkpoint,
    read_cut,
)
from lowcomm.checkpoints.rank_states import RANK_STATES, newest_rank_state
from lowcomm.config.schema import (
    FileConfig,
    RunConfig,
)
from lowcomm.methods import StepMethod
from lowcomm.numerics.arrays import LargeArrays
from lowcomm.outer_state.replica import Replica
from lowcomm.outer_state.step_replica import (
    StepReplica,
    file_bytes_for_steps,
    needed_for_steps,
)
from lowcomm.startup.identity import NodeDirectory, NodeRecord, new_peer_id, node_name, read_record
from lowcomm.startup.memory_budget import file_bytes, needed_bytes
from peers.security import KeySignatures
from peers.storage import FILE as WAL_FILE
from peers.storage import UntrustedError, Wal
from protocols.messages import Kept, Saved
from protocols.state import LogApplier
from protocols.types import (
    ConfigError,
    LogError,
    PeerId,
    TensorSpec,
    Version,
)
from protocols.wire import WireError, decode_image

DROPPED = "dropped"
"""The directory, in a node's directory, for files of branches that were given up."""


def new_run_id() -> int:
    """A random number of 63 bits that names a run; never 0."""
    return secrets.randbits(63) | 1


def open_log(directory: Path) -> tuple[Wal, Saved | None]:
    """Open the log as `Wal.open` does, and check that its snapshot can be decoded too. The message
    of an UntrustedError ends with the way to go on."""
    try:
        wal, saved = Wal.open(directory)
        if saved is not None and saved.snapshot is not None:
            try:
                decode_image(saved.snapshot.image)
            except WireError as error:
                wal.close()
                raise UntrustedError(
                    f"cannot trust {directory / WAL_FILE}: its snapshot: {error}"
                ) from error
    except UntrustedError as error:
        raise UntrustedError(f"{error}; {_way_on(directory)}") from error
    return wal, saved


def _way_on(directory: Path) -> str:
    """Instructions for a log that cannot be read; none of them deletes anything."""
    join = "join them from another directory (--set node.directory=PATH)"
    path, _ = newest_checkpoint(directory / CHECKPOINTS)
    if path is None:
        return f"there is no complete checkpoint here, so where others of the run go on, {join}"
    return (
        f"{path.name} is complete: begin another log there (lowcomm recover --from-checkpoint "
        f"{directory}), or, where others of the run go on, {join}"
    )


def new_record(
    directory: NodeDirectory,
    config: FileConfig,
    *,
    knows_log: bool,
    join: str,
    command: tuple[str, ...] = (),
    witness: bool = False,
) -> NodeRecord:
    """The record of the next incarnation of this directory's peer.

    If its run's log is gone, it becomes a new peer: the earlier one may have voted, or acknowledged
    entries, in that log.
    """
    old = directory.read()
    if old is not None and old.run and not knows_log:
        old = None
    name = node_name(config.node.name)
    return NodeRecord(
        peer=old.peer if old else new_peer_id(name),
        name=name,
        incarnation=old.incarnation + 1 if old else 1,
        run=old.run if old else 0,
        join=join,
        config=json.dumps(asdict(config)),
        command=command,
        witness=witness,
        pid=os.getpid(),
    )


def set_aside(directory: Path) -> Path:
    """Move the log and the checkpoints of a branch that was given up to DROPPED; return the
    directory.

    Without its log this node becomes a new peer: it must never seem to be a voter of that branch.
    """
    record = read_record(directory)
    place = directory / DROPPED / (record.peer if record else "unknown")
    place.mkdir(parents=True, exist_ok=True)
    for name in (CHECKPOINTS, RANK_STATES, WAL_FILE):  # The log last: it completes the move.
        if (directory / name).exists():
            (directory / name).rename(_free(place / name))
    return place


def _free(path: Path) -> Path:
    """This path, or one beside it if there is something: of a move that a crash interrupted, after
    which the node went on in that branch."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def new_replica(
    run: RunConfig, layout: Sequence[TensorSpec], directory: Path | None = None
) -> Replica | StepReplica:
    """Create the daemon's part of the run's state, in memory or in files of this directory. Raises
    LayoutError, and OSError if the disk refuses."""
    arrays = LargeArrays(directory)
    if isinstance(run.method, StepMethod):
        return StepReplica(run.method, layout, seed=run.seed, arrays=arrays)
    return Replica(run.method, layout, arrays)


def memory_needed(
    run: RunConfig, layout: Sequence[TensorSpec], *, peers: int, joins: bool, in_file: bool = False
) -> int:
    """Bytes of memory that the daemon needs for this model in a run of so many peers. `joins`: this
    node gets the state from other peers; `in_file`: node.outer_state is "file"."""
    if isinstance(run.method, StepMethod):
        return needed_for_steps(run.method, layout, peers_min=run.peers_min, in_file=in_file)
    return needed_bytes(layout, run.method, peers=peers, joins=joins, in_file=in_file)


def disk_needed(run: RunConfig, layout: Sequence[TensorSpec]) -> int:
    """Bytes of disk that the daemon needs for this model if node.outer_state is "file"."""
    if isinstance(run.method, StepMethod):
        return file_bytes_for_steps(run.method, layout)
    return file_bytes(layout, run.method)


def own_rank_state(directory: Path) -> Path | None:
    """The directory of rank state that fits this node's newest complete checkpoint; None if there
    is none. If not all ranks wrote theirs at that round, it is the last one before."""
    path, _ = newest_checkpoint(directory / CHECKPOINTS)
    name = read_cut(path).own.rank_state if path is not None else ""
    return newest_rank_state(directory, name)


def kept(directory: Path, *, alone: Saved | None = None) -> tuple[Kept | None, tuple[str, ...]]:
    """The content of this node's newest complete checkpoint, and why newer ones are not usable.

    `alone`: the log of a node that has no address of other nodes. Raises ConfigError if it was the
    only member of its run and no checkpoint is left, since no peer could give it the state.
    """
    path, skipped = newest_checkpoint(directory / CHECKPOINTS)
    if path is None:
        if alone is not None:
            _check_company(directory, alone, skipped)
        return None, tuple(skipped)
    return kept_in(read_cut(path)), tuple(skipped)


def _check_company(directory: Path, saved: Saved, skipped: Sequence[str]) -> None:
    record = read_record(directory)
    me = PeerId(record.peer if record is not None else "")
    try:
        run_state = whole_log(me, saved).run_state
    except LogError:
        return  # The core reports the error later.
    if run_state.run is None or set(run_state.members) - {me}:
        return
    damaged = f" ({'; '.join(skipped)})" if skipped else ""
    done = run_state.committed(0)
    lost = f"{done} committed rounds are" if done else "nothing was committed, so only its start is"
    raise ConfigError(
        f"the state of the run in {directory} is lost: this node was the only one, and it has no "
        f"complete checkpoint{damaged}; {lost} lost. Put {directory / CHECKPOINTS} back, or begin "
        "a new run in another directory (`lowcomm peer FILE --new`)"
    )


def whole_log(me: PeerId, saved: Saved) -> LogApplier:
    """Apply all entries of a log, committed or not. Raises LogError."""
    log_applier = LogApplier(me, saved, KeySignatures())
    apply_all(log_applier)
    return log_applier


def apply_all(log_applier: LogApplier) -> None:
    """Apply the entries of a log that are not applied yet, committed or not. Raises LogError."""
    raft = log_applier.raft
    raft.commit_index = raft.log.last_index
    while log_applier.next_entry() is not None:
        pass


def last_voters(directory: Path) -> tuple[PeerId, ...]:
    """The voters of the run by the log of a node that does not run; none if the log is empty.
    Raises WalError and LogError."""
    record = read_record(directory)
    wal, saved = open_log(directory)
    wal.close()
    if record is None or saved is None:
        return ()
    return tuple(whole_log(PeerId(record.peer), saved).run_state.voters)


def kept_in(cut: CheckpointCut) -> Kept:
    """The part of a checkpoint's cut that is reported to other peers."""
    versions = tuple(Version(f, x.version, x.state_digest) for f, x in enumerate(cut.fragments))
    anchor = cut.fragments[0]
    counters = (anchor.inner_step, anchor.tokens)
    return Kept(int(cut.lineage, 16), versions, *counters, cut.remaining)
