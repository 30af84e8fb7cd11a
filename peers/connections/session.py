"""The connections with one peer, and the callbacks of a mesh to its owner. Must NOT act."""

import ssl
from dataclasses import dataclass, field
from typing import Protocol

from peers.connections.bulk import Bulk, BulkOwner
from peers.connections.control import Link
from peers.connections.frames import Frame
from peers.sockets.rate_limit import RateLimit
from peers.sockets.tcp_info import NO_LINE, NOTHING, Flow, Line
from protocols.messages import Admit, Control, Hello
from protocols.types import PeerId


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS contexts of control connections; one context cannot serve both roles."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext


class MeshOwner(BulkOwner, Protocol):
    """Callbacks of a mesh to its owner. No method may raise or block."""

    def hello(self) -> Hello:
        """The present hello of this peer."""
        ...

    def refusal(self, hello: Hello) -> str:
        """Why the sender of a hello is refused; "" if it is not."""
        ...

    def connected(self, hello: Hello) -> None: ...

    def disconnected(self, peer: PeerId, why: str) -> None: ...

    def received(self, peer: PeerId, message: Control) -> None: ...

    def next_chunk(self, peer: PeerId) -> Frame | None:
        """The next chunk for this peer; None: nothing until `wake`."""
        ...

    def padding_bytes(self, peer: PeerId) -> int:
        """Bytes of padding that are worth sending to this peer to find out the rate of its line."""
        ...

    def is_revoked(self, peer: PeerId) -> bool:
        """Is the certificate of this peer revoked?"""
        ...

    def barred(self, peer: PeerId, why: str) -> None:
        """A peer that we dialled reports our certificate as revoked."""
        ...

    def is_member(self, peer: PeerId) -> bool:
        """Is the peer a member of the run, so that tunnels to it may go through us?"""
        ...

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None:
        """`size` bytes of a tunnel went through us from `source` to `sink`."""
        ...

    def admission_asked(self, number: int, admit: Admit) -> None:
        """A node without a certificate asks for one; `Mesh.answer` takes the answer."""
        ...

    def refused(self, why: str) -> None:
        """The address that a person gave does not answer, or refuses us."""
        ...


@dataclass(frozen=True, slots=True)
class Half:
    """A control connection that waits for its bulk connection; it delivers no message yet."""

    hello: Hello
    control: Link


@dataclass(slots=True)
class Watched:
    """A bulk connection with its figures."""

    flow: Flow = NOTHING
    """Its flow at the last check for another connection."""
    throttle: RateLimit = field(default_factory=RateLimit)


@dataclass(slots=True, eq=False)
class Session:
    """The connections with one peer."""

    hello: Hello
    control: Link
    address: str
    """The address that we dialled; "" if the peer dialled us."""
    bulks: dict[Bulk, Watched] = field(default_factory=dict[Bulk, Watched])
    ticket: bytes = b""
    """If we dialled: the last used ticket, which may be offered again until it has arrived."""
    dialling: bool = False
    """Another bulk connection is being opened."""
    line: Line = NO_LINE
    far: bool = False
    """Round trips are long."""

    @property
    def congested(self) -> bool:
        """There is more bulk data to send than the other side takes."""
        return any(bulk.congested for bulk in self.bulks)
