"""Who may connect at all. What a hello says is checked here and nowhere else."""

from dataclasses import dataclass

from protocols.messages.peer import Hello
from protocols.state.participants import has_room
from protocols.state.run_state import Membership
from protocols.state.tokens import revocation
from protocols.types.ids import PROTOCOL_VERSION, PeerId, PeerInfo
from protocols.types.limits import PEERS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who we are, as we tell others."""

    peer: PeerId
    name: str
    incarnation: int
    address: str
    witness: bool = False
    """We vote, and train nothing."""

    def info(self, slot: int) -> PeerInfo:
        """As the log knows us."""
        return PeerInfo(self.peer, self.name, self.incarnation, self.address, slot)


def refusal(hello: Hello, *, me: Identity, run: int, members: Membership, life: int) -> str:
    """Why a peer is not let in, as a line for the person at its other end; "": it is.

    `life`: the incarnation in which we are connected with it, or were a moment ago; 0: in none.
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
    if hello.peer in members.spendings.revoked:
        return revocation(members.spendings.revoked[hello.peer])
    known = members.receivers.get(hello.peer)
    newest = max(life, known.incarnation if known is not None else 0)
    if newest > hello.incarnation:
        return f"{hello.peer} has restarted since; this is its earlier life"
    if not has_room(members, hello.peer):
        return f"this run has {PEERS_MAX} peers already: no message could name one more"
    return ""


def other_version(name: str, protocol: int) -> str:
    return (
        f"{name} speaks protocol {protocol}, this run {PROTOCOL_VERSION}: "
        "install the same lowcomm version on every node"
    )
