"""What a node does before it takes part in the run: founds it, or checks the run that exists.

Both end with the outer state created and the ranks configured. Must NOT decide whether a run begins
(the core does), nor what a node remembers across restarts (startup/identity.py).
"""

import asyncio
import gc
from collections.abc import Sequence

from lowcomm.checkpoints.checkpoint import CHECKPOINTS
from lowcomm.config.schema import RunConfig, check_node
from lowcomm.data.corpus import build_corpus, manifest_digest
from lowcomm.outer_state.replica import Replica
from lowcomm.rank_control.context import DaemonContext
from lowcomm.rank_control.rank_control import RankControl
from lowcomm.startup import agreement, memory_budget, startup
from lowcomm.startup.admission import NodeAdmission
from lowcomm.startup.identity import RunningRecord
from peers.processes import available_memory_bytes
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.types import ConfigError, RefusedError, TensorSpec

REFUSING_S = 3.0
"""Seconds for which a failed founder still answers; joiners dial each second (REDIAL_DELAYS_S,
AGAIN_S)."""


async def found_run(
    context: DaemonContext, ranks: RankControl, record: RunningRecord, admission: NodeAdmission
) -> None:
    """Found the configured run with the initial state of this node's ranks. Raises ConfigError."""
    configured, program = context.run_config, record.record.command
    assert configured is not None
    run = context.run_config = configured.with_source("own" if program else "stdlib")
    check_node(run, context.config.node)
    if not run.data.has_text and not program:
        raise ConfigError(_no_text(run))
    me = context.core.me
    digest = await _corpus(context, run) if run.data.has_text else manifest_digest(())
    ranks.configure(run)
    layout, ranks.frozen = await ranks.initial_layout()
    _hold(context, ranks, run, layout)
    digests = await ranks.initial_state()
    run_id = startup.new_run_id()
    record.remember_run(run_id)
    agreed = await asyncio.to_thread(
        agreement.run_entry,
        run,
        run_id=run_id,
        founder=me.peer,
        corpus_digest=digest,
        layout=layout,
        frozen=ranks.frozen,
        root=admission.root,
    )
    context.driver.feed(agreement.accepted(run))
    context.driver.feed(v.Bootstrap(agreed, digests, admission.own))


async def enter_run(
    context: DaemonContext, ranks: RankControl, record: RunningRecord, run: e.Run
) -> None:
    """Check whether this node can take part in the run that it has read about, and prepare for it.
    Raises ConfigError and RefusedError."""
    known = record.record.run
    if known and known != run.run:
        raise RefusedError(
            f"{context.path} holds another run: give this node a "
            "directory of its own (--set node.directory=PATH)"
        )
    agreed = agreement.agreed_run(run, context.config.run)
    check_node(agreed, context.config.node)
    kept = await asyncio.to_thread(startup.own_rank_state, context.path)
    context.checkpoint_schedule.kept_rank_state = kept
    program = record.record.command
    if not agreed.data.has_text and not program:
        raise RefusedError(_no_text(agreed))
    # A program with a dataset of its own needs no folder of text.
    unused = agreed.data.source == "files" and program and not context.node.corpus
    uses_text = agreed.data.has_text and not unused
    if uses_text and await _corpus(context, agreed) != run.corpus_digest:
        raise RefusedError(
            "this node's text is not the run's (another Python version, or other files): "
            "every node needs the same bytes"
        )
    layout, ranks.frozen = await asyncio.to_thread(agreement.agreed_layout, run)
    context.run_config = agreed
    record.remember_run(run.run)
    _hold(context, ranks, agreed, layout)
    ranks.configure(agreed)
    context.driver.feed(agreement.accepted(agreed))


def _no_text(run: RunConfig) -> str:
    return (
        f"run.data.source is {run.data.source!r}, so this run has no text for the built-in "
        "program: start the node with a training program after --"
    )


def _hold(
    context: DaemonContext, ranks: RankControl, run: RunConfig, layout: Sequence[TensorSpec]
) -> None:
    """Create the outer state of the model. Before that, check that its memory fits: ConfigError,
    with the numbers."""
    driver, run_state = context.driver, context.core.run_state
    peers = max(run.peers_min, len(run_state.receivers) + 1)
    memory_budget.check_memory(
        startup.memory_needed(run, layout, peers=peers, joins=not context.founds),
        memory_max_bytes=context.node.memory_max_bytes,
        free_bytes=available_memory_bytes(),
    )
    context.replica = driver.data_plane.states = replica = startup.new_replica(run, layout)
    replica.checkpoints = context.path / CHECKPOINTS
    if isinstance(replica, Replica):
        driver.data_plane.work = replica
    else:
        driver.begin_steps(ranks.steps.make_orders(replica))
    context.event_log.write("layout", params=sum(replica.sizes))
    gc.freeze()  # These objects live on; each collection of them takes 20 to 50 ms.


async def _corpus(context: DaemonContext, run: RunConfig) -> str:
    """Build or reuse this node's copy of the text; return the digest of its manifest."""
    corpus = await asyncio.to_thread(
        build_corpus,
        run.data,
        folder=context.node.corpus,
        directory=context.corpus_directory,
    )
    return corpus.digest


async def refuse_joiners(context: DaemonContext, ending: c.Stop | None) -> None:
    """If this founder has failed before the run began, tell joiners the reason. No other peer knows
    it, and without it they would wait in vain."""
    core, mesh_shell = context.core, context.driver.mesh_shell
    if ending is None or ending.outcome != "failed" or core.raft.run:
        return
    context.event_log.note("founding", f"joiners are told that no run begins: {ending.why}")
    mesh_shell.refuse_all(f"{core.me.name} cannot begin the run: {ending.why}")
    await asyncio.sleep(REFUSING_S)
