"""What a connection that is made, ends or falls silent means: for elections, for our rounds, and
for those whom we lead.

Must NOT end this peer: core.py does.
"""

from collections.abc import Mapping, Set

from protocols.interface.commands import Command, Note, Send, Stop
from protocols.interface.events import PeerConnected, PeerDisconnected
from protocols.leader.leadership import Government
from protocols.leader.term import Office
from protocols.links.connections import Links
from protocols.links.handshake import Identity
from protocols.messages.peer import (
    Appended,
    Control,
    Heartbeat,
    Here,
    Leads,
    OnBranch,
    Seek,
    Unlinked,
)
from protocols.peer import shutdown
from protocols.peer.branches import Forks
from protocols.peer.participant import Participant
from protocols.raft.node import Raft
from protocols.state.log_applier import addresses
from protocols.state.run_state import Membership
from protocols.state.tokens import revocation
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, PeerInfo

OUTAGE = 10
"""Who has finished stays so many silence timeouts for members that may only be cut off: they need
its vote, and perhaps the last state."""
UNSAID = (0, False, None)
"""To a leader that knows nothing of us yet."""
FAREWELL_S = 1.0
"""A revoked peer reads for so long that it is out: it ends by that, if it does as it should."""
FROM_REVOKED = (Appended, Heartbeat, Here)
"""A revoked peer reads on, and nothing else that it says counts."""
COMPANY = (Heartbeat, Here, OnBranch, Seek, Leads)
"""What `take` takes."""


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
        self._silent_at = NEVER
        """When the leader will have been silent for too long, if we hear it."""
        self._has_losses = False
        self._me = me
        self._raft = raft
        self._members = members
        self._part = part
        self._links = links
        self._government = government
        self._said_missed: tuple[int, bool, object] = UNSAID
        """(in which term; whether we led it; what we told last of who is not connected)."""
        self._farewells: dict[PeerId, float] = {}
        """Since when each revoked peer may read, from us who lead, that it is out."""
        self._barred_at = NEVER
        """When we believe a peer that says that our certificate was revoked."""
        self.forks = Forks(me, raft, members, part, links, self.leader_address)

    def connected(self, event: PeerConnected, now: float) -> list[Command]:
        peer = event.peer
        self._links.connected(event, now)
        commands = self.forks.connected(peer)
        self._raft.connected(peer, now)
        if peer == self._raft.leader:
            self._said_missed = UNSAID  # It forgot what it heard on the last connection.
        self._part.reconnected(peer)
        self._government.reconnected(peer, event.incarnation)
        if self._raft.leader is None and event.leader:
            commands += self._led_to(event.leader)
        return commands

    def disconnected(self, event: PeerDisconnected, now: float) -> list[Command]:
        self._part.disconnected(event.peer)
        self._raft.disconnected(event.peer, now)
        self._government.disconnected(event.peer)
        return self._links.disconnected(event.peer, event.why, now)

    def closed(self, peer: PeerId, why: str, now: float) -> Command:
        """We hang up: the peer misbehaves."""
        self._raft.disconnected(peer, now)
        return self._links.close(peer, why, now)

    def watch(self, now: float) -> list[Command]:
        """Peers that went away or fell silent; then what keeps the others."""
        readers, rivals = self._members.readers, self._members.rivals
        due = now >= self._links.liveness.deadline()
        commands = self._lost_and_beats(now, readers) if due else []
        found = self.hears_leader(now)
        self._silent_at = self._heard_until if found and not self._raft.leads else NEVER
        self.leaderless_since = NEVER if found else min(self.leaderless_since, now)
        office = self._government.office
        commands += self.forks.look(now, office, leaderless_since=self.leaderless_since)
        wanted = {**rivals, **readers} if rivals else readers
        me, found = self._me.peer, found and not self._is_out_of_reach
        commands += self._links.keep_up(now, me, wanted, self._named, found=found)
        commands += self._tell_missed(now) + self._shut_out(now)
        if now >= self.goes_alone_at:
            commands.append(shutdown.when_out(self._part.standing, finished=True))
        return commands

    @property
    def deadline(self) -> float:
        """When something happens here without any event."""
        farewells = (since + FAREWELL_S for since in self._farewells.values())
        own = min(self.goes_alone_at, self._silent_at, self._barred_at, *farewells)
        return min(own, self.forks.deadline, self._links.deadline)

    def take_losses(self) -> bool:
        """The office lost somebody since the last time."""
        found, self._has_losses = self._has_losses, False
        return found

    def _lose(self, office: Office, peer: PeerId, why: str) -> None:
        office.leader.lose(peer, why, left=False)
        self._has_losses = True

    # Revoked peers --------------------------------------------------------------------------

    def keeps_out(self, peer: PeerId, message: Control) -> bool:
        """The message counts for nothing: its sender is revoked, or on another branch."""
        revoked = peer in self._members.spendings.revoked
        if revoked and not isinstance(message, FROM_REVOKED):
            return True
        return self.forks.keeps_out(peer, message)

    def reads_on(self, peer: PeerId) -> bool:
        """The peer is out, by its own wish or revoked, and reads that from us who lead."""
        revoked = peer in self._members.spendings.revoked
        return revoked and self._government.office is not None and peer in self._links.up

    def _shut_out(self, now: float) -> list[Command]:
        """No peer speaks with a revoked one. If we are it, that is the end."""
        revoked = self._members.spendings.revoked
        if why := self._is_barred(now):
            return [Stop(why, "refused")]
        commands: list[Command] = []
        for peer in sorted(revoked.keys() & self._links.up):
            since = self._farewells.setdefault(peer, now)
            if self.reads_on(peer) and now < since + FAREWELL_S:
                continue
            self._raft.disconnected(peer, now)
            commands.append(self._links.gone(peer, "its certificate was revoked"))
        if self._farewells:
            self._farewells = {p: t for p, t in self._farewells.items() if p in self._links.up}
        return commands

    def _is_barred(self, now: float) -> str:
        """Why our certificate counts no more; "": it does, as far as we can know.

        If our own log does not say so, one peer alone may say anything: most of the other voters
        have to say it, or the other one of two of which each went on alone; or any peer, when we
        have looked for a leader for long and no other voter speaks with us.
        """
        self._barred_at = NEVER
        me, raft, said = self._me.peer, self._raft, self._links.barred
        revoked, rivals = self._members.spendings.revoked, self._members.rivals.keys()
        if me in revoked:
            return revocation(revoked[me])
        if not said:
            return ""
        others = set(raft.log.voters) - {me}
        most = 2 * len(others & said.keys()) > len(others)
        late_at = self.leaderless_since + OUTAGE * raft.rules.silence_timeout_s
        late = now >= late_at
        self._barred_at = NEVER if late else late_at
        led = self.hears_leader(now)
        parted = bool(rivals) and rivals <= said.keys()
        alone = late and not self._links.up & others
        return next(iter(said.values())) if parted or (not led and (most or alone)) else ""

    def _tell_missed(self, now: float) -> list[Command]:
        """When it changes: the leader hears whom we miss; while we lead, people hear what is."""
        raft, office, members = self._raft, self._government.office, self._members.members
        leader = raft.leader if self._part.standing.is_member else None
        if office is not None:
            what: object = office.leader.reports.cut_off()
            command: Command = Note("links", str(what or "all members are connected again"))
        elif leader is not None and leader in self._links.up:
            what = tuple(sorted(self._links.missed(now) & members.keys()))
            command = Send(leader, Unlinked(what))
        else:
            return []
        term, led, before = self._said_missed
        self._said_missed = (raft.term, raft.leads, what)
        before = before if led == raft.leads else None
        # In a new term it is said again; that nobody is missed any more too, because who leads now
        # may have heard late what we said in an earlier one.
        return [command] if (what != before or term != raft.term) and (what or before) else []

    def _named(self) -> set[str]:
        """Where those listen whom our log names, in what we do not know to be committed; and all of
        the run, if nobody has let us in yet: whom we came by may be gone. Else links/connections.py
        dials those who are in; who leads out of reach has only those who were."""
        known = self._members.readers
        if self._is_out_of_reach:
            known = self._members.seats
        elif self._me.peer in known:
            known = dict[PeerId, PeerInfo]()
        named = addresses(known.values(), self._raft.log.since(self._members.index + 1))
        return set(named.values()) - {self._me.address, ""}

    @property
    def _is_out_of_reach(self) -> bool:
        """Nobody finds us, whether we lead or not, unless we dial."""
        return not (self._me.address or self._links.up)

    @property
    def goes_alone_at(self) -> float:
        """When nobody needs us any more: all is done, and nobody has led us for so long."""
        if self.leaderless_since == NEVER or not self._part.finished:
            return NEVER
        others = self._members.readers.keys() - {self._me.peer}
        patience_s = self._raft.rules.silence_timeout_s * (OUTAGE if others else 1)
        return self.leaderless_since + patience_s

    def _lost_and_beats(self, now: float, readers: Mapping[PeerId, PeerInfo]) -> list[Command]:
        """Who is lost from now on; who gets a heartbeat."""
        commands: list[Command] = []
        office = self._government.office
        if self._links.liveness.beat_due(now):
            self._links.liveness.watch(self._needed(now), now)
            if office is not None:
                office.forget_others()
        for loss in self._links.liveness.lost(now):
            if loss.silent:
                self._raft.disconnected(loss.peer, now)
            if office is not None:
                self._lose(office, loss.peer, loss.why)
                office.disconnected(loss.peer)
                if loss.silent and loss.peer not in readers:
                    commands.append(self._links.gone(loss.peer, loss.why))
                    continue
            commands += self._links.renew(loss)
        for beat in self._links.due_heartbeats(now):
            commands += self._raft.beat(beat.peer) or [beat]
        return commands

    def _needed(self, now: float) -> Set[PeerId]:
        """Those whose silence concerns us. The leader needs everybody; all need the leader, voters
        each other, and who waits for a result or a state needs those that make it."""
        raft, up = self._raft, self._links.up
        if raft.leads:
            return up
        needed = self._part.waits_for()
        if raft.leader is not None:
            needed.add(raft.leader)
        if raft.me in raft.log.voters or not self.hears_leader(now):
            needed.update(raft.log.voters)  # One of them leads next.
        return needed & up or up

    def hears_leader(self, now: float) -> bool:
        """Somebody leads us, and speaks to us."""
        up = self._raft.leader in self._links.up
        return self._raft.leads or (up and now < self._heard_until)

    @property
    def _heard_until(self) -> float:
        return self._raft.heard_at + 2 * self._raft.rules.election_timeout_s

    def gives_way(self, now: float) -> bool:
        """A leader that loses its vote lets another voter lead, for no other could take the vote
        away; so does one that cannot be dialled: who joins asks the leader."""
        office = self._government.office
        if office is not None and self._me.peer in office.leader.votes.leaving:
            return self._raft.hand_over(but=office.leader.unfit)
        if self._me.address or office is None or self._part.finished:
            return False
        if not office.leader.informed(now):
            return False  # Whoever wants to go hands over to us, and must not get it back.
        seats, going = self._members.readers, office.leader.unfit
        hidden = [p for p in self._raft.log.voters if p not in seats or not seats[p].address]
        return self._raft.hand_over(but=[*hidden, *going])

    @property
    def reaches_who_decides(self) -> bool:
        """Whoever could write it down if we want to leave."""
        up = self._links.up
        voters = up.intersection(self._raft.log.voters)
        return bool(voters) if self._raft.leads else self._raft.leader in up

    def leader_address(self) -> str:
        """Where the leader listens; "" when we do not know."""
        leader = self._raft.leader
        if leader is None:
            return ""
        if leader == self._me.peer:
            return self._me.address
        info = self._members.readers.get(leader)
        known = info or self._links.peers.get(leader)
        return known.address if known is not None else ""

    def take(
        self, peer: PeerId, message: Heartbeat | Here | OnBranch | Seek | Leads, now: float
    ) -> list[Command]:
        """What keeps a company together."""
        match message:
            case OnBranch():
                self.forks.heard(peer, message, now)
                return []
            case Heartbeat() if peer not in self._links.liveness.watched:
                return [Send(peer, Here())]  # It needs us, though we do not need it.
            case Seek():
                # Who has no address is named by its id: whoever is connected with it finds it.
                return [Send(peer, Leads(self.leader_address() or self._raft.leader or ""))]
            case Leads() if not self.hears_leader(now):
                return self._led_to(message.address)
            case _:
                return []

    def _led_to(self, address: str) -> list[Command]:
        return self._links.led_to(address, self._me.address, self._raft.log.last_index)
