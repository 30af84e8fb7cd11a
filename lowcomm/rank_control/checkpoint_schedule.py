"""Schedules this node's checkpoints, and writes them without delaying rounds.

A job in the worker thread lends the state between two rounds; as long as it is lent, later rounds
write to other memory. A thread of its own writes the files while training goes on. Must NOT decide
the format of a checkpoint (checkpoints/checkpoint.py).
"""

import asyncio
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    CheckpointCut,
    CheckpointError,
    FragmentCut,
    Layout,
    PeerCut,
    pack_log,
    prune,
    read_cut,
    write_checkpoint,
)
from lowcomm.checkpoints.rank_states import RANK_STATES, newest_rank_state, round_of
from lowcomm.checkpoints.residue_file import write_residues
from lowcomm.config.schema import NodeConfig
from lowcomm.outer_state.replica import Replica
from lowcomm.outer_state.state_moment import Moment
from lowcomm.outer_state.step_replica import StepReplica
from protocols.peer import PeerCore
from protocols.state import RunState, progress_at, remaining_at
from protocols.types import Remaining, Version

T = TypeVar("T")


class Compute(Protocol):
    """Driver.compute: run `work` in the worker thread, in order; then `done` in the event loop,
    before the next job."""

    def __call__(self, work: Callable[[], T], done: Callable[[T], None], /) -> None: ...


@dataclass(slots=True)
class RequestedCheckpoint:
    """A checkpoint that a person asked for."""

    version: int
    """The round (in a stepwise run, the step) of its state, at least."""
    begun: int = 0
    """The version that is being written, or is written; 0: none yet."""
    path: Path | None = None
    """The complete checkpoint."""
    why: str = ""
    """Why it could not be written."""


def complain(why: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"lowcomm: {why}\n")


class CheckpointSchedule:
    """The checkpoints of one daemon. At most one is being written at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        node: NodeConfig,
        compute: Compute,
        written: Callable[[Path, CheckpointCut], None],
        failed: Callable[[str], None] = complain,
    ) -> None:
        """`written` and `failed` are called in the event loop's thread: with the path and the cut
        of a complete checkpoint, or with the reason why none was written. The run goes on either
        way, for example when the disk is full."""
        self.kept_rank_state: Path | None = None
        """In a run of rounds, the directory to which all ranks last wrote their state, in this
        process or an earlier one; None: there is none. New ranks start from it."""
        self._directory = directory
        self._node = node
        self._compute = compute
        self._written = written
        self._failed = failed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.requested: RequestedCheckpoint | None = None
        """The last one that a person asked for."""
        self._last_round = -1
        self._life = 0
        """Number of rollbacks so far. A checkpoint that is being written during one is deleted."""
        self._borrowing = False
        self._pending: asyncio.Future[None] | None = None

    def is_due(self, round_: int) -> bool:
        """Whether a checkpoint is due after this round. Ranks write their own state at the same
        rounds, so that the two fit together."""
        return round_ > 0 and (self.is_regular(round_) or self.is_requested(round_))

    def is_regular(self, number: int) -> bool:
        """Whether a checkpoint is made of this round, or of this copy of a stepwise run, without a
        request."""
        return number > 0 and number % self._node.checkpoint_every_rounds == 0

    def is_requested(self, version: int) -> bool:
        """Whether a person asked for a checkpoint of this round, or step, or of an earlier one that
        none was made of."""
        asked = self.requested
        return asked is not None and version >= asked.version and asked.begun in (0, version)

    def request(self, core: PeerCore, replica: Replica | StepReplica) -> RequestedCheckpoint | None:
        """A person asks for a checkpoint: one of the next round's state, or in a pause of the
        present one. None if the last checkpoint has that."""
        newest, paused = replica.version(0)[0], core.run_state.orders.paused is not None
        if paused and newest <= self._last_round:
            return None
        self.requested = RequestedCheckpoint(newest if paused else newest + 1)
        if paused:
            self.begin_writing(core, replica)
        return self.requested

    def rank_state(self, round_: int) -> Path:
        """The directory for the state that ranks need to go on after this round."""
        return self._directory / RANK_STATES / f"round-{round_:06d}"

    def fresh_rank_state(self, round_: int) -> Path:
        """`rank_state(round_)`, for ranks to write to: without the files of ranks that were lost or
        of a branch that was rolled back, since those do not fit together with new ones."""
        place = self.rank_state(round_)
        if place != self.kept_rank_state:  # New ranks may be reading it, to write the same again.
            shutil.rmtree(place, ignore_errors=True)
        return place

    def begin_writing(self, core: PeerCore, replica: Replica | StepReplica) -> None:
        """Lend the replica's state in a job of the worker thread, and start writing it. In a
        stepwise run, that is the newest committed state (the base).

        Does nothing if an earlier checkpoint is still being written, or the state is not newer.
        """
        if not self._borrowing and self._is_new(replica.version(0)[0]):
            self._borrowing = True
            self._compute(replica.capture, lambda moment: self._start(core, replica, moment))

    def _is_new(self, round_: int) -> bool:
        busy = self._pending is not None and not self._pending.done()
        return not busy and round_ > self._last_round

    def _start(self, core: PeerCore, replica: Replica | StepReplica, moment: Moment) -> None:
        """Start writing a captured state. Only constants of `replica` are read (layout, method)."""
        self._borrowing = False
        if not self._is_new(moment.round):
            return  # `finish` has written it, without waiting for this job.
        remaining = remaining_at(core.run_state, moment.round)
        if remaining is None:
            return  # Our state is too old, and is about to be replaced.
        if not moment.stands(core.run_state):
            return  # The log was rolled back meanwhile, and our state does not follow it yet.
        self._last_round = moment.round
        asked, stepwise = self.requested, isinstance(replica, StepReplica)
        if asked is not None and moment.round >= asked.version and not asked.begun:
            asked.begun = moment.round
        rank_state = self._rank_state_name(moment.round, stepwise=stepwise)
        arrays = replica.method.state_arrays if stepwise else ()
        cut = _cut(core, moment, rank_state, remaining, arrays)
        log = pack_log(core.log_applier.snapshot(), core.raft.term)
        job = self._job(cut, _layout(replica), moment, log)
        self._pending = asyncio.ensure_future(self._write(job, cut, self._life))

    async def finish(self, core: PeerCore, replica: Replica | StepReplica) -> None:
        """If the state is newer than the last checkpoint, write one; wait until it is on the disk.
        Call this after the worker thread has ended."""
        if self._pending is not None:
            await self._pending
        if replica.version(0)[0] > 0:
            # The worker thread has ended, and nothing else needs the loop: capture in this thread.
            self._start(core, replica, replica.capture())
        if self._pending is not None:
            await self._pending

    def take_back(self, round_: int, run_state: RunState) -> None:
        """The run was rolled back to this round: delete newer checkpoints that it took back, and
        newer incomplete ones, and the rank states that go with none that stands: a rank that has
        steps of that branch in its momentum (FlexDeMo) writes none of the steps that come again,
        and a later start would take the old one for it.

        The rollback may be an old entry of the log, which this node reads again after a restart:
        `run_state`, which may contain later entries, tells which newer checkpoints stand.
        """
        self._last_round = min(self._last_round, round_)
        self._life += 1
        for path in (self._directory / CHECKPOINTS).glob("round-*"):
            number = path.name.removeprefix("round-").partition(".")[0]
            if not (number.isdecimal() and int(number) > round_):
                continue
            try:
                over = is_void(read_cut(path), run_state)
            except CheckpointError:
                over = True
            if over:
                shutil.rmtree(path, ignore_errors=True)
        named, kept = self._named_rank_states(), self.kept_rank_state
        newest = max(named, key=round_of, default="")
        if kept is not None and round_of(kept.name) > round_of(newest):
            self.kept_rank_state = newest_rank_state(self._directory, newest)
        # A node that starts again reads its log before it knows the last state that is complete.
        standing = {self.kept_rank_state, newest_rank_state(self._directory, newest)}
        for path in (self._directory / RANK_STATES).glob("round-*"):
            stands = path.name in named or path in standing
            if round_of(path.name) > round_ and not stands:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        self._thread.shutdown()

    def _rank_state_name(self, round_: int, *, stepwise: bool) -> str:
        """Name of the rank state that a restart uses with this checkpoint; "" for none. If no
        checkpoint is due after this round, the ranks write none, so it is the last complete one."""
        if self.is_due(round_) or stepwise:
            return self.rank_state(round_).name
        return self.kept_rank_state.name if self.kept_rank_state is not None else ""

    def _job(
        self, cut: CheckpointCut, layout: Layout, moment: Moment, log: bytes
    ) -> Callable[[], Path]:
        def own(place: Path) -> list[Path]:
            return write_residues(place, cut.fragments, moment.residues)

        def write() -> Path:
            outer = [each.outer_P for each in moment.fragments]
            momentum = [each.momentum_P for each in moment.fragments]
            directory = self._directory / CHECKPOINTS
            path = write_checkpoint(directory, cut, layout, outer, momentum, own, log=log)
            prune(directory, self._node.checkpoints_kept)
            self._prune_rank_states(cut.round)
            return path

        return write

    async def _write(self, job: Callable[[], Path], cut: CheckpointCut, life: int) -> None:
        try:
            path = await asyncio.get_running_loop().run_in_executor(self._thread, job)
        except CheckpointError as error:
            self._last_round = -1  # `finish` tries again.
            self._settle_request(cut, why=str(error))
            self._failed(str(error))
        else:
            if life == self._life:
                self._settle_request(cut, path=path)
                self._written(path, cut)
            else:  # The run was rolled back meanwhile.
                shutil.rmtree(path, ignore_errors=True)
                self._last_round = -1
                self._settle_request(cut)

    def _settle_request(
        self, cut: CheckpointCut, *, path: Path | None = None, why: str = ""
    ) -> None:
        """Note the outcome if a person asked for this checkpoint; without one, another follows."""
        asked = self.requested
        if asked is not None and asked.begun == cut.round:
            asked.path, asked.why = path, why
            asked.begun = cut.round if path or why else 0

    def _named_rank_states(self) -> set[str]:
        """The names of rank states in complete checkpoints."""
        named: set[str] = set()
        for path in (self._directory / CHECKPOINTS).glob("round-*"):
            with suppress(CheckpointError):
                named.add(read_cut(path).own.rank_state)
        return named

    def _prune_rank_states(self, round_: int) -> None:
        """Delete rank states older than this round that belong to no checkpoint, except the last
        complete one. Newer ones stay: ranks may be writing them."""
        kept = {path.name for path in (self._directory / CHECKPOINTS).glob("round-*")}
        kept |= {self.kept_rank_state.name} if self.kept_rank_state is not None else set()
        for path in (self._directory / RANK_STATES).glob("round-*"):
            if path.name not in kept and 0 <= round_of(path.name) < round_:
                shutil.rmtree(path, ignore_errors=True)


def is_void(cut: CheckpointCut, run_state: RunState) -> bool:
    """Whether a rollback took back the state of this checkpoint. One of a lineage that is not known
    yet stands: its beginning is a later entry of the log."""
    lineage = int(cut.lineage, 16)
    versions = [Version(f, x.version, x.state_digest) for f, x in enumerate(cut.fragments)]
    ended = any(branch.lineage == lineage for branch in run_state.branches)
    return ended and not run_state.is_kept(lineage, versions)


def _cut(
    core: PeerCore, moment: Moment, rank_state: str, remaining: Remaining, arrays: tuple[str, ...]
) -> CheckpointCut:
    """The content of the log at that moment; the log may have gone on since."""
    run_state, me = core.run_state, core.me
    assert run_state.run is not None
    inner_step, tokens = progress_at(run_state, moment.round)
    return CheckpointCut(
        log_index=run_state.index,
        lineage=f"{run_state.lineage:016x}",
        run_digest=f"{run_state.run.run:016x}",
        fragments=tuple(
            FragmentCut(
                version=each.version,
                inner_step=inner_step,
                tokens=tokens,
                state_digest=each.state_digest,
            )
            for each in moment.fragments
        ),
        own=PeerCut(
            peer=me.peer,
            incarnation=me.incarnation,
            data_slot=run_state.slot_of(me.peer),
            rank_state=rank_state,
        ),
        remaining=remaining,
        arrays=arrays,
    )


def _layout(replica: Replica | StepReplica) -> Layout:
    fragments = 1 + max(tensor.fragment for tensor in replica.layout)
    return tuple(
        tuple((t.name, t.shape, t.offset) for t in replica.layout if t.fragment == fragment)
        for fragment in range(fragments)
    )
