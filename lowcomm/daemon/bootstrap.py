"""What a node does before it takes part in the run: founds it, or checks the run that exists.

Both end with the outer state created and the ranks configured. Must NOT decide whether a run begins
(the core does), nor what a node remembers across restarts (startup/identity.py).
"""

import asyncio
import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from lowcomm.checkpoints.checkpoint import CHECKPOINTS
from lowcomm.config.schema import RunConfig, check_node
from lowcomm.data.build_progress import BuildProgress
from lowcomm.data.corpus import Corpus
from lowcomm.data.founded_corpus import make_founded
from lowcomm.data.joined_corpus import ExpectedCorpus, make_joined
from lowcomm.data.manifest import file_marks, manifest_digest
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
T = TypeVar("T")


async def found_run(
    context: DaemonContext, ranks: RankControl, record: RunningRecord, admission: NodeAdmission
) -> None:
    """Found the configured run with the initial state of this node's ranks. Raises ConfigError."""
    configured, program = context.run_config, record.record.command
    assert configured is not None
    run = configured.with_source("own" if program else "stdlib")
    check_node(run, context.config.node)
    if not run.data.has_corpus and not program:
        raise ConfigError(_no_text(run))
    make = partial(make_founded, run, context.node, directory=context.corpus_directory)
    run, corpus = await _built(context, make)
    _note_skipped(context, corpus)
    files = corpus.files if corpus else ()
    context.run_config, me = run, context.core.me
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
        corpus_digest=manifest_digest(files),
        corpus_files=file_marks(files),
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
    if not agreed.data.has_corpus and not program:
        raise RefusedError(_no_text(agreed))
    if agreed.data.has_corpus:
        await _join_corpus(context, agreed, run, program=bool(program))
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


async def _join_corpus(
    context: DaemonContext, agreed: RunConfig, run: e.Run, *, program: bool
) -> None:
    """Make this node's copy of the corpus, and compare it: RefusedError if it is another one. With
    a program of its own, which may use other data, only if the node has a `node.corpus`; and if it
    is another one, a rank that uses it says so."""
    me = context.core.me
    expected = ExpectedCorpus(run.corpus_digest, run.corpus_files.hex(), me.name)
    if program:
        expected.note(context.corpus_directory)
        if not context.node.corpus:
            return  # A rank makes it if it uses the text: of the standard library, in no time.
    make = partial(
        make_joined, agreed.data, context.node, expected, directory=context.corpus_directory
    )
    try:
        # Not in a rank: it may take longer than a first step, and a rank shows no progress.
        corpus = await _built(context, lambda progress: make(progress=progress))
    except (ConfigError, RefusedError) as error:
        if not program:
            raise
        context.event_log.note("corpus", f"the program cannot use the run's text: {error}")
        return
    _note_skipped(context, corpus)


async def _built(context: DaemonContext, build: Callable[[BuildProgress], T]) -> T:
    """The result of `build`, which runs in another thread and writes into the node's directory. If
    this task is cancelled, it waits for the thread: afterwards another daemon may lock the
    directory."""
    loop, note = asyncio.get_running_loop(), context.event_log.note
    progress = BuildProgress(lambda text: loop.call_soon_threadsafe(note, "corpus", text))
    thread = loop.run_in_executor(None, build, progress)
    try:
        return await asyncio.shield(thread)
    finally:
        progress.request_stop()
        await asyncio.wait([thread])


def _note_skipped(context: DaemonContext, corpus: Corpus | None) -> None:
    if corpus is not None and corpus.skipped:
        text = f"{corpus.skipped} files of {context.node.corpus} are no text: skipped"
        context.event_log.note("corpus", text)


async def refuse_joiners(context: DaemonContext, ending: c.Stop | None) -> None:
    """If this founder has failed before the run began, tell joiners the reason. No other peer knows
    it, and without it they would wait in vain."""
    core, mesh_shell = context.core, context.driver.mesh_shell
    if ending is None or ending.outcome != "failed" or core.raft.run:
        return
    context.event_log.note("founding", f"joiners are told that no run begins: {ending.why}")
    mesh_shell.refuse_all(f"{core.me.name} cannot begin the run: {ending.why}")
    await asyncio.sleep(REFUSING_S)
