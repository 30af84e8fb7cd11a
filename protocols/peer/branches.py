"""Branches of the log: one of two peers goes on alone, meets the other again, and one branch stays.

Two voters that lose each other cannot tell who is gone, and none of them is a majority. After
`lonely_after_s` each may go on in a branch of its own, named by the forks that led to it; two
branches tell each other nothing of their logs but OnBranch. When their leaders meet, both stop
committing and say what they have: the one with fewer committed tokens gives its branch up
(protocol.md section 8).

A peer leaves its branch under a new id and without its log: it voted there, and must never seem to
be that voter again. Two entries are decided here, and written by others: the Restore that opens a
branch (raft/node.py), Dropped when one ends (leader/term.py). Must NOT decide any other, nor elect
anybody.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace

from protocols.interface.commands import Command, Send, Stop
from protocols.leader.recovery import back_to, cut_at
from protocols.leader.term import Office
from protocols.links.connections import Links
from protocols.links.handshake import Identity
from protocols.messages.log_entries import Dropped, Restore
from protocols.messages.peer import Control, Heartbeat, Here, Kept, OnBranch
from protocols.peer.participant import Participant
from protocols.raft.node import Raft
from protocols.state.run_state import Membership
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Version
from protocols.types.rules import ProtocolConfig

OF_ANY_BRANCH = (OnBranch, Heartbeat, Here)
"""What peers of two branches say to each other."""
Name = tuple[int, ...]
"""Of a branch: its forks, oldest first; () never forked."""


def fork_of(
    members: Membership, me: PeerId, cut: Kept, *, lonely: bool, live: bool = False
) -> Restore:
    """The entry with which `me` goes on as the only voter, from this cut; `live`: we are there."""
    seed = f"{me} {members.lineage} {members.index}".encode()
    fork = int.from_bytes(hashlib.sha256(seed).digest()[:8], "big") | 1
    return replace(back_to(members, cut), voters=(me,), fork=fork, lonely=lonely, live=live)


class Forks:
    """Who of our connections is on which branch, and what follows from it."""

    def __init__(
        self,
        me: Identity,
        raft: Raft,
        members: Membership,
        part: Participant,
        links: Links,
        leader_address: Callable[[], str],
    ) -> None:
        self._me = me
        self._raft = raft
        self._members = members
        self._part = part
        self._links = links
        self._leader_address = leader_address
        self._theirs: dict[PeerId, OnBranch] = {}
        """What each connected peer said last; who says nothing never forked."""
        self._said: dict[PeerId, OnBranch] = {}
        self._intended: Name = ()
        """The branch whose log we begin to read: what we have of it may not reach its fork."""
        self._gives_up_at = NEVER
        """When a branch that somebody leads takes the place of ours, which nobody does."""
        self._alone_since = NEVER
        self._rival: PeerId | None = None
        """The leader of another branch, with whom we decide."""
        self._met_at = NEVER
        self._won: set[PeerId] = set()
        """Connected peers that know that our branch stays."""

    # Interface ------------------------------------------------------------------------------

    @property
    def ours(self) -> Name:
        """Our branch, by our whole log, committed or not."""
        log = self._members.forks + self._raft.log.forks_after(self._members.index)
        if not self._intended:
            return log
        return self._intended if self._intended[: len(log)] == log else log

    @property
    def deadline(self) -> float:
        """When something happens without any event."""
        if self._alone_since == self._met_at == self._gives_up_at == NEVER:
            return NEVER
        alone = self._alone_since + self._rules.lonely_after_s
        return min(alone, self._met_at + self._rules.silence_timeout_s, self._gives_up_at)

    def connected(self, peer: PeerId) -> list[Command]:
        """Before anything else is said on a new connection."""
        self._theirs.pop(peer, None)
        self._said.pop(peer, None)
        self._won.discard(peer)
        return self._tell([peer])

    def heard(self, peer: PeerId, word: OnBranch, now: float) -> None:
        """A peer says where it stands."""
        self._theirs[peer] = word
        if self._raft.log.last_index == 0:
            self._intended = word.forks  # We have no branch yet: we begin to read this one.
        if self._is_foreign(peer):
            self._raft.disconnected(peer, now)  # Its word about our log counts for nothing.

    def keeps_out(self, peer: PeerId, message: Control) -> bool:
        """It is about another branch of the log than ours."""
        if peer == self._me.peer or isinstance(message, OF_ANY_BRANCH):
            return False
        return self._is_foreign(peer)

    def look(self, now: float, office: Office | None, *, leaderless_since: float) -> list[Command]:
        """Go on alone, decide with another branch, or give ours up, when it is time to."""
        self._go_alone(now)
        self._gives_up_at = NEVER
        if not self.ours and not self._theirs:
            return []  # As nearly always.
        up = sorted(self._links.up)
        foreign = [peer for peer in up if self._is_foreign(peer)]
        rivals = [p for p in foreign if p in self._theirs and self._theirs[p].leads]
        if office is not None:
            return self._meet(now, office, [p for p in rivals if p not in self._won])
        self._part_ways(None)
        led = (peer for peer in foreign if peer in self._theirs and self._theirs[peer].leader)
        if (peer := next(led, None)) is not None:
            self._gives_up_at = leaderless_since + self._rules.silence_timeout_s
            if now >= self._gives_up_at:
                return [self._give_up(peer)]
        return self._tell(up)

    # Alone ----------------------------------------------------------------------------------

    def _go_alone(self, now: float) -> None:
        if not self._is_alone():
            self._alone_since = NEVER
            return
        self._alone_since = min(self._alone_since, now)
        if now < self._alone_since + self._rules.lonely_after_s:
            return
        self._alone_since = NEVER
        if self._has_state:
            after = self._raft.commit_index
            self._leave_with(self._members, self._held(), now, after=after, live=True)
        else:
            # A new life knows of no entry whether it holds; its checkpoint is what it has.
            head = self._members.copy()
            for entry in self._raft.log.since(head.index + 1):
                head.apply(entry)
            kept = self._part.standing.kept
            if kept is not None and head.is_kept(kept.lineage, kept.versions):
                self._leave_with(head, kept, now, after=head.index)

    def _leave_with(
        self, members: Membership, cut: Kept | None, now: float, *, after: int, live: bool = False
    ) -> None:
        if cut is not None:
            fork = fork_of(members, self._me.peer, cut, lonely=True, live=live)
            self._raft.seize(now, fork, after=after)

    def _held(self) -> Kept | None:
        """The state that we have; None: too far behind to say what was trained until then."""
        rounds, members = self._part.rounds, self._members
        versions = tuple(Version(r.fragment, r.version, r.state_digest) for r in rounds)
        return cut_at(members, versions)

    def _is_alone(self) -> bool:
        """One of exactly two voters, able to go on, and the other one cannot be reached."""
        raft, standing = self._raft, self._part.standing
        # Those that hold for certain, if this life knows that of any.
        voters = self._members.voters or raft.log.voters
        if raft.leads or len(voters) != 2 or self._me.peer not in voters:
            return False
        if self._links.up.intersection(voters) or not raft.disk.works or standing.leaving:
            return False
        ready = self._has_state or (standing.kept is not None and standing.catchup.needed)
        return ready and not self._part.finished

    @property
    def _has_state(self) -> bool:
        standing, rounds = self._part.standing, self._part.rounds
        here = standing.accepted and standing.is_member and not standing.catchup.needed
        # The ranks own that of a stepwise run.
        return here and bool(rounds) and all(r.version >= 0 and not r.applying for r in rounds)

    # Two branches ---------------------------------------------------------------------------

    def _meet(self, now: float, office: Office, rivals: list[PeerId]) -> list[Command]:
        """Both leaders commit nothing more, until both said what they have."""
        if not rivals or not self._raft.settled:
            self._part_ways(office)
            return self._tell(sorted(self._links.up))
        rival = rivals[0]
        if self._rival != rival:
            self._rival, self._met_at = rival, now
        if now >= self._met_at + self._rules.silence_timeout_s:
            self._part_ways(office)  # We try again on another connection.
            return [self._links.close(rival, "does not say what its branch holds", now)]
        office.frozen = True
        commands = self._tell(sorted(self._links.up))
        mine, theirs = self._said.get(rival), self._theirs[rival]
        if not (mine and mine.final and theirs.final):
            return commands
        # The same two words on both sides of this connection: exactly one side gives up.
        if (-theirs.tokens, theirs.forks) < (-mine.tokens, mine.forks):
            return [*commands, self._give_up(rival)]
        self._won.add(rival)
        office.leader.lose(rival, "its branch of the log is given up", left=False)
        office.append(Dropped(rival, theirs.forks, theirs.tokens))
        self._part_ways(office)
        return commands

    def _part_ways(self, office: Office | None) -> None:
        self._rival, self._met_at = None, NEVER
        if office is not None:
            office.frozen = False

    def _give_up(self, peer: PeerId) -> Stop:
        """The other branch stays; ours ends here."""
        why = f"another branch of this run stays, that of {peer}"
        if self._raft.leads:
            why += f"; ours had {self._members.tokens} committed {self._members.progress_unit}"
        return Stop(why, "dropped", self._theirs[peer].leader)

    # Words ----------------------------------------------------------------------------------

    @property
    def _rules(self) -> ProtocolConfig:
        return self._raft.rules

    def _is_foreign(self, peer: PeerId) -> bool:
        word = self._theirs.get(peer)
        return (word.forks if word is not None else ()) != self.ours

    def _tell(self, peers: list[PeerId]) -> list[Command]:
        """Say where we stand, once; whoever is elsewhere hears what changes, and our rival what we
        have."""
        commands: list[Command] = []
        for peer in peers:
            foreign, said = self._is_foreign(peer), self._said.get(peer)
            if foreign or (said is None and self.ours):
                word = self._word(final=peer == self._rival and self._is_quiet)
                if word != said:
                    self._said[peer] = word
                    commands.append(Send(peer, word))
        return commands

    def _word(self, *, final: bool) -> OnBranch:
        tokens, leader = self._members.tokens if final else 0, self._raft.leader
        # Who is on another branch leads none of ours: nobody must give its own up for itself.
        here = leader is not None and (leader == self._me.peer or not self._is_foreign(leader))
        address = self._leader_address() if here else ""
        return OnBranch(self.ours, tokens, self._raft.settled, final, address)

    @property
    def _is_quiet(self) -> bool:
        """Nothing that we decided is still under way."""
        raft = self._raft
        return raft.log.last_index == raft.commit_index == self._members.index
