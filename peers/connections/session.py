"""What a mesh has with one peer, and what it tells whoever made it. Must NOT act."""

import ssl
from dataclasses import dataclass, field
from typing import Protocol

from peers.connections.bulk import Bulk, BulkOwner
from peers.connections.control import Link
from peers.connections.frames import Frame
from peers.sockets.rate_limit import Throttle
from peers.sockets.tcp_info import NO_LINE, NOTHING, Flow, Line
from protocols.messages.peer import Admit, Control, Hello
from protocols.types.ids import PeerId


@dataclass(frozen=True, slots=True)
class Tls:
    """How control connections are secured; one context cannot play both roles."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext


class MeshOwner(BulkOwner, Protocol):
    """What a mesh tells whoever made it. No method may raise or block."""

    def hello(self) -> Hello:
        """Who we are, at this moment."""
        ...

    def refusal(self, hello: Hello) -> str:
        """Why this peer is not let in; "": it is."""
        ...

    def connected(self, hello: Hello) -> None: ...

    def disconnected(self, peer: PeerId, why: str) -> None: ...

    def received(self, peer: PeerId, message: Control) -> None: ...

    def next_chunk(self, peer: PeerId) -> Frame | None:
        """What to send this peer in bulk; None: nothing, until `wake`."""
        ...

    def padding_bytes(self, peer: PeerId) -> int:
        """How much is worth sending to this peer only to know what its line carries."""
        ...

    def is_revoked(self, peer: PeerId) -> bool:
        """Its certificate counts no more."""
        ...

    def barred(self, peer: PeerId, why: str) -> None:
        """A peer that we dialled says that our certificate was revoked."""
        ...

    def is_member(self, peer: PeerId) -> bool:
        """Of the run: others may speak through us with it."""
        ...

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None:
        """So many bytes of one went through us to the other."""
        ...

    def admission_asked(self, number: int, admit: Admit) -> None:
        """Somebody without a certificate asks for one; `Mesh.answer` takes the answer."""
        ...

    def refused(self, why: str) -> None:
        """The peer whose address a person gave does not answer, or does not want us."""
        ...


@dataclass(frozen=True, slots=True)
class Half:
    """A control connection that waits for its bulk connection. It delivers nothing yet."""

    hello: Hello
    control: Link


@dataclass(slots=True)
class Watched:
    """What is known of one bulk connection."""

    flow: Flow = NOTHING
    """What became of it until we looked last whether there should be another one."""
    throttle: Throttle = field(default_factory=Throttle)


@dataclass(slots=True, eq=False)
class Session:
    """The connections with one peer."""

    hello: Hello
    control: Link
    address: str
    """Where we dialled it; empty if it dialled us."""
    bulks: dict[Bulk, Watched] = field(default_factory=dict[Bulk, Watched])
    ticket: bytes = b""
    """The last one that we used, if we dialled: it may be offered again until it has arrived."""
    dialling: bool = False
    """We open another bulk connection."""
    line: Line = NO_LINE
    far: bool = False
    """Round trips are long."""

    @property
    def congested(self) -> bool:
        """There is more bulk to send than the other side takes."""
        return any(bulk.congested for bulk in self.bulks)
