"""The further hosts of one node, as its daemon sees them: connections, ranks, and their memory.

To a RankGroup a rank on another host is a RankLink as any other, and its contributions lie in the
same memory. Must NOT start processes of this host (`spawner.py`), nor decide when an attempt ends.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

from peers.connections.session import Tls
from peers.hosts.arrays import HostParts
from peers.hosts.frames import Frame, FrameKind
from peers.hosts.messages import (
    VERSION,
    FromHost,
    HostDismissed,
    HostHello,
    HostWelcome,
    RanksExited,
    RankSilent,
    RanksStopped,
    StartRanks,
    StopRanks,
)
from peers.hosts.sealed_link import BEAT_S, LostLink, SealedLink
from peers.ipc.daemon_socket import Closed, Inbox
from peers.ipc.messages import (
    Attached,
    Boundary,
    Contributed,
    DaemonMessage,
    RankEvaluated,
    RankHello,
    RankLayout,
    RankMessage,
    RankReady,
    RankRefused,
    Result,
    SampleDemand,
    Snapshotted,
    StepMetrics,
    TrainsNoMore,
    Unfit,
)
from peers.ipc.msgpack_records import LinkError, decode, encode, kinds_of
from peers.ipc.shared_memory import Slots
from peers.processes.supervisor import Exit, SpawnError

HANDSHAKE_S = 10.0
STOP_S = 20.0
"""Seconds in which a host kills its ranks; after this time its connection is given up."""
CONNECTIONS_MAX = 32
FROM_HOST = kinds_of(HostHello, RanksStopped, RanksExited, RankSilent)
FROM_RANK = kinds_of(
    *(RankHello, RankLayout, RankReady, Unfit, Boundary, SampleDemand),
    *(Contributed, StepMetrics, RankEvaluated, Snapshotted, TrainsNoMore),
)


class RemoteRank:
    """The daemon's end of a rank on another host, for one attempt. Implements RankLink."""

    pid = 0

    def __init__(self, rank: int, host: "Host") -> None:
        self.rank = rank
        self._host = host
        self.layout: RankLayout | None = None
        """The layout that the rank has reported."""

    def accept(self) -> None:
        """The host kills the rank with its attempt in any case."""

    def taken(self) -> None:
        """The host's connection is read on in any case; the ranks' own rules bound the inbox."""

    def send(self, message: DaemonMessage, *, fd: int = -1) -> None:
        """As DaemonSocket: never blocks. `fd` is of this host's memory."""
        self._host.send_rank(self, message)

    def refuse(self, why: str) -> None:
        self.send(RankRefused(why=why))


class Host:
    """One connected host."""

    def __init__(self, link: SealedLink, *, number: int, first: int, ranks: int) -> None:
        self.link = link
        self.number = number
        self.first = first
        self.ranks = ranks
        self.line = ""
        """The telling line of its ranks in this attempt, if one of them failed."""
        self.stopped = asyncio.Event()
        """It runs no ranks."""
        self.stopped.set()
        self._remote: dict[int, RemoteRank] = {}
        """By number, the ranks of the present attempt."""
        self._parts: HostParts | None = None
        self._slots: Callable[[], Slots | None] = lambda: None
        self._inbox: Inbox | None = None

    def begin_attempt(
        self,
        attempt: int,
        environments: Sequence[Mapping[str, str]],
        *,
        inbox: Inbox,
        slots: Callable[[], Slots | None],
    ) -> None:
        """Let the host begin this attempt. Raises SpawnError if it is lost."""
        if self.link.lost:
            raise SpawnError(f"host {self.number} is lost: {self.link.lost}")
        self._inbox, self._slots, self._parts, self.line = inbox, slots, None, ""
        numbers = range(self.first, self.first + self.ranks)
        self._remote = {number: RemoteRank(number, self) for number in numbers}
        self.stopped.clear()
        content = json.dumps([dict(each) for each in environments])
        self.link.send(StartRanks(attempt=attempt, environments=content))

    async def end_attempt(self) -> None:
        """Let the host kill its ranks, and wait until it has; it is given up if it does not."""
        self._remote, self._parts = {}, None
        self.link.forget_behind()
        if self.stopped.is_set() or self.link.lost:
            return
        self.link.send(StopRanks())
        try:
            async with asyncio.timeout(STOP_S):
                await self.stopped.wait()
        except TimeoutError:
            self.link.give_up(f"its ranks have not ended within {STOP_S:g} s")

    def send_rank(self, rank: RemoteRank, message: DaemonMessage) -> None:
        """Send a message to a rank of the present attempt; a result after its values."""
        if self._remote.get(rank.rank) is not rank:
            return
        if isinstance(message, Attached):
            self._attach(rank)
        frame = Frame(FrameKind.RANK, encode(message), rank.rank)
        if isinstance(message, Result):
            assert self._parts is not None, "results go to ranks that are attached"
            self.link.put_behind(self._parts.result(message))
            self.link.put_behind((frame,))
        else:
            self.link.put(frame)

    def take_frame(self, frame: Frame) -> Exit | None:
        """A frame of the host; returns the end of a rank. Raises LinkError."""
        if frame.kind is FrameKind.RANK:
            self._hear_rank(frame)
        elif frame.kind is FrameKind.CONTRIBUTED_PIECE:
            if self._parts is not None:
                self._parts.take_contribution_piece(frame)
        elif frame.kind is FrameKind.STEPS:
            self._take_steps(frame.payload)
        elif frame.kind is FrameKind.HOST:
            return self._hear(decode(frame.payload, FROM_HOST))
        else:
            raise LinkError(f"a frame of the kind {frame.kind.name}")
        return None

    def _attach(self, rank: RemoteRank) -> None:
        slots = self._slots()
        assert slots is not None, "a rank is attached to memory that is there"
        self._parts = self._parts or HostParts(slots)
        try:
            self._parts.add_parts(rank.rank, rank.layout.parts if rank.layout is not None else b"")
        except LinkError as error:
            self.link.give_up(f"rank {rank.rank}: {error}")

    def _hear_rank(self, frame: Frame) -> None:
        rank = self._remote.get(frame.rank)
        if rank is None or self._inbox is None:
            return  # It is of an attempt that is over.
        message: RankMessage | Closed = decode(frame.payload, FROM_RANK)
        if isinstance(message, RankLayout):
            rank.layout = message
            if not message.parts:
                why = "its program does not say what it writes: use a method of rounds of lowcomm"
                message = Closed(why, ended=False)
        elif isinstance(message, Contributed) and self._parts is not None:
            self._parts.complete(frame.rank, message)
        self._inbox.put_nowait((rank, message))

    def _take_steps(self, packed: bytes) -> None:
        if self._parts is not None and len(packed) == 8 * self.ranks:
            self._parts.take_steps(struct.unpack(f"<{self.ranks}Q", packed), first=self.first)

    def _hear(self, message: FromHost) -> Exit | None:
        if isinstance(message, RanksStopped):
            self.stopped.set()
        elif isinstance(message, RankSilent):
            rank = self._remote.get(message.rank)
            if rank is not None and self._inbox is not None:
                self._inbox.put_nowait((rank, Closed(message.why, message.ended)))
        elif isinstance(message, RanksExited):
            self.line = message.line and f"on host {self.number}: {message.line}"
            returncode = -message.signal if message.signal else message.code
            rank = None if message.all_ranks else self.first + message.index
            return Exit(rank, returncode) if self._remote else None
        else:
            raise LinkError("a second hello")
        return None


class RankHosts:
    """All further hosts of one node: `lead_here` before the first attempt, `open`, then `close`."""

    def __init__(
        self,
        listening: socket.socket,
        tls: Tls,
        *,
        counts: Sequence[int],
        ranks: int,
        note: Callable[[str], None],
        hint: str = "`lowcomm ranks`",
    ) -> None:
        """`counts`: number of ranks of each further host, of `ranks` of the node; their numbers
        follow those of the daemon's own host. `note` tells a person, `hint` the command that a
        person has to type there."""
        self.counts = (ranks - sum(counts), *counts)
        """Number of ranks of each host, this one first."""
        self.exits: asyncio.Queue[Exit] = asyncio.Queue()
        """Ends of ranks, and lost hosts, in this attempt."""
        self._listening, self._tls = listening, tls
        self._note, self._hint = note, hint
        self._hosts: dict[int, Host] = {}
        """By number, those that are connected."""
        self._changed = asyncio.Event()
        self._inbox: Inbox | None = None
        self._slots: Callable[[], Slots | None] = lambda: None
        self._serving: asyncio.Future[None] | None = None
        self._accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        self._accepted = asyncio.Queue(CONNECTIONS_MAX)

    @property
    def missing(self) -> list[int]:
        """Numbers of the hosts that are not connected."""
        numbers = range(1, len(self.counts))
        return [number for number in numbers if number not in self._hosts]

    @property
    def line(self) -> str:
        """The telling line of a rank of another host that failed in this attempt; "" without."""
        return next((host.line for host in self._hosts.values() if host.line), "")

    def lead_here(self, inbox: Inbox, slots: Callable[[], Slots | None]) -> None:
        """The messages of ranks go to this inbox from now on; implements Elsewhere of
        peers/ranks."""
        self._inbox, self._slots = inbox, slots

    async def all_here(self) -> None:
        """Wait until all hosts are connected."""
        if self.missing:
            self._note(f"waiting for {_named(self.missing)} of this node: {self._hint}")
        while self.missing:
            self._changed.clear()
            await self._changed.wait()

    def begin_attempt(self, attempt: int, environments: Sequence[Mapping[str, str]]) -> None:
        """Let all hosts begin this attempt; `environments`: of the ranks that are not on this host,
        in order. Raises SpawnError."""
        assert self._inbox is not None, "lead_here first"
        while not self.exits.empty():
            self.exits.get_nowait()
        if self.missing:
            raise SpawnError(f"{_named(self.missing)} of this node is lost")
        for _, host in sorted(self._hosts.items()):
            at = host.first - self.counts[0]
            own = environments[at : at + host.ranks]
            host.begin_attempt(attempt, own, inbox=self._inbox, slots=self._slots)

    async def end_attempt(self) -> None:
        """Let all hosts kill their ranks. Idempotent."""
        for host in tuple(self._hosts.values()):
            await host.end_attempt()

    def open(self) -> None:
        """Begin to accept hosts, inside a running loop; idempotent."""
        self._serving = self._serving or asyncio.ensure_future(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._accept,
            sock=self._listening,
            ssl=self._tls.accepting,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    reader, writer = await self._accepted.get()
                    tasks.create_task(self._serve_host(SealedLink(reader, writer)))
        finally:
            server.close()

    async def close(self) -> None:
        """Tell the hosts that the node has ended, and accept no other; idempotent."""
        hosts, self._hosts = self._hosts, {}
        for host in hosts.values():
            host.link.send(HostDismissed(why="the node has ended", failed=False))
            await host.link.close()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        self._listening.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self._accepted.put_nowait((reader, writer))
        except asyncio.QueueFull:
            writer.transport.abort()

    async def _serve_host(self, link: SealedLink) -> None:
        async with asyncio.TaskGroup() as tasks:
            works = [tasks.create_task(link.write_frames())]
            try:
                host = await self._greet(link)
                if host is not None:
                    works.append(tasks.create_task(_beat(link)))
                    await self._serve_frames(host)
            finally:
                link.give_up("it is closed")
                for work in works:
                    work.cancel()

    async def _greet(self, link: SealedLink) -> Host | None:
        """Answer the hello of a host; None if it is refused or says none."""
        frame = await link.receive()
        if isinstance(frame, LostLink):
            return None
        try:
            hello = decode(frame.payload, kinds_of(HostHello))
        except LinkError as error:
            link.give_up(str(error))
            return None
        why = ""
        if hello.version != VERSION:
            why = "it has another version of lowcomm than its daemon"
        elif not 1 <= hello.host < len(self.counts):
            why = f"node.other_hosts has {len(self.counts) - 1} hosts: there is no {hello.host}"
        if why:
            link.send(HostDismissed(why=why, failed=True))
            await link.close()
            return None
        before = self._hosts.pop(hello.host, None)
        if before is not None:
            before.link.give_up("it has connected anew")
        first, ranks = sum(self.counts[: hello.host]), self.counts[hello.host]
        host = Host(link, number=hello.host, first=first, ranks=ranks)
        link.send(HostWelcome(first=first, ranks=host.ranks))
        return host

    async def _serve_frames(self, host: Host) -> None:
        self._hosts[host.number] = host
        self._changed.set()
        self._note(f"host {host.number} is connected: {host.ranks} ranks from rank {host.first} on")
        try:
            await self._read_frames(host)
        finally:
            host.stopped.set()
            why = f"host {host.number} of this node is lost: {host.link.lost or 'it is closed'}"
            if self._hosts.get(host.number) is host:  # It has not connected anew.
                del self._hosts[host.number]
                self._note(why)
            self.exits.put_nowait(Exit(None, 1, lost=why))

    async def _read_frames(self, host: Host) -> None:
        while not isinstance(frame := await host.link.receive(), LostLink):
            try:
                exited = host.take_frame(frame)
            except LinkError as error:
                host.link.give_up(str(error))
                return
            if exited is not None:
                self.exits.put_nowait(exited)


async def _beat(link: SealedLink) -> None:
    """Tell the host that this side is alive."""
    while not link.lost:
        link.put(Frame(FrameKind.STEPS, b""))
        await asyncio.sleep(BEAT_S)


def _named(numbers: Sequence[int]) -> str:
    return f"host{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
