"""What a connection that is made, ends or falls silent means: for elections, for our rounds, and
for those whom we lead.

Must NOT end this peer: core.py does.
"""

from protocols.commands import Command, Send
from protocols.events import PeerConnected, PeerDisconnected
from protocols.forks import Forks
from protocols.government import Government
from protocols.hellos import Identity
from protocols.ids import PeerId
from protocols.links import Links
from protocols.membership import Membership
from protocols.messages import Leads, OnBranch, Seek
from protocols.participant import Participant
from protocols.raft import Raft

NEVER = float("inf")


class Company:
    """Everybody whom we are connected with, or should be."""

    def __init__(
        self,
        me: Identity,
        raft: Raft,
        members: Membership,
        part: Participant,
        links: Links,
        government: Government,
    ) -> None:
        self.leaderless_since = NEVER
        self._me = me
        self._raft = raft
        self._members = members
        self._part = part
        self._links = links
        self._government = government
        self.forks = Forks(me, raft, members, part, links, self.leader_address)

    def connected(self, event: PeerConnected, now: float) -> list[Command]:
        peer = event.peer
        self._links.connected(event, now)
        commands = self.forks.connected(peer)
        self._raft.connected(peer, now)
        self._part.reconnected(peer)
        self._government.reconnected(peer, event.incarnation)
        if self._raft.leader is None and event.leader:
            commands += self._led_to(event.leader)
        return commands

    def disconnected(self, event: PeerDisconnected, now: float) -> list[Command]:
        self._part.standing.catchup.disconnected(event.peer)
        self._raft.disconnected(event.peer, now)
        self._government.disconnected(event.peer)
        return self._links.disconnected(event.peer, event.why, now)

    def closed(self, peer: PeerId, why: str, now: float) -> Command:
        """We hang up: the peer misbehaves."""
        self._raft.disconnected(peer, now)
        return self._links.close(peer, why, now)

    def watch(self, now: float) -> list[Command]:
        """Peers that went away or fell silent; then what keeps the others."""
        commands: list[Command] = []
        office, readers = self._government.office, self._members.readers
        for loss in self._links.liveness.lost(now):
            if loss.silent:
                self._raft.disconnected(loss.peer, now)
            if office is not None:
                office.leader.lose(loss.peer, loss.why, left=False)
                office.disconnected(loss.peer)
                if loss.silent and loss.peer not in readers:
                    commands.append(self._links.gone(loss.peer, loss.why))
                    continue
            commands += self._links.renew(loss)
        for beat in self._links.due_heartbeats(now, self._members.index):
            commands += self._raft.beat(beat.peer) or [beat]
        found = self.hears_leader(now)
        self.leaderless_since = NEVER if found else min(self.leaderless_since, now)
        commands += self.forks.look(now, office, leaderless_since=self.leaderless_since)
        wanted = {**self._members.rivals, **readers}
        return commands + self._links.keep_up(now, self._me.peer, wanted, found=found)

    def hears_leader(self, now: float) -> bool:
        """Somebody leads us, and speaks to us."""
        up = self._raft.leader in self._links.up
        return self._raft.leads or (up and self._raft.heard_lately(now))

    def leader_address(self) -> str:
        """Where the leader listens; "" when we do not know."""
        leader = self._raft.leader
        if leader is None:
            return ""
        if leader == self._me.peer:
            return self._me.address
        info = self._members.readers.get(leader)
        return info.address if info else self._links.addresses.get(leader, "")

    def told(self, peer: PeerId, message: OnBranch | Seek | Leads, now: float) -> list[Command]:
        """Which branch a peer is on; or the question who leads, or the answer to it."""
        match message:
            case OnBranch():
                self.forks.heard(peer, message)
                return []
            case Seek():
                return [Send(peer, Leads(self.leader_address()))]
            case Leads(address=address):
                return [] if self.hears_leader(now) else self._led_to(address)

    def _led_to(self, address: str) -> list[Command]:
        return self._links.led_to(address, self._me.address, self._raft.log.last_index)
