"""The run that all peers agree on: the first entry of its log, from a configuration and back.

Must NOT read or write a file, nor hold connections or processes.
"""

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from lowcomm.config.round_length import longest_round, planned_rounds
from lowcomm.config.schema import (
    RunConfig,
    first_difference,
    run_from_json,
    run_to_json,
)
from lowcomm.methods import RoundMethod, StepMethod
from lowcomm.outer_state.fragment_layout import LayoutError, fragment_elements
from protocols.interface import events as v
from protocols.messages import Saved
from protocols.messages import log_entries as e
from protocols.types import (
    SAMPLES_MAX,
    ConfigError,
    FrozenTensor,
    LogError,
    PeerId,
    ProtocolConfig,
    RefusedError,
    TensorSpec,
)
from protocols.wire import (
    WireError,
    codec,
    pack_frozen,
    pack_layout,
    split_layout,
    unpack_frozen,
    unpack_layout,
)

INTERVALS_AHEAD = 8
"""Samples are leased for so many rounds. So they last while there is no leader, and the log gets
one entry in four rounds. If a node leaves, other nodes train its leased samples later."""


def run_entry(
    run: RunConfig,
    *,
    run_id: int,
    founder: PeerId,
    corpus_digest: str,
    corpus_files: bytes = b"",
    layout: Sequence[TensorSpec],
    frozen: Sequence[FrozenTensor] = (),
    root: str = "",
) -> e.Run:
    """The log's first entry, from the founder's configuration, and the layout and frozen tensors
    that its ranks reported. `corpus_files`: marks of the corpus's files. `root`: the run's root
    key; "": not encrypted.

    Raises ConfigError, which names the value, if one does not fit into an entry of the log.
    """
    grain = common_grain(run.method) if isinstance(run.method, RoundMethod) else 1
    commit_every_steps, snapshot_every_steps = rhythm(run)
    entry = e.Run(
        run=run_id,
        run_json=run_to_json(run.for_joiners()),
        corpus_digest=corpus_digest,
        peers_min=run.peers_min,
        outer_steps=planned_rounds(run),
        grain=grain,
        layout=pack_layout(layout) + pack_frozen(frozen),
        fragment_elements=fragment_elements(layout),
        founder=founder,
        commit_every_steps=commit_every_steps,
        snapshot_every_steps=snapshot_every_steps,
        gossip=is_gossip(run),
        asks=asks(run),
        root=root,
        voters_issue=run.tokens == "voters",
        voters_revoke=run.revocations == "voters",
        voters_steer=run.steering == "voters",
        corpus_files=corpus_files,
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


def common_grain(method: RoundMethod) -> int:
    """The least common multiple, in elements, to which part borders are rounded: of the grains of
    both codecs and of the aggregate."""
    codecs = (method.codec, method.mean_codec or method.codec)
    return math.lcm(method.aggregate_grain, *(each.grain for each in codecs))


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
    for key, voters, text in (
        ("tokens", entry.voters_issue, agreed.tokens),
        ("revocations", entry.voters_revoke, agreed.revocations),
        ("steering", entry.voters_steer, agreed.steering),
    ):
        if voters != (text == "voters"):
            raise RefusedError(
                f"the run's log and its configuration disagree about run.{key}: {text}"
            )
    if mine is not None:
        mine = mine.for_joiners().with_data_of(agreed)
        difference = first_difference(json.loads(run_to_json(mine)), json.loads(entry.run_json))
        if difference:
            raise RefusedError(
                f"another configuration: {difference}; "
                "leave [run] out of this node's file to take the run's"
            )
    return agreed


def agreed_layout(entry: e.Run) -> tuple[tuple[TensorSpec, ...], tuple[FrozenTensor, ...]]:
    """The layout of the parameters in the log's first entry, and the frozen tensors; 100,000 of
    them take about 0.3 s of CPU.

    Raises RefusedError if it is inconsistent.
    """
    try:
        packed, others = split_layout(entry.layout)
        layout, frozen = unpack_layout(packed), unpack_frozen(others)
        sizes = fragment_elements(layout)
    except (WireError, LayoutError) as error:
        raise RefusedError(f"this lowcomm cannot take part in the run: {error}") from error
    if sizes != entry.fragment_elements:
        raise RefusedError(
            f"the run's layout has fragments of {list(sizes)} elements, but its log says "
            f"{list(entry.fragment_elements)}"
        )
    return layout, frozen


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


class Demand(NamedTuple):
    """The samples that the ranks of one node draw."""

    step_samples: int
    """Samples of an inner step."""
    ahead: int = 0
    """Samples that a loader draws before their steps."""


def interval_samples(run: RunConfig, steps: int, demand: Demand | None = None) -> int:
    """Number of samples that the ranks of a node draw between two anchor results that are `steps`
    inner steps apart, plus those drawn since they contributed to the first of them (overlap), and
    those that a loader draws ahead. `demand` None: a batch in each step. None of private data."""
    assert isinstance(run.method, RoundMethod)
    if not run.data.is_leased:
        return 0
    step_samples, ahead = demand or Demand(run.data.batch)
    return (steps + run.method.overlap_steps) * step_samples + ahead


def accepted(run: RunConfig, demand: Demand | None = None) -> v.RunAccepted:
    """The event that this node takes part, with the number of samples to lease. A stepwise run
    or one of private data leases none."""
    if isinstance(run.method, StepMethod) or not run.data.is_leased:
        return v.RunAccepted(run.protocol, 0)
    most = interval_samples(run, longest_round(run), demand)
    return v.RunAccepted(run.protocol, min(INTERVALS_AHEAD * most, 4 * SAMPLES_MAX))


Model = tuple[Sequence[TensorSpec], Sequence[FrozenTensor]]
"""The exchanged parameters of a model, and its frozen tensors."""


def model_difference(agreed: Model, mine: Model) -> str:
    """The first tensor in which two models differ, for a person; "" if they are equal."""
    names = [[{each.name for each in tensors} for tensors in model] for model in (agreed, mine)]
    (trained, frozen), (my_trained, my_frozen) = names
    if both := sorted(trained & my_frozen):
        return f"parameter {both[0]} is frozen here, and trained in the run"
    if both := sorted(frozen & my_trained):
        return f"parameter {both[0]} is trained here, and frozen in the run"
    return layout_difference(agreed[0], mine[0]) or _frozen_difference(agreed[1], mine[1])


def _frozen_difference(agreed: Sequence[FrozenTensor], mine: Sequence[FrozenTensor]) -> str:
    theirs, ours = ({each.name: each for each in tensors} for tensors in (agreed, mine))
    for name, tensor in ours.items():
        other = theirs.get(name)
        if other is None:
            return f"frozen parameter {name} here is not in the run"
        if other[:3] != tensor[:3]:
            return (
                f"frozen parameter {name} is {tensor.type} {list(tensor.shape)} here, and "
                f"{other.type} {list(other.shape)} in the run"
            )
        if other.digest != tensor.digest:
            return (
                f"frozen parameter {name} has another content here "
                f"({tensor.digest:08x}) than in the run ({other.digest:08x}): every node needs "
                "the same base"
            )
    missing = next((name for name in theirs if name not in ours), None)
    return "" if missing is None else f"frozen parameter {missing} of the run is not here"


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


def _described(tensor: TensorSpec) -> str:
    """Text such as "lm_head.weight [256, 64] (fragment 0, element 4096)"."""
    place = f"fragment {tensor.fragment}, element {tensor.offset}"
    kind = "" if tensor.kind == "parameter" else f"{tensor.kind} "
    return f"{tensor.name} {list(tensor.shape)} ({kind}{place})"
