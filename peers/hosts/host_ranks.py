"""The ranks of a node on a further host: the process there that runs them for the node's daemon.

To a rank it is a daemon: the same socket, the same shared memory. It keeps no state of the run: if
the connection is lost, its ranks are killed, and it connects again. Must NOT decide anything about
training, nor change a message but for paths and memory of this host.
"""

import asyncio
import contextlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace

from peers.connections.session import Tls
from peers.hosts.arrays import HostParts
from peers.hosts.frames import Frame, FrameKind
from peers.hosts.messages import (
    VERSION,
    FromDaemon,
    HostDismissed,
    HostHello,
    HostWelcome,
    RanksExited,
    RankSilent,
    RanksStopped,
    StartRanks,
    StopRanks,
)
from peers.hosts.sealed_link import ERRORS, LostLink, SealedLink
from peers.ipc.daemon_socket import Closed, DaemonSocketServer, RankLink
from peers.ipc.messages import (
    Answer,
    Attached,
    Boundary,
    Configured,
    Contributed,
    GrantedLease,
    RankHello,
    RankLayout,
    RankMessage,
    RankRefused,
    Result,
    SampleDemand,
    StepMetrics,
)
from peers.ipc.msgpack_records import LinkError, decode, encode, kinds_of
from peers.ipc.shared_memory import Slots, SlotsError, SlotsShape
from peers.processes.supervisor import Exit, Spawner, SpawnError
from peers.ranks.socket_directory import SocketDirectory
from protocols.types import ConfigError, LowcommError

CONNECT_S = 10.0
AGAIN_S = 1.0
"""Seconds between two tries to connect."""
STEPS_S = 0.1
"""Seconds between two looks at the step counters, as often as the daemon looks for stalls."""
QUIET_TURNS = 10
"""Turns after which the counters are sent though none has moved."""
FROM_DAEMON = kinds_of(HostWelcome, HostDismissed, StartRanks, StopRanks)
TO_RANK = kinds_of(Configured, Attached, Answer, GrantedLease, Result, RankRefused)
AT_ONCE = (RankHello, RankLayout, Boundary, SampleDemand, StepMetrics)
"""Messages that do not wait until earlier contributions of the rank are sent: the daemon may as
well have got those of another rank late."""


class HostRanks:
    """The ranks of one connection to the daemon, attempt after attempt."""

    def __init__(
        self, link: SealedLink, welcome: HostWelcome, *, spawner: Spawner, socket_path: str
    ) -> None:
        self._link, self._spawner, self._socket_path = link, spawner, socket_path
        self._first, self._ranks = welcome.first, welcome.ranks
        self._attempt = -1
        """The number of the attempt that runs; -1: none does."""
        self._started = asyncio.Event()
        """Ranks of the attempt run."""
        self._links: dict[int, RankLink] = {}
        """By rank that said hello."""
        self._layouts: dict[int, bytes] = {}
        """By rank, the parts that it has reported."""
        self._slots: Slots | None = None
        """The memory of the ranks, from the first attempt that attaches on."""
        self._parts: HostParts | None = None

    async def run(self, sockets: DaemonSocketServer) -> HostDismissed | None:
        """Serve the daemon until the connection is lost: None, or it dismisses this host. No rank
        is left then."""
        works = (self._watch_exits(), self._beat(), self._hear_ranks(sockets))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work) for work in works]
                dismissed = await self._obey_frames(sockets)
                for task in tasks:
                    task.cancel()
            return dismissed
        finally:
            await self._stop(sockets)
            if self._slots is not None:
                self._slots.close()

    async def _obey_frames(self, sockets: DaemonSocketServer) -> HostDismissed | None:
        """Obey the daemon until the connection is lost: None, or it dismisses this host."""
        while not isinstance(frame := await self._link.receive(), LostLink):
            try:
                dismissed = await self._take_frame(frame, sockets)
            except (LinkError, SlotsError) as error:
                self._link.give_up(str(error))
                return None
            if dismissed is not None:
                return dismissed
        return None

    async def _take_frame(self, frame: Frame, sockets: DaemonSocketServer) -> HostDismissed | None:
        """A frame of the daemon. Raises LinkError or SlotsError."""
        if frame.kind is FrameKind.RESULT_PIECE:
            if self._parts is not None:
                self._parts.take_result_piece(frame)
        elif frame.kind is FrameKind.RANK:
            await self._give(frame)
        elif frame.kind is FrameKind.HOST:
            message: FromDaemon = decode(frame.payload, FROM_DAEMON)
            if isinstance(message, HostDismissed):
                return message
            await self._obey(message, sockets)
        return None

    async def _obey(self, message: FromDaemon, sockets: DaemonSocketServer) -> None:
        if isinstance(message, StartRanks):
            self._attempt = message.attempt
            given: list[dict[str, str]] = json.loads(message.environments)
            envs = [{**env, "LOWCOMM_SOCKET": self._socket_path} for env in given]
            try:
                await self._spawner.start(envs)
            except SpawnError as error:
                self._attempt = -1
                self._tell_exit(Exit(None, 1), str(error))
            else:
                self._started.set()
        elif isinstance(message, StopRanks):
            await self._stop(sockets)
            self._link.send(RanksStopped())
        else:
            raise LinkError(f"{type(message).__name__} out of turn")

    async def _stop(self, sockets: DaemonSocketServer) -> None:
        """No rank of the attempt is left, and nothing more is sent of it."""
        self._attempt, self._parts = -1, None
        self._started.clear()
        self._links, self._layouts = {}, {}
        sockets.end_links()
        await self._spawner.stop()
        self._link.forget_behind()
        if self._slots is not None:
            self._slots.void()

    # To the ranks ---------------------------------------------------------------------------

    async def _give(self, frame: Frame) -> None:
        link = self._links.get(frame.rank)
        message = decode(frame.payload, TO_RANK)
        if link is None:
            return  # It has ended, which the daemon will hear.
        if isinstance(message, RankRefused):
            link.refuse(message.why)
        elif isinstance(message, Attached):
            await self._attach(frame.rank, message)
        else:
            if isinstance(message, Result) and self._parts is not None:
                self._parts.publish(message)
            link.send(message)

    async def _attach(self, rank: int, message: Attached) -> None:
        """Give the rank this host's memory, which has the node's shape."""
        if why := _out_of_reach(message.frozen):
            self._links[rank].refuse(why)
            return
        wanted = message.shape
        shape = SlotsShape(wanted.ranks, wanted.fragment_bytes, wanted.copies)
        if self._slots is None or self._slots.shape != shape:
            if self._slots is not None:
                self._slots.close()
            try:
                self._slots = await asyncio.to_thread(Slots.create, shape)
            except OSError as error:
                raise LinkError(f"no memory for its ranks: {error}") from error
        self._parts = self._parts or HostParts(self._slots)
        self._parts.add_parts(rank, self._layouts.get(rank, b""))
        places = (0,) * len(message.contribution_places)
        here = replace(message, shape=shape, contribution_places=places)
        self._links[rank].send(here, fd=self._slots.fd)

    # To the daemon --------------------------------------------------------------------------

    async def _hear_ranks(self, sockets: DaemonSocketServer) -> None:
        while True:
            link, message = await sockets.receive()
            rank = next((rank for rank, other in self._links.items() if other is link), None)
            if rank is not None:
                self._forward(rank, message)
            elif isinstance(message, RankHello):
                self._greet(link, message)
            elif not isinstance(message, Closed):
                link.refuse(f"{type(message).__name__} before RankHello")

    def _greet(self, link: RankLink, message: RankHello) -> None:
        here = self._first <= message.rank < self._first + self._ranks
        if message.attempt != self._attempt:
            link.refuse(f"attempt {message.attempt} of the ranks is over")
        elif not here or message.rank in self._links:
            link.refuse(f"rank {message.rank} is not a rank of this host, or runs already")
        else:
            link.accept()
            self._links[message.rank] = link
            self._forward(message.rank, message)

    def _forward(self, rank: int, message: RankMessage | Closed) -> None:
        if isinstance(message, Closed):
            silent = RankSilent(rank=rank, why=message.why, ended=message.ended)
            self._link.put_behind((Frame(FrameKind.HOST, encode(silent)),))
            return
        if isinstance(message, RankLayout):
            self._layouts[rank] = message.parts
        elif isinstance(message, Contributed) and self._parts is not None:
            self._link.put_behind(self._parts.contribution(rank, message))
        frame = Frame(FrameKind.RANK, encode(message), rank)
        if isinstance(message, AT_ONCE):
            self._link.put(frame)
        else:
            self._link.put_behind((frame,))

    def _tell_exit(self, exited: Exit, line: str) -> None:
        code = exited.returncode
        message = RanksExited(
            all_ranks=exited.rank is None,
            index=exited.rank or 0,
            code=max(code, 0),
            signal=max(-code, 0),
            line=line,
        )
        frame = Frame(FrameKind.HOST, encode(message))
        if code:
            self._link.put(frame)
        else:
            self._link.put_behind((frame,))  # After the last messages of its ranks.

    async def _watch_exits(self) -> None:
        while True:
            await self._started.wait()
            try:
                exited = await self._spawner.wait()
            except ConfigError as error:
                exited = Exit(None, 1)
                self._tell_exit(exited, str(error))
            else:
                line = await self._spawner.last_line() if exited.returncode else ""
                # Not of ranks that were just killed, since their attempt is over.
                if self._started.is_set():
                    self._tell_exit(exited, line)
            if exited.rank is None:
                self._started.clear()  # It was the last one.

    async def _beat(self) -> None:
        """Send the step counters when they have moved, and now and then."""
        told: list[int] = []
        quiet = 0
        while not self._link.lost:
            slots, numbers = self._slots, range(self._first, self._first + self._ranks)
            steps = [0 if slots is None else slots.step_of_rank(rank) for rank in numbers]
            quiet += 1
            if steps != told or quiet == QUIET_TURNS:
                told, quiet = steps, 0
                packed = struct.pack(f"<{len(steps)}Q", *steps)
                self._link.put(Frame(FrameKind.STEPS, packed))
            await asyncio.sleep(STEPS_S)


def _out_of_reach(path: str) -> str:
    """Why the ranks of this host cannot write to this file; "" if they can, or need not."""
    if not path or os.path.isdir(os.path.dirname(path)):
        return ""
    return (
        f"{os.path.dirname(path)} is not on this host: if a model has frozen tensors, a node on "
        "several hosts needs its directory on a shared file system"
    )


async def run_ranks(
    address: tuple[str, int],
    *,
    host: int,
    tls: Tls,
    spawner: Spawner,
    say: Callable[[str], None],
) -> None:
    """Run the ranks of this host until the node's daemon dismisses it: also after lost connections.
    `say` tells a person. Raises LowcommError if the daemon refuses the host; OSError if no socket
    can be made here."""
    with contextlib.ExitStack() as stack:
        directory = SocketDirectory()
        directory.make_directory()
        stack.callback(directory.close)
        path = f"{directory.path}/lifeline"
        sockets = DaemonSocketServer(path, links_max=1024, obeyed=lambda _link, _message: None)
        stack.callback(sockets.close)
        said = ""
        try:
            while True:
                try:
                    why = await _connected(address, host, tls, spawner, sockets, path, say)
                    if why is None:
                        return
                except ERRORS as error:
                    why = str(error) or "no answer"
                if why != said:
                    say(f"no connection to the node's daemon: {why}; trying again")
                said = why
                await asyncio.sleep(AGAIN_S)
        finally:
            await spawner.close()


async def _connected(
    address: tuple[str, int],
    host: int,
    tls: Tls,
    spawner: Spawner,
    sockets: DaemonSocketServer,
    path: str,
    say: Callable[[str], None],
) -> str | None:
    """One connection: why it is lost; None if the daemon needs this host no more."""
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(*address, ssl=tls.dialling)
    link = SealedLink(reader, writer)
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(link.write_frames())
        try:
            link.send(HostHello(host=host, version=VERSION))
            dismissed = await _answer(link)
            if isinstance(dismissed, HostWelcome):
                say(f"connected: {dismissed.ranks} ranks from rank {dismissed.first} on")
                ranks = HostRanks(link, dismissed, spawner=spawner, socket_path=path)
                dismissed = await ranks.run(sockets)
        finally:
            link.give_up("it is closed")
            writing.cancel()
    if dismissed is None:
        return link.lost
    say(dismissed.why)
    if dismissed.failed:
        raise LowcommError(f"the node's daemon refuses this host: {dismissed.why}")
    return None


async def _answer(link: SealedLink) -> HostWelcome | HostDismissed | None:
    """The daemon's answer to our hello; None if the connection is lost."""
    frame = await link.receive()
    if isinstance(frame, LostLink):
        return None
    try:
        return decode(frame.payload, kinds_of(HostWelcome, HostDismissed))
    except LinkError as error:
        link.give_up(str(error))
        return None
