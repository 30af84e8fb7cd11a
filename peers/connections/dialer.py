"""Makes connections: dialling, hello, retries.

Must NOT decide which peers to dial, keep sessions, or accept connections.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from peers.connections.acceptor import MAGIC
from peers.connections.clock_skew import tls_fault
from peers.connections.control import Link, LinkOwner
from peers.connections.encryption import Keys
from peers.connections.session import MeshOwner
from peers.sockets.address import parse_address, require_loopback
from peers.sockets.name_resolution import addresses_of
from peers.tunnels.client import connect, show
from protocols.messages import BulkKeys, Control, Hello, Refused
from protocols.types import PROTOCOL_VERSION, ConfigError, PeerId

DIAL_TIMEOUT_S = 5.0
REDIAL_DELAYS_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between tries, longer and longer while they fail quickly."""
QUICK_S = 2.0
FIRST_DIAL_S = 30.0
"""Seconds for which the address that a person gave may not answer."""
ANSWERS = 2
"""Answers to our hello: the other hello, and the keys of the bulk connection."""


BulkDialled = Callable[[Link, socket.socket | None, Keys], None]
"""Called when another bulk connection is open; None: it has failed."""


class DialError(OSError):
    """This try has failed."""


class DialerHost(LinkOwner, Protocol):
    """What dialling needs from the mesh. No method may raise or block."""

    def is_connected(self, peer: str, address: str) -> bool:
        """Is there a session with this peer ("": any peer) or at this address?"""
        ...

    def yields_to(self, peer: PeerId) -> bool:
        """Does a connection that this peer made win over one that we make?"""
        ...

    def dialled(
        self, address: str, hello: Hello, control: Link, bulk: socket.socket, keys: Keys
    ) -> None:
        """Control and bulk connection are open."""
        ...


@dataclass(slots=True)
class Dial:
    """An address that is tried until `forget`."""

    address: str
    """HOST:PORT; for a tunnel a text for people."""
    peer: str
    """The peer there; "" until one has answered."""
    via: Sequence[PeerId] = ()
    """Peers that may carry a tunnel to a peer without an address; another one after each try."""
    hosts: list[str] = field(default_factory=list[str])
    """Resolved addresses that are not tried yet in this turn."""
    task: "asyncio.Task[None] | None" = None
    tries: int = 0
    tried_at: float = float("-inf")
    fault: str = ""
    """Why the last try failed; "" if it did not."""


class Dialer:
    """All dialled addresses, each with a task that ends when there is a session."""

    def __init__(
        self,
        host: DialerHost,
        owner: MeshOwner,
        *,
        tunnel: Callable[[PeerId, PeerId], Awaitable[socket.socket]],
    ) -> None:
        """`owner`: that of the mesh. `tunnel(peer, relay)` connects with a peer that cannot be
        dialled, or raises OSError."""
        self.tls: ssl.SSLContext | None = None
        """None: unencrypted, and then to loopback addresses only."""
        self._host = host
        self._owner = owner
        self._tunnel = tunnel
        self._dials: dict[str, Dial] = {}
        """By address."""
        self._answers: dict[Link, asyncio.Queue[Control | None]] = {}
        """By link, the first messages of the other side; None: it closed the connection."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    # Interface ------------------------------------------------------------------------------

    def connect(self, address: str, *, peer: str, via: Sequence[PeerId] = ()) -> None:
        """Dial until there is a session, and again after `again`, until `forget`. `via`: peers that
        may carry a tunnel to a peer without an address."""
        address = address or f"{peer}, through another peer"
        dial = self._dials.setdefault(address, Dial(address, peer))
        dial.peer, dial.via = peer or dial.peer, via
        if dial.task is None or dial.task.done():
            self._start(dial)

    def again(self, peer: PeerId) -> None:
        """The session with this peer has ended: dial again."""
        for dial in self._dials.values():
            # A running task checks for a session itself before it ends.
            if dial.peer == peer and (dial.task is None or dial.task.done()):
                self._start(dial)

    def forget(self, peer: PeerId) -> None:
        """Stop dialling this peer."""
        for address in [a for a, dial in self._dials.items() if dial.peer == peer]:
            dial = self._dials.pop(address)
            if dial.task is not None:
                dial.task.cancel()

    def faults(self) -> dict[str, str]:
        """By address without a session, why the last try failed."""
        return {address: dial.fault for address, dial in self._dials.items() if dial.fault}

    async def close(self) -> None:
        """End all tries. Idempotent."""
        self._closing = True
        self._dials.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def open_bulk(self, control: Link, keys: Keys, done: BulkDialled) -> None:
        """Open another bulk connection; `done` follows unless this object is closed."""
        if not self._closing:
            self._spawn(self._try_bulk(control, keys, done), f"bulk to {control.peer}")

    def received(self, link: Link, message: Control) -> bool:
        """True if the message answers our hello."""
        answers = self._answers.get(link)
        if answers is not None and answers.qsize() < ANSWERS:
            answers.put_nowait(message)
        return answers is not None

    def closed(self, link: Link) -> None:
        """A link has ended, perhaps one that waits for an answer to our hello."""
        answers = self._answers.get(link)
        if answers is not None:
            answers.put_nowait(None)

    # One address ----------------------------------------------------------------------------

    def _start(self, dial: Dial) -> None:
        if self._closing:
            return
        dial.task = self._spawn(self._run(dial), f"dial {dial.address}")

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, dial: Dial) -> None:
        """Try until there is a session, or the address that a person gave has refused us."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while not self._host.is_connected(dial.peer, dial.address):
            if not dial.hosts:
                await self._wait_turn(dial)
            failure, final = "", False
            try:
                async with asyncio.timeout(DIAL_TIMEOUT_S):
                    dial.hosts = dial.hosts or await self._hosts(dial)
                    failure = await self._try(dial, dial.hosts.pop(0))
                    final = bool(failure)
            except OSError as error:  # A TimeoutError is an OSError without a text.
                dial.fault = tls_fault(error) or "no answer in time"
                failure = f"no peer answers at {dial.address}: {dial.fault}"
                final = loop.time() - started > FIRST_DIAL_S
            else:
                dial.fault = failure
            if final and not dial.peer:
                self._dials.pop(dial.address, None)
                self._owner.refused(failure)
                return
        dial.fault = ""
        dial.hosts.clear()  # Next time the name may have other addresses.

    async def _wait_turn(self, dial: Dial) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - dial.tried_at < QUICK_S:
            await asyncio.sleep(REDIAL_DELAYS_S[min(dial.tries, len(REDIAL_DELAYS_S) - 1)])
            dial.tries += 1
        else:
            dial.tries = 0
        dial.tried_at = loop.time()

    async def _hosts(self, dial: Dial) -> list[str]:
        """The addresses to try, in order. Raises OSError if there is none."""
        if dial.via:
            return [dial.address]
        try:
            look = parse_address if self.tls is not None else require_loopback
            return await addresses_of(*look(dial.address, key="address"))
        except (ConfigError, UnicodeError) as error:
            # Addresses come from other peers too: a malformed one counts as one without an answer.
            raise DialError(str(error)) from error

    async def _try(self, dial: Dial, host: str) -> str:
        """One try; returns why the other side refused us, or "". Raises OSError if it failed."""
        control, answers = Link(self._host, accepted=False), asyncio.Queue[Control | None]()
        self._answers[control] = answers
        try:
            await self._open(control, dial, host)
            control.send(self._owner.hello())
            hello = await answers.get()
            if isinstance(hello, Refused):
                if hello.revoked and control.certified:
                    self._owner.barred(PeerId(control.certified), hello.why)
                return f"refused by {dial.address}: {hello.why}"
            if not isinstance(hello, Hello):
                raise DialError("it closed the connection, or does not speak our protocol")
            if hello.protocol != PROTOCOL_VERSION:
                return f"{dial.address} speaks protocol {hello.protocol}, not {PROTOCOL_VERSION}"
            if dial.peer and dial.peer != hello.peer:
                raise DialError(f"{hello.peer} is there now, not {dial.peer}")
            if self.tls is not None and control.certified != hello.peer:
                raise DialError(f"its certificate is not that of {hello.peer}")
            if self._owner.is_revoked(hello.peer):
                raise DialError(f"the certificate of {hello.peer} was revoked")
            given = await answers.get()
            if not isinstance(given, BulkKeys):
                raise DialError("closed after its hello")
            keys = Keys.of(given.secret)
            bulk = await self._open_bulk(control, PeerId(hello.peer))
            if not control.is_open or self._host.yields_to(hello.peer):
                bulk.close()
                raise DialError("closed after its hello, or it dialled us")
            # The other side drops its own connection for this one as soon as it reads the ticket,
            # so we must not yield any more.
            show(bulk, MAGIC, keys.ticket)
            del self._answers[control]
            dial.peer = hello.peer
            self._host.dialled(dial.address, hello, control, bulk, keys)
            return ""
        finally:
            if self._answers.pop(control, None) is not None:
                control.close("dialling failed")

    async def _try_bulk(self, control: Link, keys: Keys, done: BulkDialled) -> None:
        bulk: socket.socket | None = None
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                opened = await self._open_bulk(control, PeerId(control.peer))
            show(opened, MAGIC, keys.ticket)
            bulk = opened
        except OSError:
            # The present connections carry all data, only slower; another request will follow.
            pass
        done(control, bulk, keys)

    async def _open(self, link: Link, dial: Dial, host: str) -> None:
        """Connect and handshake. Raises OSError."""
        loop = asyncio.get_running_loop()
        if not dial.via:
            _, port = parse_address(dial.address, key="address")
            await loop.create_connection(lambda: link, host, port, ssl=self.tls)
            return
        link.through = dial.via[dial.tries % len(dial.via)]
        connection = await self._tunnel(PeerId(dial.peer), link.through)
        name = None if self.tls is None else ""
        await loop.create_connection(
            lambda: link, sock=connection, ssl=self.tls, server_hostname=name
        )

    async def _open_bulk(self, control: Link, peer: PeerId) -> socket.socket:
        """Connect to the other end of this control connection. Raises OSError."""
        if not control.through:
            return await connect(control.remote)
        return await self._tunnel(peer, control.through)
