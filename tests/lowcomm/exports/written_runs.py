"""Directories of runs with checkpoints, as daemons leave them.

Must NOT hold tests.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import numpy as np

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    CheckpointCut,
    FragmentCut,
    PeerCut,
    pack_log,
    write_checkpoint,
)
from lowcomm.config.schema import FileConfig, ModelConfig, NodeConfig, RunConfig
from lowcomm.models.shapes import llama_shapes
from lowcomm.numerics.operations import F32
from lowcomm.numerics.state_digests import state_digest
from lowcomm.startup.agreement import run_entry
from lowcomm.startup.identity import RECORD, NodeRecord
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.peer.core import PeerCore
from protocols.types.ids import FrozenTensor, PeerId, TensorSpec

MODEL = ModelConfig(hidden_size=32, layers=2, heads=4, kv_heads=2, intermediate_size=48)
TOKENS = 1000
"""Committed tokens of a round."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a node wrote: the shapes of its tensors, its configuration and its program. `tokenizer`:
    its `node.tokenizer`."""

    run: RunConfig
    shapes: dict[str, tuple[int, ...]]
    command: tuple[str, ...] = ()
    tokenizer: str = ""
    frozen: tuple[FrozenTensor, ...] = ()

    @property
    def specs(self) -> list[TensorSpec]:
        """The tensors, alternately in two fragments."""
        ends, specs = [0, 0], list[TensorSpec]()
        for number, (name, shape) in enumerate(self.shapes.items()):
            specs.append(TensorSpec(number % 2, name, shape, ends[number % 2]))
            ends[number % 2] += prod(shape)
        return specs

    @property
    def sizes(self) -> list[int]:
        return [sum(x.elements for x in self.specs if x.fragment == f) for f in (0, 1)]


def built_in(model: ModelConfig = MODEL) -> Written:
    return Written(run=RunConfig(model=model), shapes=llama_shapes(model))


def write_node(
    directory: Path, written: Written, rounds: Sequence[int] = (3,), *, tokens: int = TOKENS
) -> Path:
    """A node's directory with a checkpoint of each of these rounds; the path of the last one."""
    name = directory.name
    peer = PeerId(f"{name}.00000001")
    node = NodeConfig(tokenizer=written.tokenizer)
    config = json.dumps(asdict(FileConfig(run=written.run, node=node)))
    record = NodeRecord(
        peer=peer, name=name, incarnation=1, run=1, config=config, command=written.command
    )
    directory.mkdir(parents=True)
    (directory / RECORD).write_text(json.dumps(asdict(record)), encoding="utf-8")
    paths = [
        write_round(directory / CHECKPOINTS, written, round_, peer=peer, tokens=tokens * round_)
        for round_ in rounds
    ]
    return paths[-1]


def write_round(
    directory: Path, written: Written, round_: int, *, peer: PeerId, tokens: int
) -> Path:
    outer = [values(round_ + fragment, size) for fragment, size in enumerate(written.sizes)]
    momentum = [np.zeros(size, np.float32) for size in written.sizes]
    cut = CheckpointCut(
        log_index=9,
        lineage="0" * 16,
        run_digest="0" * 16,
        fragments=tuple(
            FragmentCut(
                version=round_,
                inner_step=10 * round_,
                tokens=tokens,
                state_digest=state_digest(*pair),
            )
            for pair in zip(outer, momentum, strict=True)
        ),
        own=PeerCut(peer=peer, incarnation=1, data_slot=0, rank_state=""),
    )
    layout = [
        [(x.name, x.shape, x.offset) for x in written.specs if x.fragment == fragment]
        for fragment in (0, 1)
    ]
    return write_checkpoint(directory, cut, layout, outer, momentum, log=log_of(written, peer))


def values(seed: int, size: int) -> F32:
    return np.float32(0.1) * np.random.default_rng(seed).standard_normal(size, np.float32)


def log_of(written: Written, peer: PeerId) -> bytes:
    """The state of the log of a run that has just begun."""
    core = PeerCore(
        Identity(peer=peer, name="alpha", incarnation=1, address="127.0.0.1:1"), join=False
    )

    def hear(event: v.Event) -> None:
        for command in core.handle(event, 0.0):
            if isinstance(command, c.Persist):
                hear(v.Persisted(command.write_number))

    entry = run_entry(
        written.run,
        run_id=9,
        founder=peer,
        corpus_digest="c" * 64,
        layout=written.specs,
        frozen=written.frozen,
    )
    hear(v.RunAccepted(written.run.protocol))
    hear(v.Bootstrap(entry, ("0" * 32, "0" * 32)))
    return pack_log(core.log_applier.snapshot(), core.raft.term)
