"""Peers for tests of drivers: arithmetic that needs no arrays, since bytes are added by XOR.

Must NOT hold tests.
"""

import asyncio
import hashlib
import random
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from lowcomm.numerics.arrays import IN_MEMORY
from peers.connections.mesh import Mesh
from peers.driver import Driver
from peers.exchange.interfaces import Bytes, StateTaken, Told
from peers.exchange.outbound import Stream
from peers.exchange.pieces import digest_of, spans
from peers.sockets.listener import bind
from peers.storage.wal import SYSTEM, Disk, Wal
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages import peer as m
from protocols.messages.log_entries import Run
from protocols.messages.peer import Kept
from protocols.peer.core import PeerCore
from protocols.state.parts import ELEMENT_BYTES
from protocols.state.round_plan import RoundPlan
from protocols.types.errors import LowcommError
from protocols.types.ids import Contributor, PeerId, Stamp, Version
from protocols.types.rules import ProtocolConfig

ELEMENTS = 550_000
"""2.2 MB: a part for each of three peers, and a state of three chunks."""
STEP_S = 0.01
LOOK_S = 0.02
CHECKPOINT_ROUND = 3
"""After it everybody writes its only checkpoint."""
RULES = ProtocolConfig(
    heartbeat_interval_s=0.2,
    election_timeout_s=1.0,
    reduction_timeout_s=0.6,
    transfer_timeout_s=5.0,
)
PATIENT = replace(RULES, election_timeout_s=20.0, reduction_timeout_s=20.0)
"""Of tests in which nobody fails, and each contribution counts however busy the machine is."""
RUN_ID = 77
ALPHA, BETA, GAMMA = (PeerId(f"{n}.0000000{i}") for i, n in enumerate(("alpha", "beta", "gamma")))
EVE = PeerId("eve.00000009")


def digest(payload: Bytes) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


def xor(pieces: Sequence[Bytes]) -> bytes:
    total = 0
    for piece in pieces:
        total ^= int.from_bytes(piece, "little")
    return total.to_bytes(len(pieces[0]), "little")


class XorWork:
    """A contribution is random; the outer step adds it."""

    arrays = IN_MEMORY

    def __init__(self, seed: str, *, gathers: bool = False) -> None:
        self.gathers = gathers
        self.random = random.Random(seed)
        self.state = bytes(ELEMENTS * ELEMENT_BYTES)
        self.round = 0
        self.checkpoint: tuple[int, bytes] | None = None
        """(round, state) of the newest one."""
        self.given = b""
        """The contribution to the open round."""
        self.refuses = 0
        """Sums that find a slice to be none."""
        self.fails = ""
        """An encoding fails with this text."""
        self.due: tuple[Sequence[Bytes], list[bytes]] = ((), [])
        """Parts that `settle` reads again, and what they were when they were applied."""

    def begin_contribution(self, fragment: int, manifest: str) -> memoryview | None:
        self.given = self.random.randbytes(ELEMENTS * ELEMENT_BYTES)
        return None

    def encode(self, fragment: int, start: int, stop: int, out: memoryview) -> None:
        if self.fails:
            raise LowcommError(self.fails)
        out[:] = self.given[ELEMENT_BYTES * start : ELEMENT_BYTES * stop]

    def reduce(
        self,
        fragment: int,
        elements: int,
        slices: Sequence[Bytes],
        contributors: Sequence[Contributor],
        out: memoryview,
    ) -> None:
        if self.refuses:
            self.refuses -= 1
            raise LowcommError("no slice")
        assert {len(piece) for piece in slices} == {ELEMENT_BYTES * elements}
        out[:] = b"".join(slices) if self.gathers else xor(slices)

    def check_result(
        self, fragment: int, piece: Bytes, elements: int, contributors: Sequence[Contributor]
    ) -> None:
        pass

    def ahead(
        self,
        stamp: Stamp,
        start: int,
        piece: Bytes,
        part: Bytes,
        elements: int,
        contributors: Sequence[Contributor],
    ) -> None:
        pass

    def apply(
        self,
        stamp: Stamp,
        borders: Sequence[int],
        parts: Sequence[Bytes],
        contributors: Sequence[Contributor],
    ) -> str:
        self.settle(stamp.fragment)
        layers, terms = self.layers(stamp.fragment, len(contributors)), list[bytes]()
        for part in parts:
            elements = len(part) // (ELEMENT_BYTES * layers)
            for start, stop in spans(elements):
                size, first = ELEMENT_BYTES * (stop - start), ELEMENT_BYTES * layers * start
                places = range(first, first + layers * size, size)
                terms.append(xor([part[at : at + size] for at in places]))
        self.state, self.round = xor((self.state, b"".join(terms))), stamp.round
        self.due = (parts, [bytes(part) for part in parts])
        return digest(self.state)

    def skip(self, stamp: Stamp) -> str:
        raise AssertionError("nobody gossips here")

    def settle(self, fragment: int) -> None:
        (parts, were), self.due = self.due, ((), [])
        assert [bytes(part) for part in parts] == were, "somebody else writes there already"

    def lend_state(self, fragment: int, round_: int) -> tuple[Bytes, ...]:
        return (self.state,) if round_ == self.round else ()

    def check_state(
        self, fragment: int, round_: int, state: Sequence[Bytes], before_cell: object = None
    ) -> str:
        return digest(b"".join(state))

    def adopt_state(
        self,
        fragment: int,
        round_: int,
        buffer: bytearray | memoryview,
        *,
        lineage: int,
        kept: bool = False,
    ) -> None:
        self.state, self.round = bytes(buffer), round_

    def adopt_kept(self, fragment: int, round_: int, *, lineage: int) -> str:
        if self.checkpoint is None or self.checkpoint[0] != round_:
            return ""
        self.round, self.state = self.checkpoint
        return digest(self.state)

    def contribution_bytes(self, fragment: int, elements: int) -> int:
        return ELEMENT_BYTES * elements

    def result_bytes(self, fragment: int, elements: int) -> int:
        return ELEMENT_BYTES * elements

    def layers(self, fragment: int, contributors: int) -> int:
        return contributors if self.gathers else 1

    def state_bytes(self, fragment: int) -> int:
        return len(self.state)


class Node:
    """A peer: listener of its driver, and ranks that contribute soon after each result."""

    def __init__(
        self,
        peer: PeerId,
        directory: Path,
        *,
        join: bool,
        life: int = 1,
        kept: Kept | None = None,
        disk: Disk = SYSTEM,
        gathers: bool = False,
    ) -> None:
        """`directory`: where its log is; a second life finds there what the first one promised."""
        self.peer = peer
        self.socket, self.address = bind("127.0.0.1:0")
        self.wal, self.saved = Wal.open(directory, disk=disk)
        me = Identity(peer=peer, name=peer[:-9], incarnation=life, address=self.address)
        core = PeerCore(me, join=join, saved=self.saved, kept=kept)
        self.driver = Driver(core, listener=self, wal=self.wal)
        self.mesh = Mesh(self.driver.mesh_shell)
        self.driver.use(self.mesh)
        self.work = XorWork(peer, gathers=gathers)
        self.rules = RULES
        self.kept: Kept | None = None
        self.trains = True
        self.digests: dict[int, str] = {}
        self.served_to: list[tuple[PeerId, int]] = []
        self.states: list[StateTaken] = []
        self.data_paths: list[float] = []
        self.notes: list[c.Observation] = []
        self.stop: c.Stop | None = None
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def check_run(self, run: Run) -> None:
        self.driver.data_plane.work = self.driver.data_plane.states = self.work
        self.driver.feed(v.RunAccepted(self.rules))
        self.driver.feed(v.TrainersReady())

    def handle(self, command: Told) -> None:
        match command:
            case c.Resume(finish=False, first=first):
                if first:
                    self.driver.feed(v.TrainersAble())
                asyncio.get_running_loop().call_later(STEP_S, self._contribute)
            case c.Observation():
                self.notes.append(command)
            case c.Stop():
                self.stop = command
            case _:
                pass
        self._news.set()

    def _contribute(self) -> None:
        if self.trains and self.stop is None:
            self.driver.feed(v.ContributionReady(0, 10, 5))

    def applied(self, stamp: Stamp, state_digest: str) -> None:
        self.digests[stamp.round] = state_digest
        if stamp.round == CHECKPOINT_ROUND:
            self.work.checkpoint = stamp.round, self.work.state
            version, inner_step = Version(0, stamp.round, state_digest), 5 * stamp.round
            self.kept = Kept(stamp.lineage, (version,), inner_step, 20 * stamp.round)
        self._news.set()

    def reduced(self, stamp: Stamp, seconds: float) -> None:
        self.data_paths.append(seconds)

    def served(self, peer: PeerId, size_bytes: int) -> None:
        self.served_to.append((peer, size_bytes))
        self._news.set()

    def received_state(self, state: StateTaken) -> None:
        self.states.append(state)
        self._news.set()

    async def until(self, condition: Callable[[], object], *, within_s: float = 20) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                self._news.clear()
                with suppress(TimeoutError):  # Not everything that tests look at is told.
                    await asyncio.wait_for(self._news.wait(), LOOK_S)

    @property
    def round(self) -> int:
        return max(self.digests, default=0)

    async def start(self, leader: "Node | None", *, peers: int, outer_steps: int) -> None:
        self.mesh.listen(self.socket)
        self.task = asyncio.create_task(self.driver.run())
        if self.saved is not None:
            self.driver.feed(v.DeadlineReached())  # It goes on from what it has promised.
        if leader is not None:
            self.mesh.connect(leader.address, peer="")
        if self.saved is not None or leader is not None:
            return
        run = Run(RUN_ID, "{}", "", peers, outer_steps, 1, b"", (ELEMENTS,), self.peer)
        self.check_run(run)
        self.driver.feed(v.Bootstrap(run, (digest(self.work.state),)))

    async def die(self) -> None:
        """As a killed process does: no word to anybody. Idempotent."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})
        for link in list(self.mesh._open.links):
            link.abort("killed")
        await self.mesh.close()
        self.wal.close()
        self.socket.close()


@asynccontextmanager
async def running(
    *peers: PeerId, outer_steps: int, gathers: bool = False, patient: bool = False
) -> AsyncGenerator[list[Node]]:
    """The first one leads; rounds begin when all are there."""
    nodes: list[Node] = []
    with tempfile.TemporaryDirectory() as name:
        try:
            for peer in peers:
                nodes.append(Node(peer, Path(name, peer), join=bool(nodes), gathers=gathers))
                nodes[-1].rules = PATIENT if patient else RULES
                leader = nodes[0] if len(nodes) > 1 else None
                await nodes[-1].start(leader, peers=len(peers), outer_steps=outer_steps)
            yield nodes
        finally:
            for node in nodes:
                await node.die()


@asynccontextmanager
async def open_round() -> AsyncGenerator[tuple[Node, RoundPlan]]:
    """A leader in a round that stays open, since the other one contributes nothing more."""
    async with running(ALPHA, BETA, outer_steps=10_000) as (alpha, beta):
        await beta.until(lambda: beta.round >= 2)
        beta.trains = False
        core = alpha.driver.core

        def rests() -> bool:
            plan = core.run_state.open_plan(0)
            given = core.rounds[0].work.given
            return bool(plan and given and given.manifest and given.round == plan.stamp.round)

        await alpha.until(rests)
        await beta.until(lambda: beta.round == alpha.round)
        plan = core.run_state.open_plan(0)
        assert plan is not None
        yield alpha, plan


def bring(node: Node, sender: PeerId, chunk: m.PieceChunk, elements: int) -> bool:
    """What a link does with a payload of zeros; False: it got no memory."""
    for start, stop in spans(elements):
        zeros = bytes(ELEMENT_BYTES * (stop - start))
        piece = replace(chunk, start=start, elements=elements)
        if isinstance(piece, m.ResultChunk):
            piece = replace(piece, digest=digest_of(zeros).hex())
        place = node.driver.mesh_shell.place(sender, piece, len(zeros))
        node.driver.mesh_shell.payload_received(sender, piece, len(zeros), kept=place is not None)
        if place is None:
            return False
        place[:] = zeros
        node.driver.mesh_shell.chunk_received(sender, piece)
    return True


def gives_once(donor: Node, ready: Callable[[], bool]) -> None:
    """It sends cells of its state only when that is so."""
    snapshots, latest = donor.driver.snapshots, dict[PeerId, Stream | None]()
    replace_cells = snapshots.replace_cells

    def wanted(peer: PeerId, stream: Stream | None) -> None:
        latest[peer] = stream
        give(peer, stream)

    def give(peer: PeerId, stream: Stream | None) -> None:
        if latest[peer] is not stream:
            return  # It was asked for something else meanwhile.
        if ready():
            replace_cells(peer, stream)
        else:
            asyncio.get_running_loop().call_later(0.01, give, peer, stream)

    snapshots.replace_cells = wanted  # type: ignore[method-assign]


def agree(nodes: Sequence[Node]) -> None:
    """I1: equal digests for every round that two of them have."""
    for round_ in set[int]().union(*(node.digests for node in nodes)):
        found = {node.digests[round_] for node in nodes if round_ in node.digests}
        assert len(found) == 1, f"round {round_} differs"


def count_the_same(nodes: Sequence[Node], *, rounds: int, gathers: bool) -> None:
    """What one counts as sent the other one counts as received, but for what was on its way at the
    end; heads of chunks are left out. Who was late may have asked for something once more."""
    size, others = ELEMENTS * ELEMENT_BYTES, len(nodes) - 1
    told = {
        (node.peer, traffic.peer): traffic
        for node in nodes
        for traffic in node.driver.counters.traffic(time.monotonic())
    }
    pairs = {(one.peer, other.peer) for one in nodes for other in nodes if one is not other}
    assert set(told) == pairs
    for (here, there), traffic in told.items():
        for purpose in ("payload", "transfer"):
            assert 0 <= traffic.sent[purpose] - told[there, here].received[purpose] <= size
        assert traffic.sent["control"] > 0
        assert traffic.refused_bytes == 0
    whole = len(nodes) if gathers else 2  # Gathered from each, or a slice and a sum of each part.
    assert sum(each.sent["payload"] for each in told.values()) >= rounds * whole * others * size
    assert sum(each.sent["transfer"] for each in told.values()) == others * size  # They joined.
    for node in nodes:
        mine = [each for (here, _), each in told.items() if here == node.peer]
        assert 0.98 < sum(sum(each.sent.values()) for each in mine) / node.mesh.bytes_moved()[0] < 1
