"""A peer that leads a run alone, its outer state, and its checkpoints on the disk.

Must NOT hold tests.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from lowcomm.checkpoints.checkpoint import CHECKPOINTS, newest_checkpoint, read_checkpoint
from lowcomm.config.schema import NodeConfig
from lowcomm.methods import DiLoCoMethod
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.replica import Replica
from lowcomm.rank_control.checkpoint_schedule import CheckpointSchedule
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages import log_entries as e
from protocols.messages.snapshot import Branch
from protocols.peer.core import PeerCore
from protocols.state import transitions
from protocols.state.run_state import RunState
from protocols.types.ids import (
    Contributor,
    FragmentParts,
    PeerId,
    PeerInfo,
    Stamp,
    TensorSpec,
    Version,
)
from protocols.types.rules import ProtocolConfig
from protocols.types.sample_ranges import Samples
from protocols.wire.layout import pack_layout
from tests.lowcomm.replicas import arrays, stamp

ALPHA, BETA = PeerId("alpha.1f0c9a2e"), PeerId("beta.00000002")
GAMMA = PeerId("gamma.00000003")
LAYOUT = (
    TensorSpec(0, "embed", (2, 3), 0),
    TensorSpec(1, "norm", (4,), 0),
    TensorSpec(0, "head", (), 6),
)
SIZES = (7, 4)
EVERY = 5
T = TypeVar("T")


class Scene:
    """A peer that leads a run alone, its outer state, and what its checkpointer reports."""

    def __init__(self, directory: Path, *, kept: int = 2) -> None:
        self.written: list[tuple[str, int]] = []
        self.failed: list[str] = []
        self.directory = directory
        self.gate = threading.Event()
        self.jobs: list[Callable[[], None]] | None = None
        """What waits for its turn, where that does not come at once."""
        self.checkpoint_schedule = CheckpointSchedule(
            directory,
            node=NodeConfig(checkpoint_every_rounds=EVERY, checkpoints_kept=kept),
            compute=self.compute,
            written=lambda path, cut: self.written.append((path.name, cut.round)),
            failed=self.failed.append,
        )
        self.replica = Replica(DiLoCoMethod(), LAYOUT)
        me = Identity(peer=ALPHA, name="alpha", incarnation=3, address="127.0.0.1:1")
        self.core = PeerCore(me, join=False)
        digests = tuple(
            self.replica.initialise(f, np.full(size, f + 1, np.float32).data.cast("B"))
            for f, size in enumerate(SIZES)
        )
        self.first = digests
        """Of the state that the run begins with, by fragment."""
        self.hear(v.RunAccepted(ProtocolConfig()))
        run = e.Run(0xABC, "{}", "", 1, 99, 1, pack_layout(LAYOUT), SIZES, ALPHA)
        self.hear(v.Bootstrap(run, digests))
        versions = tuple(Version(f, 0, digest) for f, digest in enumerate(digests))
        for peer, slot in ((GAMMA, 7), (BETA, 4)):  # They were there once, and keep their seats.
            info = PeerInfo(peer, peer[:-9], 2, "127.0.0.1:2", slot)
            self.append(e.Cut(info, (ALPHA,), versions))
            self.append(e.Lost(peer, "silent"))
        parts = tuple(FragmentParts((ALPHA,), (0, size)) for size in SIZES)
        self.view = e.View(1, (ALPHA,), parts, (1, 1))
        self.append(self.view)

    def compute(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """As a driver does."""
        if self.jobs is None:
            done(work())
        else:
            self.jobs.append(lambda: done(work()))

    def take_back(self, round_: int) -> None:
        """The lineage so far is over."""
        self.checkpoint_schedule.take_back(round_, self.rolled_back((round_, round_)))

    def rolled_back(self, *to: tuple[int, int]) -> RunState:
        """The state of a log that had these rollbacks, the first one of the present lineage."""
        run_state = transitions.copy(self.core.run_state)
        for rounds in to:
            run_state.branches.append(Branch(run_state.lineage, rounds))
            run_state.lineage += 1
        return run_state

    def hear(self, event: v.Event) -> None:
        """The disk takes at once whatever the core wants to keep."""
        for command in self.core.handle(event, 0.0):
            if isinstance(command, c.Persist):
                self.hear(v.Persisted(command.write_number))

    def append(self, body: e.Entry) -> None:
        """The log says so from now on."""
        transitions.apply(
            self.core.run_state, self.core.raft.log.append(body, term=self.core.raft.term)
        )

    def commit(self, round_: int, *, samples: Samples = ()) -> None:
        """The log counts 10 * round steps and 1000 * round tokens, and these samples."""
        self.append(
            e.Commit(
                view=1,
                fragment=0,
                round=round_,
                attempt=0,
                contributors=(Contributor(ALPHA, 1000 * round_, 10 * round_, "0" * 32),),
                borders=self.core.run_state.views[0].parts[0].borders,
                result_digest="0" * 32,
                previous_state_digest="",
                samples=(samples,) if samples else (),
            )
        )

    def stamp(self, round_: int) -> Stamp:
        """Of fragment 0, in the lineage that the log is in."""
        return replace(stamp(0, round_), lineage=self.core.run_state.lineage)

    def apply(self, round_: int) -> None:
        """The replica takes the outer step of that round."""
        mean = np.full(7, 1 / round_, np.float32)
        self.replica.apply(self.stamp(round_), (0, 7), [mean.tobytes()], ())

    def count(self, round_: int) -> None:
        """This node contributes to fragment 0, and that alone is the round."""
        self.commit(round_)
        base_P, _ = arrays(self.replica, 0)
        local_P = base_P + np.arange(1, 1 + base_P.size, dtype=np.float32) / round_
        self.replica.contributions.take_local(0, local_P.data.cast("B"))
        name = f"{round_:032x}"
        self.replica.begin_contribution(0, name)
        sent = bytearray(self.replica.contribution_bytes(0, base_P.size))
        self.replica.encode(0, 0, base_P.size, memoryview(sent))
        terms = [Contributor(ALPHA, 1, 1, name)]
        self.replica.apply(self.stamp(round_), (0, base_P.size), [sent], terms)
        self.replica.place_result(0, full=True)

    def advance(self, last: int) -> None:
        for round_ in range(self.replica.version(0)[0] + 1, last + 1):
            self.commit(round_)
            self.apply(round_)

    def begin(self) -> None:
        self.checkpoint_schedule.begin_writing(self.core, self.replica)

    async def finish(self) -> None:
        await self.checkpoint_schedule.finish(self.core, self.replica)

    async def write(self, round_: int) -> None:
        self.advance(round_)
        self.begin()
        assert self.checkpoint_schedule._pending is not None
        await self.checkpoint_schedule._pending

    def hold(self) -> None:
        """Nothing is written before `gate` is set."""
        self.checkpoint_schedule._thread.submit(self.gate.wait)

    def state(self) -> list[bytes]:
        return bits([arrays(self.replica, f) for f in (0, 1)])

    def on_disk(self) -> tuple[str, list[bytes]]:
        """Name and bits of the newest checkpoint."""
        path, reasons = newest_checkpoint(self.directory / CHECKPOINTS)
        assert path is not None
        assert reasons == []
        _, _, arrays = read_checkpoint(path)
        return path.name, bits([(pair.outer, pair.momentum) for pair in arrays])


def bits(pairs: list[tuple[F32, F32]]) -> list[bytes]:
    return [array.tobytes() for pair in pairs for array in pair]
