"""Meshes and strangers for tests on real sockets.

Must NOT hold tests.
"""

import asyncio
import socket
from collections import Counter, deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from peers.connections.bulk import Bulk
from peers.connections.control import Link
from peers.connections.frames import PREFIX, Frame
from peers.connections.mesh import Mesh
from peers.connections.session import Tls
from peers.exchange.pieces import PIECE_ELEMENTS, spans
from peers.security.certificates import contexts
from peers.security.keys import OWN, OWN_KEY, OwnKey
from peers.sockets.listener import bind
from protocols.messages.peer import (
    Admit,
    BulkKeys,
    Chunk,
    Control,
    Hello,
    Message,
    Padding,
    ReadLog,
    Refused,
    StateChunk,
)
from protocols.state.parts import ELEMENT_BYTES
from protocols.types import limits
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from protocols.wire import codec

RUN = 7
ALPHA, BETA, EVE = PeerId("alpha.00000001"), PeerId("beta.00000002"), PeerId("eve.00000003")
PAYLOAD = bytes(range(251)) * 10_000  # 2.4 pieces.
STATE = StateChunk(RUN, 2, 3, 0, 4, 0, 0)


@dataclass(frozen=True)
class Up:
    peer: PeerId


@dataclass(frozen=True)
class Down:
    peer: PeerId
    why: str


Seen = Up | Down | tuple[PeerId, Control] | tuple[int, Admit] | bytes | str


class Node:
    """A mesh and its owner, which remembers what it is told, in order."""

    def __init__(self, peer: PeerId, *, tls: Tls | None = None, listen: str = "127.0.0.1:0"):
        self.peer = peer
        self.run = RUN
        self.protocol = PROTOCOL_VERSION
        self.incarnation = 1
        self.seen: list[Seen] = []
        self.mesh = Mesh(self, tls=tls)
        self.socket, self.address = bind(listen) if listen else (None, "")
        self.relayed_bytes: Counter[tuple[PeerId, PeerId]] = Counter()
        """By (source, sink)."""
        self.revoked: set[PeerId] = set()
        self.members: set[PeerId] | None = None
        """None: everybody."""
        self.living: list[PeerId] = []
        """Those that said before the end of their connection that they live."""
        self.stirred = 0
        """How often bytes came without a message."""
        self.accepts = True
        self.padding = 0
        """How much is worth sending to anybody to know a line ..."""
        self.padded_bytes: Counter[PeerId] = Counter()
        """... and how much was sent."""
        self._news = asyncio.Event()
        self._buffers: dict[PeerId, bytearray] = {}
        self._arrived: Counter[PeerId] = Counter()
        self._outgoing: dict[PeerId, deque[Frame]] = {}

    def hello(self) -> Hello:
        return Hello(self.protocol, self.run, self.peer, "name", self.incarnation, self.address, "")

    def refusal(self, hello: Hello) -> str:
        if hello.protocol != PROTOCOL_VERSION:
            return "another protocol"
        if hello.peer in self.revoked:
            return "revoked"
        return "" if hello.run == self.run else "another run"

    def peer_connected(self, hello: Hello) -> None:
        self._buffers.pop(hello.peer, None)
        self._arrived.pop(hello.peer, None)
        self._see(Up(hello.peer))

    def bytes_received(self, peer: PeerId) -> None:
        self.stirred += 1

    def disconnected(self, peer: PeerId, why: str, *, lives: bool) -> None:
        self.living += [peer] if lives else []
        self._outgoing.pop(peer, None)
        self._see(Down(peer, why))

    def received(self, peer: PeerId, message: Control) -> None:
        self._see((peer, message))

    def next_chunk(self, peer: PeerId) -> Frame | None:
        frames = self._outgoing.get(peer)
        return frames.popleft() if frames else None

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None:
        if not self.accepts or isinstance(chunk, Padding):
            return None
        assert isinstance(chunk, StateChunk)
        if peer not in self._buffers:
            self._buffers[peer] = bytearray(ELEMENT_BYTES * chunk.elements)
        start = ELEMENT_BYTES * chunk.start
        return memoryview(self._buffers[peer])[start : start + size]

    def padding_bytes(self, peer: PeerId) -> int:
        return self.padding

    def payload_sent(self, peer: PeerId, chunk: Chunk, size: int) -> None:
        if isinstance(chunk, Padding):
            self.padded_bytes[peer] += size
            self._news.set()

    def payload_received(self, peer: PeerId, chunk: Chunk, size: int, *, kept: bool) -> None:
        pass

    def chunk_received(self, peer: PeerId, chunk: Chunk) -> None:
        """By several connections they come in any order."""
        assert isinstance(chunk, StateChunk)
        self._arrived[peer] += 1
        if self._arrived[peer] * PIECE_ELEMENTS >= chunk.elements:
            del self._arrived[peer]
            self._see(bytes(self._buffers.pop(peer)))

    def is_revoked(self, peer: PeerId) -> bool:
        return peer in self.revoked

    def barred(self, peer: PeerId, why: str) -> None:
        self._see((peer, Refused(why, revoked=True)))

    def is_member(self, peer: PeerId) -> bool:
        return self.members is None or peer in self.members

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None:
        self.relayed_bytes[source, sink] += size

    def admission_asked(self, number: int, admit: Admit) -> None:
        self._see((number, admit))

    def refused(self, why: str) -> None:
        self._see(why)

    def _see(self, what: Seen) -> None:
        self.seen.append(what)
        self._news.set()

    async def until(self, condition: Callable[[], object], *, within_s: float = 10) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def until_bulks(self, peer: PeerId, count: int) -> None:
        """So many bulk connections with this peer, and no other one on its way."""
        async with asyncio.timeout(10):
            session = self.mesh.sessions[peer]
            while len(session.bulks) != count or session.dialling:  # noqa: ASYNC110  Nobody tells.
                await asyncio.sleep(0.01)

    async def until_closed(self, connection: socket.socket) -> None:
        """The other end hung up."""
        async with asyncio.timeout(10):
            assert not await asyncio.get_running_loop().sock_recv(connection, 1)

    async def until_seen(self, *wanted: Seen) -> None:
        """These are all that it saw, in this order; forget them."""
        await self.until(lambda: len(self.seen) >= len(wanted))
        assert self.seen == list(wanted)
        self.seen.clear()

    def stream(self, peer: PeerId, payload: bytes = PAYLOAD) -> None:
        self.send_chunks(peer, pieces(payload))

    def send_chunks(self, peer: PeerId, frames: Iterable[Frame]) -> None:
        """Let the mesh fetch them, as far as the other end takes them."""
        self._outgoing.setdefault(peer, deque()).extend(frames)
        self.mesh.wake(peer)

    def waiting(self, peer: PeerId) -> int:
        """Pieces that the mesh did not fetch yet."""
        return len(self._outgoing.get(peer, ()))

    @property
    def strangers(self) -> int:
        return len(self.mesh._acceptor)


def pieces(payload: bytes) -> Iterator[Frame]:
    """A state as a driver's streams give it to the link."""
    elements = len(payload) // ELEMENT_BYTES
    for start, stop in spans(elements):
        piece = memoryview(payload)[ELEMENT_BYTES * start : ELEMENT_BYTES * stop]
        yield replace(STATE, start=start, elements=elements), piece


def certified(directory: Path, *peers: PeerId) -> dict[PeerId, Tls]:
    """Certificates of one run, in a directory for each peer; each trusts all of them."""
    made: dict[PeerId, bytes] = {}
    for peer in peers:
        (directory / peer).mkdir(parents=True)
        made[peer] = OwnKey(directory / peer).certificate(peer)
    places = {peer: directory / peer for peer in peers}
    return {p: contexts(at / OWN, at / OWN_KEY, made.values()) for p, at in places.items()}


@asynccontextmanager
async def nodes(
    *peers: PeerId,
    tls: Mapping[PeerId, Tls] | None = None,
    listen: str = "127.0.0.1:0",
    hidden: Collection[PeerId] = (),
) -> AsyncGenerator[list[Node]]:
    """Listening, but for the `hidden`; closed at the end, after which nothing is left."""
    made = [
        Node(peer, tls=tls[peer] if tls else None, listen="" if peer in hidden else listen)
        for peer in peers
    ]
    try:
        for node in made:
            node.mesh.listen(node.socket)
        yield made
    finally:
        for node in made:
            await node.mesh.close()
            if node.socket is not None:
                node.socket.close()
    for node in made:
        assert not node.mesh._tunnel_service
        assert not node.mesh._open.links
        assert not node.mesh._bulk_connections.open
        assert not node.mesh._acceptor
        assert not node.mesh._half_open
        assert not node.mesh._bulk_connections.tickets


@asynccontextmanager
async def pair(
    tls: Mapping[PeerId, Tls] | None = None, listen: str = "127.0.0.1:0"
) -> AsyncGenerator[list[Node]]:
    """Two that are connected; beta dialled."""
    async with nodes(ALPHA, BETA, tls=tls, listen=listen) as (alpha, beta):
        beta.mesh.connect(alpha.address, peer="")
        await beta.until_seen(Up(ALPHA))
        await alpha.until_seen(Up(BETA))
        yield [alpha, beta]


class Stranger:
    """A bare socket."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.raw = socket.create_connection((host, int(port)))
        self.raw.setblocking(False)
        self._received = bytearray()

    async def send(self, *pieces: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # Closed in the middle, rightly.
            await asyncio.get_running_loop().sock_sendall(self.raw, b"".join(pieces))

    async def next(self) -> Message:
        """The next message."""
        async with asyncio.timeout(10):
            while not (found := decoded(self._received)):
                piece = await asyncio.get_running_loop().sock_recv(self.raw, 1 << 16)
                assert piece, "it hung up"
                self._received += piece
        del self._received[: len(frame(found[0]))]
        return found[0]

    async def answers(self) -> tuple[Message, BulkKeys]:
        """What comes after our hello: theirs, and the keys for a bulk connection."""
        hello, keys = await self.next(), await self.next()
        assert isinstance(keys, BulkKeys)
        return hello, keys

    async def messages(self, within_s: float = 10) -> list[Message]:
        """All until the other side closes."""
        received = bytearray()
        async with asyncio.timeout(within_s):
            try:
                while piece := await asyncio.get_running_loop().sock_recv(self.raw, 1 << 16):
                    received += piece
            except ConnectionResetError:
                pass
            finally:
                self.raw.close()
        return decoded(received)


def decoded(received: bytes | bytearray) -> list[Message]:
    """The whole messages."""
    found: list[Message] = []
    while len(received) >= PREFIX.size:
        size, _ = PREFIX.unpack_from(received)
        head, received = received[PREFIX.size :][:size], received[PREFIX.size + size :]
        if len(head) == size:
            found.append(codec.decode(head, size_max=limits.CONTROL_BYTES_MAX))
    return found


def frame(message: Message, payload: bytes = b"") -> bytes:
    head = codec.encode(message)
    return PREFIX.pack(len(head), len(payload)) + head + payload


def hello(peer: PeerId, **changes: object) -> bytes:
    base = Hello(PROTOCOL_VERSION, RUN, peer, "name", 1, "127.0.0.1:1", "")
    return frame(replace(base, **changes))  # pyright: ignore[reportArgumentType]


@contextmanager
def a_name_of_three(port: int) -> Generator[str]:
    """Whatever is looked up now has three addresses: one drops what comes, the second one nobody
    has, and the third one is 127.0.0.1."""

    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        of = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*of, (f"127.0.0.{last}", port)) for last in (2, 3, 1)]

    with ExitStack() as stack:
        stack.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        for _ in range(4):  # Its queue is full: the kernel drops what else comes.
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(("127.0.0.2", port))
        asyncio.get_running_loop().getaddrinfo = resolve  # type: ignore[method-assign,assignment]
        yield f"localhost:{port}"


async def still_works(alpha: Node, beta: Node) -> None:
    """The healthy ones noticed nothing."""
    for node in (alpha, beta):
        assert node.seen == []
    assert alpha.mesh.send(BETA, ReadLog(1))
    beta.stream(ALPHA)
    await beta.until_seen((ALPHA, ReadLog(1)))
    await alpha.until_seen(PAYLOAD)


def bulks_of(node: Node, peer: PeerId) -> list[Bulk]:
    return list(node.mesh.sessions[peer].bulks)


def bulk_of(node: Node, peer: PeerId) -> Bulk:
    """The only one."""
    (bulk,) = bulks_of(node, peer)
    return bulk


def cut(connection: Link | Bulk) -> None:
    """End a connection as the network would: no word from either side's mesh."""
    if isinstance(connection, Bulk):
        connection.connection.shutdown(socket.SHUT_RDWR)
    else:
        assert connection._transport is not None
        connection._transport.abort()
