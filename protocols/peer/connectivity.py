"""Reacts to connections that open, close or fall silent: updates Raft, the open rounds and, on the
leader, the membership.

Must NOT stop this peer (core.py).
"""

from collections.abc import Mapping, Set

from protocols.interface.commands import Command, Send
from protocols.interface.events import PeerConnected, PeerDisconnected
from protocols.leader.leadership import Leadership
from protocols.leader.term import LeadershipTerm
from protocols.links.connections import Connections
from protocols.links.handshake import Identity
from protocols.messages.peer import (
    Control,
    FindLeader,
    Heartbeat,
    HeartbeatReply,
    LeaderAddress,
    OnBranch,
)
from protocols.participant.participant import Participant
from protocols.peer import shutdown
from protocols.peer.branches import Branches
from protocols.peer.leader_watch import OUTAGE, LeaderWatch
from protocols.peer.revoked_peers import RevokedPeers
from protocols.peer.unreached_report import UnreachedReport
from protocols.raft.node import Raft
from protocols.state.log_applier import addresses
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, PeerInfo

CONNECTIVITY = (Heartbeat, HeartbeatReply, OnBranch, FindLeader, LeaderAddress)
"""Messages that `handle_message` handles."""


class Connectivity:
    """All peers that are connected, or should be."""

    def __init__(
        self,
        me: Identity,
        raft: Raft,
        run_state: RunState,
        part: Participant,
        links: Connections,
        leadership: Leadership,
    ) -> None:
        self._has_losses = False
        self._me = me
        self._raft = raft
        self._log = raft.log
        self._run_state = run_state
        self._part = part
        self._links = links
        self._leadership = leadership
        self.leader_watch = LeaderWatch(raft, links)
        self.revoked_peers = RevokedPeers(me.peer, run_state, links, leadership, self.leader_watch)
        self._unreached = UnreachedReport(run_state, links, leadership, part.member_status)
        self.other_branches = Branches(me, raft, run_state, part, links, self.leader_address)

    def connected(self, event: PeerConnected, now: float) -> list[Command]:
        peer = event.peer
        self._links.connected(event, now)
        commands = self.other_branches.first_message(peer)
        self._raft.connected(peer, now)
        if peer == self._raft.leader:
            self._unreached.forget()  # Reports on the last connection are forgotten.
        self._part.reconnected(peer)
        self._leadership.reconnected(peer, event.incarnation)
        if self._raft.leader is None and event.leader:
            commands += self._led_to(event.leader)
        return commands

    def disconnected(self, event: PeerDisconnected, now: float) -> list[Command]:
        self._part.recovery.disconnected(event.peer)
        self._raft.disconnected(event.peer, now, lives=event.lives)
        self._leadership.disconnected(event.peer)
        return self._links.disconnected(event, now)

    def closed(self, peer: PeerId, why: str, now: float) -> Command:
        """Close the connection of a peer that breaks the rules."""
        self._raft.disconnected(peer, now)
        return self._links.close(peer, why, now)

    def watch(self, now: float) -> list[Command]:
        """Handle lost and silent peers, then keep up the other connections."""
        readers, rivals = self._run_state.readers, self._run_state.rivals
        failure_detector, watch = self._links.failure_detector, self.leader_watch
        due = now >= failure_detector.deadline()
        commands = self._lost_and_beats(now, readers) if due else []
        found = watch.look(now)
        led_term = self._leadership.led_term
        since = watch.leaderless_since
        commands += self.other_branches.look(now, led_term, leaderless_since=since)
        wanted = {**rivals, **readers} if rivals else readers
        me, found = self._me.peer, found and not self._is_out_of_reach
        commands += self._links.keep_up(now, me, wanted, self._named, found=found)
        commands += self._unreached.news(now, self._raft)
        commands += self.revoked_peers.shut_out(now, self._raft)
        if now >= self.goes_alone_at:
            commands.append(shutdown.when_out(self._part.member_status, finished=True))
        return commands

    @property
    def deadline(self) -> float:
        """The next time at which `watch` has to run without an event."""
        own = min(self.goes_alone_at, self.leader_watch.silent_at, self.revoked_peers.deadline)
        return min(own, self.other_branches.deadline, self._links.deadline)

    def take_losses(self) -> bool:
        """Has the leader lost a peer since the last call?"""
        found, self._has_losses = self._has_losses, False
        return found

    def _lose(self, led_term: LeadershipTerm, peer: PeerId, why: str) -> None:
        led_term.leader.lose(peer, why, left=False)
        self._has_losses = True

    def keeps_out(self, peer: PeerId, message: Control) -> bool:
        """Is the message void, since its sender is revoked or on another branch?"""
        if self._run_state.revoked and self.revoked_peers.drops(peer, message):
            return True
        return self.other_branches.keeps_out(peer, message)

    def _named(self) -> set[str]:
        """Addresses in uncommitted entries of our log; and of all peers of the run if this peer is
        not admitted yet, since its contact may be gone. Peers in the committed log are dialled by
        links/connections.py; a leader that is out of reach has only former members."""
        known = self._run_state.readers
        if self._is_out_of_reach:
            known = self._run_state.seats
        elif self._me.peer in known:
            known = dict[PeerId, PeerInfo]()
        named = addresses(known.values(), self._log.since(self._run_state.index + 1))
        return set(named.values()) - {self._me.address, ""}

    @property
    def _is_out_of_reach(self) -> bool:
        """Can no peer find this one unless it dials?"""
        return not (self._me.address or self._links.up)

    @property
    def goes_alone_at(self) -> float:
        """When this finished peer may leave, since no leader was heard for so long."""
        if self.leader_watch.leaderless_since == NEVER or not self._part.finished:
            return NEVER
        readers, rules = self._run_state.readers, self._raft.rules
        others = readers.keys() - {self._me.peer}
        patience_s = rules.silence_timeout_s * (OUTAGE if others else 1)
        return self.leader_watch.leaderless_since + patience_s

    def _lost_and_beats(self, now: float, readers: Mapping[PeerId, PeerInfo]) -> list[Command]:
        """Newly lost peers, and heartbeats that are due."""
        commands: list[Command] = []
        led_term, failure_detector = self._leadership.led_term, self._links.failure_detector
        if failure_detector.beat_due(now):
            failure_detector.watch(self._needed(now), now)
            self._note_pauses(now)
            if led_term is not None:
                led_term.forget_others()
        for loss in failure_detector.lost(now):
            if loss.silent:
                self._raft.disconnected(loss.peer, now)
            if led_term is not None:
                self._lose(led_term, loss.peer, loss.why)
                led_term.disconnected(loss.peer)
                if loss.silent and loss.peer not in readers:
                    commands.append(self._links.gone(loss.peer, loss.why))
                    continue
            commands += self._links.renew(loss)
        for beat in self._links.due_heartbeats(now):
            commands += self._raft.beat(beat.peer) or [beat]
        return commands

    def _note_pauses(self, now: float) -> None:
        """The election timeout follows the pauses of the leader."""
        leader, election = self._raft.leader, self._raft.election
        failure_detector = self._links.failure_detector
        if leader is not None:
            election.expect(failure_detector.pause_s(leader, now))

    def _needed(self, now: float) -> Set[PeerId]:
        """The peers to watch: the leader watches all peers; all watch the leader, voters each
        other, and a peer that waits for a result or a state those that make it."""
        raft, up = self._raft, self._links.up
        if raft.leads:
            return up
        needed = self._part.waits_for()
        if raft.leader is not None:
            needed.add(raft.leader)
        if raft.me in self._log.voters or not self.leader_watch.hears(now):
            needed.update(self._log.voters)  # One of them leads next.
        return needed & up or up

    def gives_way(self, now: float) -> bool:
        """Hand over as a leader that loses its vote, since another leader must take it; or as one
        that cannot be dialled, since joiners dial the leader."""
        led_term = self._leadership.led_term
        if led_term is None:
            return False
        leader, election = led_term.leader, self._raft.election
        vote_changes = leader.vote_changes
        if self._me.peer in vote_changes.leaving:
            return election.hand_over(but=leader.unfit)
        if self._me.address or self._part.finished:
            return False
        if not leader.informed(now):
            # A peer that leaves has handed over to us, and must not get the lead back.
            return False
        seats, going = self._run_state.readers, leader.unfit
        hidden = [p for p in self._log.voters if p not in seats or not seats[p].address]
        return election.hand_over(but=[*hidden, *going])

    @property
    def reaches_who_decides(self) -> bool:
        """Is a leader reachable that could append our Left?"""
        up = self._links.up
        voters = up.intersection(self._log.voters)
        return bool(voters) if self._raft.leads else self._raft.leader in up

    def leader_address(self) -> str:
        """The leader's address; "" if it is not known."""
        leader = self._raft.leader
        if leader is None:
            return ""
        if leader == self._me.peer:
            return self._me.address
        readers, connected = self._run_state.readers, self._links.peers
        known = readers.get(leader) or connected.get(leader)
        return known.address if known is not None else ""

    def handle_message(
        self,
        peer: PeerId,
        message: Heartbeat | HeartbeatReply | OnBranch | FindLeader | LeaderAddress,
        now: float,
    ) -> list[Command]:
        """Handle a message about connections and leaders."""
        match message:
            case OnBranch():
                led_term = self._leadership.led_term
                away = self.other_branches.heard(peer, message, now)
                if away and led_term is not None and peer in self._run_state.readers:
                    # Nothing that it says about this run counts: no round may wait for it.
                    self._lose(led_term, peer, "says that it is on another branch of the log")
                return []
            case Heartbeat() if peer not in self._links.failure_detector.watched:
                return [
                    Send(peer, HeartbeatReply())
                ]  # The peer watches us, though we do not watch it.
            case FindLeader():
                # A leader without an address is named by its id; peers connected with it find it.
                return [Send(peer, LeaderAddress(self.leader_address() or self._raft.leader or ""))]
            case LeaderAddress() if not self.leader_watch.hears(now):
                return self._led_to(message.address)
            case _:
                return []

    def _led_to(self, address: str) -> list[Command]:
        return self._links.led_to(address, self._me.address, self._log.last_index)
