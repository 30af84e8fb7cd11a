"""The handshake: a hello is checked here and nowhere else. Must NOT open or close connections."""

from dataclasses import dataclass

from protocols.messages.peer import Hello
from protocols.state.run_state import RunState
from protocols.state.tokens import revocation
from protocols.types.ids import PROTOCOL_VERSION, PeerId, PeerInfo
from protocols.types.limits import PEERS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """This peer as it describes itself in hellos and joins."""

    peer: PeerId
    name: str
    incarnation: int
    address: str
    witness: bool = False
    """This peer only votes."""

    def info(self, slot: int) -> PeerInfo:
        """The record of this peer for the log."""
        return PeerInfo(self.peer, self.name, self.incarnation, self.address, slot)


def refusal(hello: Hello, *, me: Identity, run: int, run_state: RunState, life: int) -> str:
    """Why the sender of a hello is refused, as a line for the person at its node; "" if it is not.

    `life`: its incarnation that is connected, or was a moment ago; 0 if there is none.
    """
    if hello.protocol != PROTOCOL_VERSION:
        return other_version(hello.name, hello.protocol)
    if hello.run and run and hello.run != run:
        return (
            f"{hello.name} belongs to another run: give that node a directory of its own (--set "
            "node.directory=PATH), or the address of its own run"
        )
    if hello.peer == me.peer:
        return f"a peer with the id {hello.peer} runs already: give each node its own directory"
    if hello.peer in run_state.spendings.revoked:
        return revocation(run_state.spendings.revoked[hello.peer])
    known = run_state.receivers.get(hello.peer)
    newest = max(life, known.incarnation if known is not None else 0)
    if newest > hello.incarnation:
        return f"{hello.peer} has restarted since; this is its earlier incarnation"
    if not run_state.has_room(hello.peer):
        return f"this run has {PEERS_MAX} peers already, the most that it can have"
    return ""


def other_version(name: str, protocol: int) -> str:
    return (
        f"{name} speaks protocol {protocol}, this run {PROTOCOL_VERSION}: "
        "install the same lowcomm version on every node"
    )
