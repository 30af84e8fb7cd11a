"""When this node writes a checkpoint, and how without holding rounds up.

The state is borrowed in the order of the work, whose rounds write elsewhere meanwhile, and written
in a thread of its own while training goes on. Must NOT decide what a checkpoint looks like
(checkpoints/checkpoint.py).
"""

import asyncio
import shutil
import sys
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    RANK_STATES,
    CheckpointError,
    Cut,
    FragmentCut,
    Layout,
    PeerCut,
    pack_log,
    prune,
    read_cut,
    write_checkpoint,
)
from lowcomm.checkpoints.residue_file import write_residues
from lowcomm.outer_state.replica import Replica
from lowcomm.outer_state.state_moment import Moment
from lowcomm.outer_state.step_replica import StepReplica
from protocols.peer.core import PeerCore
from protocols.state.checkpoint_progress import progress_at, remaining_at
from protocols.types.sample_ranges import Remaining

KEEP = 2
T = TypeVar("T")


class Compute(Protocol):
    """As Driver.compute: have work done in its turn; `done` follows in the loop, before the next
    job."""

    def __call__(self, work: Callable[[], T], done: Callable[[T], None], /) -> None: ...


def complain(why: str) -> None:
    """To whoever looks at the terminal."""
    sys.stderr.write(f"lowcomm: {why}\n")


class Checkpointer:
    """One per daemon; at most one checkpoint is being written at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        every_rounds: int,
        compute: Compute,
        written: Callable[[Path, Cut], None],
        failed: Callable[[str], None] = complain,
    ) -> None:
        """`written` is called in the loop's thread with the path and what is in it, `failed` with
        the reason: a full disk costs a checkpoint, not the run.
        """
        self.kept_rank_state: Path | None = None
        """Where all ranks of a run of rounds have written last, in this life or an earlier one:
        what those that replace them go on with."""
        self._directory = directory
        self._every = every_rounds
        self._compute = compute
        self._written = written
        self._failed = failed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._last_round = -1
        self._life = 0
        """Rises when the run goes back: what is being written then is of no use."""
        self._borrowing = False
        self._pending: asyncio.Future[None] | None = None

    def is_due(self, round_: int) -> bool:
        """Ranks write their own state at the same rounds, so that both fit."""
        return round_ > 0 and round_ % self._every == 0

    def rank_state(self, round_: int) -> Path:
        """Where ranks write what they need to go on after this round."""
        return self._directory / RANK_STATES / f"round-{round_:06d}"

    def begin(self, core: PeerCore, replica: Replica | StepReplica) -> None:
        """Borrow the state that the replica has when it is our turn, and start writing it; of a
        stepwise run the base, which is committed.

        Does nothing while an earlier one is being written, or when there is nothing newer.
        """
        if not self._borrowing and self._is_new(replica.version(0)[0]):
            self._borrowing = True
            self._compute(replica.capture, lambda moment: self._start(core, replica, moment))

    def _is_new(self, round_: int) -> bool:
        busy = self._pending is not None and not self._pending.done()
        return not busy and round_ > self._last_round

    def _start(self, core: PeerCore, replica: Replica | StepReplica, moment: Moment) -> None:
        """Write what was captured. Of `replica` only what never changes is read."""
        self._borrowing = False
        if not self._is_new(moment.round):
            return  # We were about to leave, and did not wait for our turn.
        remaining = remaining_at(core.members, moment.round)
        if remaining is None:
            return  # Our state is so old that it is about to be replaced.
        if not moment.stands(core.members):
            return  # The log went back meanwhile, and our state has not followed yet.
        self._last_round = moment.round
        stepwise = isinstance(replica, StepReplica)
        rank_state = self._rank_state_name(moment.round, stepwise=stepwise)
        arrays = replica.method.state_arrays if stepwise else ()
        cut = _cut(core, moment, rank_state, remaining, arrays)
        log = pack_log(core.book.snapshot(), core.raft.term)
        job = self._job(cut, _layout(replica), moment, log)
        self._pending = asyncio.ensure_future(self._write(job, cut, self._life))

    async def finish(self, core: PeerCore, replica: Replica | StepReplica) -> None:
        """Write what is newer than the last checkpoint, and wait until it is on the disk. Called
        when the work's thread has ended."""
        if self._pending is not None:
            await self._pending
        if replica.version(0)[0] > 0:
            # At once: nobody would take its turn, and nobody waits for the loop any more.
            self._start(core, replica, replica.capture())
        if self._pending is not None:
            await self._pending

    def take_back(self, round_: int, *, ended: Collection[str]) -> None:
        """The run went back: what is newer in a lineage that has ended is of no use.

        `ended`: those lineages. A newer checkpoint of another one stays: we read history. What is
        not whole goes too.
        """
        self._last_round = min(self._last_round, round_)
        self._life += 1
        for path in (self._directory / CHECKPOINTS).glob("round-*"):
            number = path.name.removeprefix("round-").partition(".")[0]
            if not (number.isdecimal() and int(number) > round_):
                continue
            try:
                over = read_cut(path).lineage in ended
            except CheckpointError:
                over = True
            if over:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        self._thread.shutdown()

    def _rank_state_name(self, round_: int, *, stepwise: bool) -> str:
        """What a later life looks for. Where it is due the ranks write theirs about now; elsewhere
        nobody asks them."""
        if self.is_due(round_) or stepwise:
            return self.rank_state(round_).name
        return self.kept_rank_state.name if self.kept_rank_state is not None else ""

    def _job(self, cut: Cut, layout: Layout, moment: Moment, log: bytes) -> Callable[[], Path]:
        def own(place: Path) -> list[Path]:
            return write_residues(place, cut.fragments, moment.residues)

        def write() -> Path:
            outer = [each.outer_P for each in moment.fragments]
            momentum = [each.momentum_P for each in moment.fragments]
            directory = self._directory / CHECKPOINTS
            path = write_checkpoint(directory, cut, layout, outer, momentum, own, log=log)
            prune(directory, KEEP)
            self._prune_rank_states(cut.round)
            return path

        return write

    async def _write(self, job: Callable[[], Path], cut: Cut, life: int) -> None:
        try:
            path = await asyncio.get_running_loop().run_in_executor(self._thread, job)
        except CheckpointError as error:
            self._last_round = -1  # `finish` tries again.
            self._failed(str(error))
        else:
            if life == self._life:
                self._written(path, cut)
            else:  # The run went back meanwhile.
                shutil.rmtree(path, ignore_errors=True)
                self._last_round = -1

    def _prune_rank_states(self, round_: int) -> None:
        """Older ones without a checkpoint of their round are of no use any more, but for the last
        that is whole.

        Ranks may be writing a newer one right now.
        """
        kept = {path.name for path in (self._directory / CHECKPOINTS).glob("round-*")}
        kept |= {self.kept_rank_state.name} if self.kept_rank_state is not None else set()
        for path in (self._directory / RANK_STATES).glob("round-*"):
            number = path.name.removeprefix("round-")
            if path.name not in kept and number.isdecimal() and int(number) < round_:
                shutil.rmtree(path, ignore_errors=True)


def _cut(
    core: PeerCore, moment: Moment, rank_state: str, remaining: Remaining, arrays: tuple[str, ...]
) -> Cut:
    """What the log says of that moment, however far it is by now."""
    members, me = core.members, core.me
    assert members.run is not None
    inner_step, tokens = progress_at(members, moment.round)
    return Cut(
        log_index=members.index,
        lineage=f"{members.lineage:016x}",
        run_digest=f"{members.run.run:016x}",
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
            data_slot=members.slot_of(me.peer),
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
