"""The asynchronous shell around one core: events in, commands out, bytes where they belong.

Three parties: the mesh (connections), the core (decisions) and the work (arithmetic, in one
worker thread). Sending never waits: commands go into bounded outboxes. Must NOT decide anything.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from peers.mesh import Mesh
from peers.payloads import Assembler, PayloadStore, chunks
from peers.work import Bytes, Listener, Work
from protocols import commands as c
from protocols import events as v
from protocols import messages as m
from protocols.core import PeerCore
from protocols.entries import Member
from protocols.hellos import refusal
from protocols.ids import PROTOCOL_VERSION, PeerId

T = TypeVar("T")
Owed = tuple[m.StateChunk, Bytes]
Job = tuple[Callable[[], object], Callable[[object], None] | None]
"""(what the worker thread does, what the loop does with the result); without the second, the
first is done in the loop, but in the order of the jobs."""


class Driver:
    """`run()` until the core stops. Implements MeshOwner."""

    def __init__(self, core: PeerCore, *, listener: Listener) -> None:
        self.core = core
        self.arithmetic: Work | None = None
        """None until the run's sizes are known: nobody can make us hold bytes before."""
        self.mesh: Mesh | None = None
        """Set before `run`; the mesh needs us to be made."""
        self._listener = listener
        self._inbox: asyncio.Queue[v.Event] = asyncio.Queue()
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        self._store = PayloadStore()
        self._assembler = Assembler(self._payload_bytes)
        self._owed: dict[PeerId, list[Owed]] = {}
        """States that receivers of a cut have not acknowledged by becoming members."""
        self._undecided: dict[v.Event, Bytes] = {}
        """Whole payloads that the core has not looked at yet."""
        self._expected: dict[int, PeerId] = {}
        """Donor of the cut whose state we wait for, by the cut's index."""
        self.discarded = 0
        """Payloads of no open round, or damaged (I3)."""

    # Interface ------------------------------------------------------------------------------

    def feed(self, event: v.Event) -> None:
        """Let the core take an event, in its turn."""
        self._inbox.put_nowait(event)

    async def run(self) -> None:
        """Until Stop; the listener was told by then."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="work") as thread:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._work(thread), name="work")
                await self._decide()
                self._jobs.put_nowait(None)  # What was begun is ended: the last step, its result.

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
                self._keep(event, wanted=c.Discard(event) not in commands)
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
            case c.Connect(peer=peer, address=address):
                mesh.connect(address, peer=peer)
            case c.Disconnect(peer=peer, why=why):
                self._owed.pop(peer, None)
                self._assembler.forget(peer)
                mesh.disconnect(peer, why)
            case c.CheckRun(run=run):
                self._listener.check_run(run)
            case c.SendSlice(peer=peer, stamp=stamp, part=part, contributor=me):
                encoded = self._store.encoded.get((stamp.fragment, stamp.round))
                if encoded is not None:
                    piece = self.work.cut(stamp.fragment, encoded, command.start, command.stop)
                    header = m.ContributionChunk(stamp, part, me, 0, 0)
                    self._sent(peer, mesh.send_bulk(peer, chunks(header, piece)))
            case c.SendResult(peer=peer, stamp=stamp, part=part):
                result = self._store.results.get((stamp, part))
                if result is not None:
                    header = m.ResultChunk(stamp, part, command.contributors, command.digest, 0, 0)
                    self._sent(peer, mesh.send_bulk(peer, chunks(header, result)))
            case c.DropSlices(fragment=fragment, round=round_):
                self._store.drop_slices(fragment, round_)
            case c.ReleaseRound(fragment=fragment, round=round_):
                self._store.release(fragment, round_)
            case c.Discard():
                pass  # `_keep` did not keep it.
            case c.Resume():
                # After the steps that it lets the ranks see.
                self._jobs.put_nowait((lambda: self._listener.handle(command), None))
            case c.Applied() | c.Note() | c.Stop():
                if isinstance(command, c.Applied) and isinstance(command.entry, Member):
                    self._owed.pop(command.entry.info.peer, None)
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
                fragment, round_ = stamp.fragment, stamp.round
                self._job(
                    lambda: self.work.apply(fragment, round_, borders, parts),
                    lambda digest: self._applied(fragment, round_, digest),
                )
            case c.ServeState():
                self._serve(command)
            case c.ExpectState(donor=donor, cut_index=index):
                self._expected = {index: donor}
                self._store.states.clear()
            case c.AdoptState(cut_index=index, fragment=fragment, round=round_):
                state = self._store.states.pop((index, fragment))
                self._job(lambda: self.work.adopt_state(fragment, round_, state), lambda _: None)
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _job(self, compute: Callable[[], T], done: Callable[[T], None]) -> None:
        self._jobs.put_nowait((compute, cast(Callable[[object], None], done)))

    def _encoded(self, fragment: int, round_: int, made: tuple[str, Bytes]) -> None:
        manifest, payload = made
        self._store.encoded[fragment, round_] = payload
        self.feed(v.Encoded(fragment, round_, manifest))

    def _applied(self, fragment: int, round_: int, digest: str) -> None:
        self._listener.applied(fragment, round_, digest)
        self.feed(v.RoundApplied(fragment, round_, digest))

    def _reduce(self, command: c.ReducePart) -> None:
        """Sum from kept bytes: ours is cut from what we encoded, the others' came in chunks."""
        stamp, part, store = command.stamp, command.part, self._store
        slices: list[Bytes] = []
        for term in command.contributors:
            if term.peer == self.core.me.peer:
                encoded = store.encoded[stamp.fragment, stamp.round]
                piece = self.work.cut(stamp.fragment, encoded, command.start, command.stop)
            else:
                piece = store.slices[store.slice_key(stamp, part, term.peer)]
            slices.append(piece)
        elements = command.stop - command.start

        def done(made: tuple[str, Bytes]) -> None:
            digest, store.results[stamp, part] = made
            self.feed(v.PartReduced(stamp, part, digest))

        self._job(
            lambda: self.work.reduce(stamp.fragment, elements, slices, command.contributors), done
        )

    def _serve(self, command: c.ServeState) -> None:
        """Copy now, whatever rounds do meanwhile; send when there is a connection, and again
        over each new one, until the receiver is a member or gone."""
        peer, run, lineage = command.peer, self.core.log.run, self.core.log.lineage
        owed: list[Owed] = []
        self._owed[peer] = owed
        for version in command.versions:
            header = m.StateChunk(
                run, lineage, command.cut_index, version.fragment, version.round, 0, 0
            )

            def copied(state: Bytes, header: m.StateChunk = header) -> None:
                owed.append((header, state))
                self._send_states(peer, [(header, state)])
                self._listener.served(peer, memoryview(state).nbytes)

            fragment = version.fragment
            self._job(lambda fragment=fragment: self.work.copy_state(fragment), copied)

    def _send_states(self, peer: PeerId, owed: Sequence[Owed]) -> None:
        assert self.mesh is not None
        for header, state in owed:
            self._sent(peer, self.mesh.send_bulk(peer, chunks(header, state)))

    def _sent(self, peer: PeerId, fits: bool) -> None:
        """A peer whose outbox is full gets a new connection, and all that it needs again."""
        if not fits and self.mesh is not None:
            self.mesh.drop(peer, "too slow: its outbox is full")

    def _keep(self, event: v.SliceReceived | v.ResultReceived, *, wanted: bool) -> None:
        """The core looked at a payload: keep its bytes, or drop and count them (I3)."""
        payload = self._undecided.pop(event, None)
        if not wanted:
            self.discarded += 1
        elif payload is not None and isinstance(event, v.SliceReceived):
            key = self._store.slice_key(event.stamp, event.part, event.contributor.peer)
            self._store.slices[key] = payload
        elif payload is not None and isinstance(event, v.ResultReceived):
            self._store.results[event.stamp, event.part] = payload

    # The mesh's side ------------------------------------------------------------------------

    def hello(self) -> m.Hello:
        me = self.core.me
        return m.Hello(
            protocol=PROTOCOL_VERSION,
            run=self.core.log.run,
            peer=me.peer,
            name=me.name,
            incarnation=me.incarnation,
            address=me.address,
            leader=self.core.leader_address(),
        )

    def refusal(self, hello: m.Hello) -> str:
        core = self.core
        return refusal(hello, me=core.me, run=core.log.run, members=core.members)

    def connected(self, hello: m.Hello) -> None:
        self.feed(v.PeerConnected(hello.peer, hello.incarnation, hello.address, hello.leader))
        self._send_states(hello.peer, self._owed.get(hello.peer, ()))

    def disconnected(self, peer: PeerId, why: str) -> None:
        self._assembler.forget(peer)
        self.feed(v.PeerDisconnected(peer, why))

    def received(self, peer: PeerId, message: m.Control) -> None:
        self.feed(v.MessageReceived(peer, message))

    def refused(self, why: str) -> None:
        self._listener.handle(c.Stop(why, "refused"))

    def place(self, peer: PeerId, chunk: m.Chunk, size: int) -> memoryview | None:
        return self._assembler.place(peer, chunk, size)

    def chunk_received(self, peer: PeerId, chunk: m.Chunk) -> None:
        payload = self._assembler.received(peer, chunk)
        if payload is None:
            return
        match chunk:
            case m.ContributionChunk(stamp=stamp, part=part, contributor=who):
                # The first one stays: it may be summed already. The core compares manifests.
                self._store.slices.setdefault(self._store.slice_key(stamp, part, who.peer), payload)
                self.feed(v.SliceReceived(peer, stamp, part, who))
            case m.ResultChunk():
                self._job(
                    lambda: self.work.check_result(payload),
                    lambda digest: self._result_checked(peer, chunk, payload, digest),
                )
            case m.StateChunk(cut_index=index, fragment=fragment, round=round_):
                self._store.states[index, fragment] = payload
                self._job(
                    lambda: self.work.check_state(fragment, payload),
                    lambda digest: self.feed(
                        v.StateReceived(peer, index, fragment, round_, digest)
                    ),
                )

    def _result_checked(
        self, peer: PeerId, chunk: m.ResultChunk, payload: Bytes, digest: str
    ) -> None:
        if digest != chunk.digest:
            self.discarded += 1  # Damaged on its way, or a lie: as if it had not come.
            return
        self._store.results.setdefault((chunk.stamp, chunk.part), payload)
        self.feed(v.ResultReceived(peer, chunk.stamp, chunk.part, chunk.contributors, chunk.digest))

    def _payload_bytes(self, chunk: m.Chunk) -> int:
        """The most that a payload may have; 0 when nobody expects it."""
        run = self.core.members.run
        if run is None or self.arithmetic is None:
            return 0
        if isinstance(chunk, m.StateChunk):
            known = chunk.run == run.run and chunk.cut_index in self._expected
            return self.work.state_bytes(chunk.fragment) if known else 0
        fragment = chunk.stamp.fragment
        if chunk.stamp.run != run.run or fragment >= len(run.fragment_elements):
            return 0
        elements = run.fragment_elements[fragment]
        if isinstance(chunk, m.ContributionChunk):
            return self.work.contribution_bytes(fragment, elements)
        return self.work.result_bytes(fragment, elements)
