"""How a run begins, is joined, or is taken up again: what the daemon needs before it may train.

Must NOT hold connections or processes: daemon.py does.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowcomm.checkpoint import newest_checkpoint, read_checkpoint
from lowcomm.checkpointer import CHECKPOINTS, RANK_STATES
from lowcomm.config import RunConfig, first_difference, run_from_json, run_to_json
from lowcomm.identity import Record
from lowcomm.methods import method
from lowcomm.methods.base import Method
from lowcomm.replica import Replica, fragment_elements
from protocols import entries as e
from protocols.errors import ConfigError, RefusedError
from protocols.ids import PeerId, PeerInfo, TensorSpec, Version


@dataclass(frozen=True, slots=True)
class Restored:
    """A run taken up from this node's newest complete checkpoint."""

    replica: Replica
    entry: e.Restore
    state_digests: tuple[str, ...]
    rank_state: Path


def new_run_id() -> int:
    """63 bits that no other run has; never 0."""
    return secrets.randbits(63) | 1


def run_entry(
    run: RunConfig, *, run_id: int, corpus_digest: str, layout: Sequence[TensorSpec]
) -> e.Run:
    """The log's first entry, from what the first peer typed and what its ranks reported."""
    made = method(run.method)
    return e.Run(
        run=run_id,
        run_json=run_to_json(run),
        corpus_digest=corpus_digest,
        peers_min=run.peers_min,
        outer_steps=run.outer_steps,
        grain=common_grain(made),
        layout=tuple(layout),
        fragment_elements=fragment_elements(layout),
    )


def common_grain(made: Method) -> int:
    """Part borders must suit both codecs."""
    grains = (made.contribution_codec.grain, made.result_codec.grain)
    return max(grains) if max(grains) % min(grains) == 0 else grains[0] * grains[1]


def agreed_run(entry: e.Run, mine: RunConfig | None) -> RunConfig:
    """The `[run]` that the log holds, if this node can take part in it.

    Raises RefusedError naming the first key that differs from what this node's file says.
    """
    try:
        agreed = run_from_json(entry.run_json)
    except ConfigError as error:
        raise RefusedError(f"this lowcomm cannot take part in the run: {error}") from error
    if mine is not None:
        difference = first_difference(json.loads(run_to_json(mine)), json.loads(entry.run_json))
        if difference:
            raise RefusedError(
                f"another configuration: {difference}; "
                "leave [run] out of this node's file to take the run's"
            )
    return agreed


def layout_difference(agreed: Sequence[TensorSpec], mine: Sequence[TensorSpec]) -> str:
    """Name the first parameter in which two models differ; "" when they are equal."""
    for theirs, ours in zip(agreed, mine, strict=False):
        if theirs != ours:
            return (
                f"parameter {ours.name} {list(ours.shape)} here is {theirs.name} "
                f"{list(theirs.shape)} in the run"
            )
    if len(agreed) != len(mine):
        return f"{len(mine)} parameters here, {len(agreed)} in the run"
    return ""


def restore(directory: Path, run: RunConfig, record: Record) -> Restored:
    """Load this node's newest complete checkpoint. Raises ConfigError when there is none."""
    path, skipped = newest_checkpoint(directory / CHECKPOINTS)
    if path is None:
        why = f" ({'; '.join(skipped)})" if skipped else ""
        raise ConfigError(
            f"{directory} holds no complete checkpoint{why}: nothing was committed before it "
            "stopped; start it anew"
        )
    cut, layout, arrays = read_checkpoint(path)
    specs = [
        TensorSpec(fragment, name, tuple(shape), offset)
        for fragment, tensors in enumerate(layout)
        for name, shape, offset in tensors
    ]
    replica = Replica(method(run.method), specs)
    digests = tuple(
        replica.restore(f, cut.fragments[f].version, pair.outer, pair.momentum)
        for f, pair in enumerate(arrays)
    )
    seat = PeerInfo(PeerId(cut.own.peer), record.name, record.incarnation, "", cut.own.data_slot)
    entry = e.Restore(
        parent_lineage=int(cut.lineage, 16),
        versions=tuple(Version(f, x.version, x.state_digest) for f, x in enumerate(cut.fragments)),
        inner_step=cut.fragments[0].inner_step,
        tokens=cut.fragments[0].tokens,
        seats=(seat,),
        salt=secrets.randbits(63),
    )
    return Restored(replica, entry, digests, directory / RANK_STATES / cut.own.rank_state)
