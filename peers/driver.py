"""The asynchronous shell around one core: events in, commands out, bytes where they belong.

Three parties: the mesh (connections), the core (decisions) and the work (arithmetic, in one
worker thread). Sending never waits: commands go into bounded outboxes. Must NOT decide anything.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from peers.mesh import Mesh
from peers.payloads import Assembler, PayloadStore, Transfer, chunks
from peers.scribe import Scribe
from peers.wal import Wal
from peers.work import Bytes, Listener, Work
from protocols import commands as c
from protocols import events as v
from protocols import messages as m
from protocols.contributions import PartResult
from protocols.core import PeerCore
from protocols.errors import LowcommError
from protocols.hellos import refusal
from protocols.ids import PROTOCOL_VERSION, PeerId, Stamp

T = TypeVar("T")
Received = v.SliceReceived | v.ResultReceived
Undecided = tuple[type[Received], PeerId, Stamp, int]
"""(what the core will be told, sender, stamp, part)."""
Made = tuple[str, Bytes]
"""(digest, bytes)."""
Job = tuple[Callable[[], object], Callable[[object], None] | None]
"""(what the worker thread does, what the loop does with the result); without the second, the
first is done in the loop, but in the order of the jobs."""


class Driver:
    """`run()` until the core stops. Implements MeshOwner."""

    def __init__(self, core: PeerCore, *, listener: Listener, wal: Wal) -> None:
        self.core = core
        self.arithmetic: Work | None = None
        """None until the run's sizes are known: nobody can make us hold bytes before."""
        self.mesh: Mesh | None = None
        """Set before `run`; the mesh needs us to be made."""
        self._listener = listener
        self._inbox: asyncio.Queue[v.Event] = asyncio.Queue()
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        self._scribe = Scribe(wal, self.feed)
        self._store = PayloadStore()
        self._assembler = Assembler(self._is_expected)
        self._undecided: dict[Undecided, Bytes] = {}
        """Whole payloads that the core has not looked at yet."""
        self._transfer: Transfer | None = None
        """The newest cut that is for us."""
        self._discarded = 0

    # Interface ------------------------------------------------------------------------------

    def feed(self, event: v.Event) -> None:
        """Let the core take an event, in its turn."""
        self._inbox.put_nowait(event)

    async def run(self) -> None:
        """Until Stop; the listener was told by then. Raises what the arithmetic raised."""
        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="work") as thread:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._work(thread), name="work")
                    group.create_task(self._scribe.run(), name="log")
                    await self._decide()
                    self._scribe.stop()
                    # What was begun is ended: the last step, its result.
                    self._jobs.put_nowait(None)
        except ExceptionGroup as group:
            first, *others = group.exceptions
            if others:
                raise
            raise first from None  # Its text may be one line for a person.

    @property
    def discarded(self) -> int:
        """Payloads of no open round, of nobody's interest, or damaged (I3)."""
        return self._discarded + self._assembler.refused

    @property
    def work(self) -> Work:
        assert self.arithmetic is not None, "the core asked for arithmetic before RunAccepted"
        return self.arithmetic

    # The loops ------------------------------------------------------------------------------

    async def _decide(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.core.stopped:
            deadline = self.core.deadline
            try:
                async with asyncio.timeout_at(deadline if deadline < float("inf") else None):
                    event = await self._inbox.get()
            except TimeoutError:
                event = v.DeadlineReached()
            commands = self.core.handle(event, loop.time())
            if isinstance(event, v.SliceReceived | v.ResultReceived):
                self._keep(event, discarded=c.Discard(event) in commands)
            for command in commands:
                self._do(command)

    async def _work(self, thread: ThreadPoolExecutor) -> None:
        """One job at a time: a copy for a joiner never falls between two halves of a step."""
        loop = asyncio.get_running_loop()
        while (job := await self._jobs.get()) is not None:
            compute, done = job
            if done is None:
                compute()
            else:
                done(await loop.run_in_executor(thread, compute))

    # Commands -------------------------------------------------------------------------------

    def _do(self, command: c.Command) -> None:
        mesh = self.mesh
        assert mesh is not None
        match command:
            case c.Send(peer=peer, message=message):
                self._sent(peer, mesh.send(peer, message))
            case c.Persist():
                self._scribe.write(command)
            case c.Connect(peer=peer, address=address):
                mesh.connect(address, peer=peer)
            case c.Disconnect(peer=peer, why=why):
                mesh.disconnect(peer, why)
            case c.CheckRun(run=run):
                self._listener.check_run(run)
            case c.SendSlice(peer=peer, stamp=stamp, part=part, contributor=me):
                encoded = self._store.encoded.get((stamp.fragment, stamp.round))
                if encoded is not None:
                    piece = self.work.cut(stamp.fragment, encoded, command.start, command.stop)
                    self._send(peer, m.ContributionChunk(stamp, part, me, 0, 0), piece)
            case c.SendResult(peer=peer, stamp=stamp, part=part):
                result = self._store.results.get((stamp, part))
                if result is not None:
                    header = m.ResultChunk(stamp, part, command.contributors, command.digest, 0, 0)
                    self._send(peer, header, result)
            case c.DropSlices(fragment=fragment, round=round_):
                self._store.drop_slices(fragment, round_)
            case c.ReleaseRound(fragment=fragment, round=round_):
                self._store.release(fragment, round_)
            case c.Discard():
                pass  # `_keep` did not keep it.
            case c.Resume() | c.Leased():  # After the steps that it lets the ranks see.
                self._jobs.put_nowait((lambda: self._listener.handle(command), None))
            case c.Applied() | c.Note() | c.Stop():
                self._listener.handle(command)
            case c.Sign() | c.Answer() | c.GiveKey() | c.TakeKey():
                self._listener.handle(command)
            case _:
                self._compute(command)

    def _compute(self, command: c.Command) -> None:
        """What needs arithmetic goes to the worker thread, in order."""
        match command:
            case c.Encode(fragment=fragment, round=round_):
                self._job(
                    lambda: self.work.encode(fragment),
                    lambda made: self._encoded(fragment, round_, made),
                )
            case c.ReducePart():
                self._reduce(command)
            case c.ApplyRound(stamp=stamp, borders=borders):
                parts = [self._store.results[stamp, i] for i in range(len(borders) - 1)]
                self._job(
                    lambda: self.work.apply(stamp.fragment, stamp.round, borders, parts),
                    lambda digest: self._applied(stamp, digest),
                )
            case c.ServeState():
                self._serve(command)
            case c.ExpectState(donor=donor, cut_index=index, versions=versions):
                now = asyncio.get_running_loop().time()
                self._transfer = Transfer(donor, index, versions, now)
            case c.AdoptKept(fragment=fragment, round=round_):
                self._job(
                    lambda: self.work.adopt_kept(fragment, round_),
                    lambda digest: self.feed(v.KeptAdopted(fragment, round_, digest)),
                )
            case c.AdoptState(fragment=fragment, round=round_):
                transfer = self._transfer
                assert transfer is not None, "the core adopts a state that it did not expect"
                state = transfer.adopt(fragment)
                self._job(
                    lambda: self.work.adopt_state(fragment, round_, state),
                    lambda _: self._adopted(transfer),
                )
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _job(self, compute: Callable[[], T], done: Callable[[T], None]) -> None:
        self._jobs.put_nowait((compute, cast(Callable[[object], None], done)))

    def _encoded(self, fragment: int, round_: int, made: Made) -> None:
        manifest, payload = made
        self._store.encoded[fragment, round_] = payload
        self.feed(v.Encoded(fragment, round_, manifest))

    def _applied(self, stamp: Stamp, digest: str) -> None:
        self._listener.applied(stamp, digest)
        self.feed(v.RoundApplied(stamp, digest))

    def _adopted(self, transfer: Transfer) -> None:
        if transfer.complete and transfer is self._transfer:
            seconds = asyncio.get_running_loop().time() - transfer.since
            self._listener.received_state(transfer.donor, transfer.size_bytes, seconds)

    def _reduce(self, command: c.ReducePart) -> None:
        """Sum from kept bytes: ours is cut from what we encoded, the others' came in chunks."""
        stamp, part, store = command.stamp, command.part, self._store
        slices: list[Bytes] = []
        for term in command.contributors:
            if term.peer == self.core.me.peer:
                encoded = store.encoded[stamp.fragment, stamp.round]
                piece = self.work.cut(stamp.fragment, encoded, command.start, command.stop)
            else:
                piece = store.slices[store.slice_key(stamp, part, term)]
            slices.append(piece)
        elements = command.stop - command.start

        def compute() -> Made | LowcommError:
            try:
                return self.work.reduce(stamp.fragment, elements, slices, command.contributors)
            except LowcommError as error:
                return error

        def done(made: Made | LowcommError) -> None:
            if isinstance(made, LowcommError):
                # Somebody's slice is no slice. The leader's patience with this attempt ends it.
                self._discarded += 1
                self._listener.handle(c.Note("damaged", f"round {stamp.round}: {made}"))
                return
            digest, store.results[stamp, part] = made
            self.feed(v.PartReduced(stamp, part, digest))

        self._job(compute, done)

    def _serve(self, command: c.ServeState) -> None:
        """Copy now, whatever rounds do meanwhile. If the connection breaks, the receiver asks
        again over the next one."""
        peer, run, lineage = command.peer, self.core.raft.run, self.core.members.lineage
        for version in command.versions:
            fragment = version.fragment
            header = m.StateChunk(run, lineage, command.cut_index, fragment, version.round, 0, 0)

            def copied(state: Bytes, header: m.StateChunk = header) -> None:
                self._send(peer, header, state)
                self._listener.served(peer, memoryview(state).nbytes)

            self._job(lambda fragment=fragment: self.work.copy_state(fragment), copied)

    def _send(self, peer: PeerId, header: m.Chunk, payload: Bytes) -> None:
        assert self.mesh is not None
        self._sent(peer, self.mesh.send_bulk(peer, chunks(header, payload)))

    def _sent(self, peer: PeerId, fits: bool) -> None:
        """A peer whose outbox is full gets a new connection, and all that it needs again."""
        if not fits and self.mesh is not None:
            self.mesh.drop(peer, "too slow: its outbox is full")

    def _keep(self, event: Received, *, discarded: bool) -> None:
        """The core looked at a payload: keep its bytes if it counts them as held, or drop them.

        Before its commands are done: they may need these bytes.
        """
        stamp, part, sender = event.stamp, event.part, event.sender
        payload = self._undecided.pop((type(event), sender, stamp, part), None)
        held = self.core.rounds[stamp.fragment].held
        if isinstance(event, v.SliceReceived):
            slices = held.slices.get((stamp.round, stamp.view, part), {})
            wanted = slices.get(sender) == event.contributor
        else:
            wanted = held.result(stamp, part) == PartResult(event.contributors, event.digest)
        if discarded or not wanted:
            self._discarded += 1
        elif payload is not None and isinstance(event, v.SliceReceived):
            # The first one stays: it may be summed already.
            key = self._store.slice_key(stamp, part, event.contributor)
            self._store.slices.setdefault(key, payload)
        elif payload is not None:
            self._store.results[stamp, part] = payload

    # The mesh's side ------------------------------------------------------------------------

    def hello(self) -> m.Hello:
        me, run, leader = self.core.me, self.core.raft.run, self.core.leader_address()
        return m.Hello(PROTOCOL_VERSION, run, me.peer, me.name, me.incarnation, me.address, leader)

    def refusal(self, hello: m.Hello) -> str:
        return refusal(hello, me=self.core.me, run=self.core.raft.run, members=self.core.members)

    def connected(self, hello: m.Hello) -> None:
        self.feed(v.PeerConnected(hello.peer, hello.incarnation, hello.address, hello.leader))

    def disconnected(self, peer: PeerId, why: str) -> None:
        self._assembler.forget(peer)
        self.feed(v.PeerDisconnected(peer, why))

    def received(self, peer: PeerId, message: m.Control) -> None:
        self.feed(v.MessageReceived(peer, message))

    def admission_asked(self, number: int, admit: m.Admit) -> None:
        self.feed(v.AdmitAsked(number, admit))

    def refused(self, why: str) -> None:
        if self.core.raft.run:  # We know others: that one may be gone, or not back yet.
            self._listener.handle(c.Note("dial", why))
        else:
            self._listener.handle(c.Stop(why, "refused"))

    def place(self, peer: PeerId, chunk: m.Chunk, size: int) -> memoryview | None:
        return self._assembler.place(peer, chunk, size)

    def chunk_received(self, peer: PeerId, chunk: m.Chunk) -> None:
        payload = self._assembler.received(peer, chunk)
        if payload is None:
            return
        match chunk:
            case m.ContributionChunk(stamp=stamp, part=part, contributor=who):
                if self._is_new((v.SliceReceived, peer, stamp, part), payload):
                    self.feed(v.SliceReceived(peer, stamp, part, who))
            case m.ResultChunk(stamp=stamp, part=part):
                # The check takes a while: nothing waits for it that the core would not take.
                fence = self.core.rounds[stamp.fragment].fence
                if not fence.may_result(stamp, part, peer):
                    self._discarded += 1
                elif self._is_new((v.ResultReceived, peer, stamp, part), payload):
                    self._job(
                        lambda: self.work.check_result(payload),
                        lambda digest: self._result_checked(peer, chunk, digest),
                    )
            case m.StateChunk(cut_index=index, fragment=fragment, round=round_):
                transfer = self._transfer
                if transfer is None or not transfer.lacks(peer, index, fragment):
                    self._discarded += 1  # Another cut took its place meanwhile.
                    return
                transfer.states[fragment] = payload
                self._job(
                    lambda: self.work.check_state(fragment, payload),
                    lambda digest: self.feed(
                        v.StateReceived(peer, index, fragment, round_, digest)
                    ),
                )

    def _is_new(self, key: Undecided, payload: Bytes) -> bool:
        """Put it before the core, unless the same sender's last one still waits there."""
        if key in self._undecided:
            self._discarded += 1
            return False
        self._undecided[key] = payload
        return True

    def _result_checked(self, peer: PeerId, chunk: m.ResultChunk, digest: str) -> None:
        stamp, part = chunk.stamp, chunk.part
        if digest != chunk.digest:
            self._discarded += 1  # Damaged on its way, or a lie: as if it had not come.
            del self._undecided[v.ResultReceived, peer, stamp, part]
            return
        self.feed(v.ResultReceived(peer, stamp, part, chunk.contributors, digest))

    def _is_expected(self, peer: PeerId, chunk: m.Chunk) -> bool:
        """May a payload of this kind and total size come from this peer? Nobody outside the run
        gets memory. What the core makes of it is another question."""
        members, run, work = self.core.members, self.core.members.run, self.arithmetic
        if run is None or work is None or peer not in members.receivers:
            return False
        if isinstance(chunk, m.StateChunk):
            transfer = self._transfer
            return (
                transfer is not None
                and chunk.run == run.run
                and transfer.lacks(peer, chunk.cut_index, chunk.fragment)
                and chunk.total_bytes == work.state_bytes(chunk.fragment)
            )
        stamp, sizes = chunk.stamp, run.fragment_elements
        if stamp.run != run.run or stamp.fragment >= len(sizes):
            return False
        is_slice = isinstance(chunk, m.ContributionChunk)
        size_of = work.contribution_bytes if is_slice else work.result_bytes
        borders = self._borders(stamp)
        if borders is None:  # Its sender has read more of the log than we.
            return chunk.total_bytes <= size_of(stamp.fragment, sizes[stamp.fragment])
        if chunk.part >= len(borders) - 1:
            return False
        elements = borders[chunk.part + 1] - borders[chunk.part]
        return chunk.total_bytes == size_of(stamp.fragment, elements)

    def _borders(self, stamp: Stamp) -> tuple[int, ...] | None:
        """Of the parts of this round, if our log says what they are in this view."""
        members = self.core.members
        commit = members.commit(stamp.fragment, stamp.round)
        if commit is not None:
            return commit.borders if commit.view == stamp.view else None
        plan = members.plan(stamp.fragment, stamp.round)
        return plan.parts.borders if plan is not None and plan.stamp.view == stamp.view else None
