"""Functions with which a daemon founds a run, joins one, or goes on in one after a restart.

Must NOT hold connections or processes (daemon/daemon.py).
"""

import json
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    RANK_STATES,
    Cut,
    newest_checkpoint,
    read_cut,
)
from lowcomm.config.round_length import longest_round, planned_rounds
from lowcomm.config.schema import (
    FileConfig,
    RunConfig,
    first_difference,
    run_from_json,
    run_to_json,
)
from lowcomm.methods import RoundMethod, StepMethod
from lowcomm.outer_state.fragment_layout import LayoutError, fragment_elements
from lowcomm.outer_state.replica import Replica
from lowcomm.outer_state.step_replica import StepReplica, needed_for_steps
from lowcomm.startup.identity import NodeDirectory, NodeRecord, new_peer_id, node_name, read_record
from lowcomm.startup.memory_budget import needed_bytes
from peers.storage import FILE as WAL_FILE
from peers.storage import UntrustedError, Wal
from protocols.interface import events as v
from protocols.messages import Kept, Saved
from protocols.messages import log_entries as e
from protocols.state import LogApplier
from protocols.types import (
    SAMPLES_MAX,
    ConfigError,
    LogError,
    PeerId,
    ProtocolConfig,
    RefusedError,
    TensorSpec,
    Version,
)
from protocols.wire import WireError, codec, decode_image, pack_layout, unpack_layout

DROPPED = "dropped"
"""The directory, in a node's directory, for files of branches that were given up."""
INTERVALS_AHEAD = 8
"""Samples are leased for so many rounds. So they last while there is no leader, and the log gets
one entry in four rounds. If a node leaves, other nodes train its leased samples later."""


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
            (directory / name).rename(place / name)
    return place


def run_entry(
    run: RunConfig,
    *,
    run_id: int,
    founder: PeerId,
    corpus_digest: str,
    layout: Sequence[TensorSpec],
    root: str = "",
) -> e.Run:
    """The log's first entry, from the founder's configuration and the layout that its ranks
    reported. `root`: the run's root key; "": not encrypted.

    Raises ConfigError, which names the value, if one does not fit into an entry of the log.
    """
    grain = common_grain(run.method) if isinstance(run.method, RoundMethod) else 1
    commit_every_steps, snapshot_every_steps = rhythm(run)
    entry = e.Run(
        run=run_id,
        run_json=run_to_json(run),
        corpus_digest=corpus_digest,
        peers_min=run.peers_min,
        outer_steps=planned_rounds(run),
        grain=grain,
        layout=pack_layout(layout),
        fragment_elements=fragment_elements(layout),
        founder=founder,
        commit_every_steps=commit_every_steps,
        snapshot_every_steps=snapshot_every_steps,
        gossip=is_gossip(run),
        asks=asks(run),
        root=root,
        voters_issue=run.tokens == "voters",
    )
    try:
        codec.readable_bytes(e.LogEntry(1, 1, entry))
    except LogError as error:
        raise ConfigError(f"this run cannot begin: {error}") from error
    return entry


def is_gossip(run: RunConfig) -> bool:
    """Whether nodes exchange in pairs, each with a state of its own."""
    return isinstance(run.method, RoundMethod) and not run.method.replicas_equal


def asks(run: RunConfig) -> bool:
    """Whether the leader asks late peers to contribute the steps that they have made so far."""
    return isinstance(run.method, RoundMethod) and run.method.answers


def rhythm(run: RunConfig) -> tuple[int, int]:
    """(steps between two commits, steps between two copies of the state); (0, 0) in a run of
    rounds."""
    method = run.method
    if isinstance(method, RoundMethod):
        return 0, 0
    return method.commit_every_steps, method.snapshot_every_steps


def new_replica(run: RunConfig, layout: Sequence[TensorSpec]) -> Replica | StepReplica:
    """Create the daemon's part of the run's state. Raises LayoutError."""
    if isinstance(run.method, StepMethod):
        return StepReplica(run.method, layout, seed=run.seed)
    return Replica(run.method, layout)


def common_grain(method: RoundMethod) -> int:
    """The least common multiple, in elements, to which part borders are rounded: of the grains of
    both codecs and of the aggregate."""
    codecs = (method.codec, method.mean_codec or method.codec)
    return math.lcm(method.aggregate_grain, *(each.grain for each in codecs))


def memory_needed(run: RunConfig, layout: Sequence[TensorSpec], *, peers: int, joins: bool) -> int:
    """Bytes that the daemon needs for this model in a run of so many peers. `joins`: this node gets
    the state from other peers."""
    if isinstance(run.method, StepMethod):
        return needed_for_steps(run.method, layout, peers_min=run.peers_min)
    return needed_bytes(layout, run.method, peers=peers, joins=joins)


def agreed_run(entry: e.Run, mine: RunConfig | None) -> RunConfig:
    """The `[run]` of the log's first entry. `mine`: that of this node's own file, if it has one.

    Raises RefusedError if this node cannot take part, with the first key in which its file differs.
    """
    try:
        agreed = run_from_json(entry.run_json)
    except ConfigError as error:
        raise RefusedError(f"this lowcomm cannot take part in the run: {error}") from error
    said = (entry.commit_every_steps, entry.snapshot_every_steps)
    if said != rhythm(agreed):
        raise RefusedError(
            f"the run commits and copies its state every {said} steps, but its configuration says "
            f"{rhythm(agreed)}"
        )
    if entry.gossip != is_gossip(agreed):
        raise RefusedError(
            f"the run's method is {agreed.method.name}, but its nodes exchange "
            f"{'in pairs' if entry.gossip else 'with all'}"
        )
    if entry.asks != asks(agreed):
        raise RefusedError(
            f"the run's log and its method disagree: method {agreed.method.name} "
            f"{'asks' if asks(agreed) else 'does not ask'} stragglers to contribute early, the log "
            f"{'does' if entry.asks else 'does not'}"
        )
    if entry.voters_issue != (agreed.tokens == "voters"):
        raise RefusedError(
            f"the run's log and its configuration disagree about run.tokens: {agreed.tokens}"
        )
    if mine is not None:
        difference = first_difference(json.loads(run_to_json(mine)), json.loads(entry.run_json))
        if difference:
            raise RefusedError(
                f"another configuration: {difference}; "
                "leave [run] out of this node's file to take the run's"
            )
    return agreed


def agreed_layout(entry: e.Run) -> tuple[TensorSpec, ...]:
    """The layout of the parameters in the log's first entry; 100,000 of them take about 0.3 s of
    CPU.

    Raises RefusedError if it is inconsistent.
    """
    try:
        layout = unpack_layout(entry.layout)
        sizes = fragment_elements(layout)
    except (WireError, LayoutError) as error:
        raise RefusedError(f"this lowcomm cannot take part in the run: {error}") from error
    if sizes != entry.fragment_elements:
        raise RefusedError(
            f"the run's layout has fragments of {list(sizes)} elements, but its log says "
            f"{list(entry.fragment_elements)}"
        )
    return layout


def known_rules(saved: Saved | None) -> ProtocolConfig | None:
    """The timing rules of the run in a restarted node's log; None if they are not known. With the
    default rules the node might start elections too early, or fork a run that has a
    longer `lonely_after_s`."""
    first = saved.entries[0].body if saved is not None and saved.entries else None
    if not isinstance(first, e.Run):
        return None  # The run is in the snapshot; the core checks it before anything else.
    try:
        return run_from_json(first.run_json).protocol
    except ConfigError:
        return None  # `agreed_run` reports the error later.


def interval_samples(run: RunConfig, steps: int) -> int:
    """Number of samples that the ranks of a node draw between two anchor results that are `steps`
    inner steps apart, plus those drawn since they contributed to the first of them (overlap)."""
    assert isinstance(run.method, RoundMethod)
    return (steps + run.method.overlap_steps) * run.data.batch


def accepted(run: RunConfig) -> v.RunAccepted:
    """The event that this node takes part, with the number of samples to lease. A stepwise run
    leases none."""
    if isinstance(run.method, StepMethod):
        return v.RunAccepted(run.protocol, 0)
    most = interval_samples(run, longest_round(run))
    return v.RunAccepted(run.protocol, min(INTERVALS_AHEAD * most, 4 * SAMPLES_MAX))


def layout_difference(agreed: Sequence[TensorSpec], mine: Sequence[TensorSpec]) -> str:
    """The first parameter in which two models differ, for a person; "" if they are equal."""
    for theirs, ours in zip(agreed, mine, strict=False):
        if theirs != ours:
            return f"parameter {_described(ours)} here is {_described(theirs)} in the run"
    shared = min(len(agreed), len(mine))
    if len(mine) > shared:
        return f"parameter {_described(mine[shared])} here is not in the run"
    if len(agreed) > shared:
        return f"parameter {_described(agreed[shared])} of the run is not here"
    return ""


def own_rank_state(directory: Path) -> Path | None:
    """The directory of rank state that fits this node's newest complete checkpoint; None if there
    is none. If the ranks did not write one at that round, it is the last one before."""
    path, _ = newest_checkpoint(directory / CHECKPOINTS)
    name = read_cut(path).own.rank_state if path is not None else ""
    written = [each for each in (directory / RANK_STATES).glob("round-*") if each.name <= name]
    return max(written, default=None)


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
    log_applier = LogApplier(me, saved)
    log_applier.raft.commit_index = log_applier.raft.log.last_index
    while log_applier.next_entry() is not None:
        pass
    return log_applier


def kept_in(cut: Cut) -> Kept:
    """The part of a checkpoint's cut that is reported to other peers."""
    versions = tuple(Version(f, x.version, x.state_digest) for f, x in enumerate(cut.fragments))
    anchor = cut.fragments[0]
    counters = (anchor.inner_step, anchor.tokens)
    return Kept(int(cut.lineage, 16), versions, *counters, cut.remaining)


def _described(tensor: TensorSpec) -> str:
    """Text such as "lm_head.weight [256, 64] (fragment 0, element 4096)"."""
    place = f"fragment {tensor.fragment}, element {tensor.offset}"
    return f"{tensor.name} {list(tensor.shape)} ({place})"
