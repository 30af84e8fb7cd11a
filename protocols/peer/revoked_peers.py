"""Peers with a revoked certificate: how long they may still read, and whether this peer is one.

Must NOT revoke a certificate (leader/joins.py), nor check one (certificates.py).
"""

from protocols.interface.commands import Command, Stop
from protocols.leader.leadership import Leadership
from protocols.links.connections import Connections
from protocols.messages.peer import Appended, Control, Heartbeat, HeartbeatReply
from protocols.peer.leader_watch import LeaderWatch
from protocols.raft.node import Raft
from protocols.state.run_state import RunState
from protocols.state.tokens import revocation
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId

FAREWELL_S = 1.0
"""Seconds for which a revoked peer may read that it is out; it should stop then by itself."""
FROM_REVOKED = (Appended, Heartbeat, HeartbeatReply)
"""Messages of a revoked peer that are accepted so that it can read on; all others are dropped."""


class RevokedPeers:
    """The revoked peers that are still connected, and reports that this peer is revoked."""

    def __init__(
        self,
        me: PeerId,
        run_state: RunState,
        links: Connections,
        leadership: Leadership,
        leader_watch: LeaderWatch,
    ) -> None:
        self._me = me
        self._run_state = run_state
        self._links = links
        self._leadership = leadership
        self._leader_watch = leader_watch
        self._farewells: dict[PeerId, float] = {}
        """By revoked peer, since when it may read from this leader that it is out."""

    @property
    def deadline(self) -> float:
        """The next time at which `shut_out` has to run without an event."""
        if not self._farewells:
            return NEVER  # The usual case.
        return min(self._farewells.values()) + FAREWELL_S

    def drops(self, peer: PeerId, message: Control) -> bool:
        """Is the message void, since its sender is revoked?"""
        revoked = peer in self._run_state.revoked
        return revoked and not isinstance(message, FROM_REVOKED)

    def reads_on(self, peer: PeerId) -> bool:
        """Is the peer out, by its own wish or revoked, and reads that from this leader?"""
        revoked = peer in self._run_state.revoked
        return revoked and self._leadership.led_term is not None and peer in self._links.up

    def shut_out(self, now: float, raft: Raft) -> list[Command]:
        """Close connections with revoked peers; stop if this peer is revoked."""
        revoked = self._run_state.revoked
        if why := self._is_barred(now, raft):
            return [Stop(why, "refused")]
        commands: list[Command] = []
        for peer in sorted(revoked.keys() & self._links.up):
            since = self._farewells.setdefault(peer, now)
            if self.reads_on(peer) and now < since + FAREWELL_S:
                continue
            raft.disconnected(peer, now)
            commands.append(self._links.gone(peer, "its certificate was revoked"))
        if self._farewells:
            self._farewells = {p: t for p, t in self._farewells.items() if p in self._links.up}
        return commands

    def _is_barred(self, now: float, raft: Raft) -> str:
        """Why our certificate is revoked; "" if it is not, as far as this peer can know.

        If our own log does not have the revocation, and no leader serves it, most of the other
        voters must report it, or the other one of two voters of which each went on alone. No fewer
        are believed, however long: one peer could end any other that it cuts off.
        """
        me, said = self._me, self._links.barred
        revoked, rivals = self._run_state.revoked, self._run_state.rivals
        if me in revoked:
            return revocation(revoked[me])
        if not said:
            return ""
        others = set(raft.log.voters) - {me}
        most = 2 * len(others & said.keys()) > len(others)
        led = self._leader_watch.hears(now)
        parted = bool(rivals) and rivals.keys() <= said.keys()
        return next(iter(said.values())) if parted or (not led and most) else ""
