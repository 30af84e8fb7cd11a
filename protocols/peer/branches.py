"""Branches of the log: one of two voters goes on alone, meets the other again, and one branch
stays.

Two voters that lose each other cannot tell which one is gone, and none is a majority. After
`lonely_after_s` each may go on in a branch of its own, named by the forks that led to it. Of their
logs, peers of two branches exchange nothing but OnBranch. When their leaders meet, both stop
committing and report their tokens: the one with fewer committed tokens gives its branch up
(protocol.md section 8).

A peer leaves its branch under a new id and without its log, since it voted there and must never be
taken for that voter again. Two entries are decided here and appended elsewhere: the Restore that
opens a branch (raft/node.py), and BranchDropped when one ends (leader/term.py). Must NOT decide any
other entry, nor elect a leader.
"""

import hashlib
from collections.abc import Callable, Set
from dataclasses import dataclass, replace

from protocols.interface.commands import Command, Send, Stop
from protocols.leader.recovery import back_to, cut_at
from protocols.leader.term import LeadershipTerm
from protocols.links.connections import Connections
from protocols.links.handshake import Identity
from protocols.messages.log_entries import BranchDropped, Restore
from protocols.messages.peer import Control, Heartbeat, HeartbeatReply, Kept, OnBranch
from protocols.participant.participant import Participant
from protocols.raft.mandate import parted
from protocols.raft.node import Raft
from protocols.state import transitions
from protocols.state.log_applier import addresses
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Version
from protocols.types.rules import ProtocolConfig

OF_ANY_BRANCH = (OnBranch, Heartbeat, HeartbeatReply)
"""Messages between peers of two branches."""
Name = tuple[int, ...]
"""The name of a branch: its forks, oldest first; () if there was none."""


def fork_of(
    run_state: RunState, me: PeerId, cut: Kept, *, lonely: bool, live: bool = False
) -> Restore:
    """The Restore with which `me` goes on as the only voter; `live`: its memory has these
    versions."""
    seed = f"{me} {run_state.lineage} {run_state.index}".encode()
    fork = int.from_bytes(hashlib.sha256(seed).digest()[:8], "big") | 1
    return replace(back_to(run_state, cut), voters=(me,), fork=fork, lonely=lonely, live=live)


class BranchMessages:
    """What each connected peer and this one have sent each other about their branches."""

    def __init__(self) -> None:
        self.theirs: dict[PeerId, OnBranch] = {}
        """By peer, its last OnBranch; a peer without one never forked."""
        self.ours: dict[PeerId, OnBranch] = {}
        """By peer, our last OnBranch."""
        self.won: set[PeerId] = set()
        """Peers that know that our branch stays."""

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new."""
        self.theirs.pop(peer, None)
        self.ours.pop(peer, None)
        self.won.discard(peer)


@dataclass(frozen=True, slots=True)
class Meeting:
    """It is being decided with the leader of another branch which branch stays."""

    rival: PeerId
    since: float


class Branches:
    """The branches of connected peers, and what follows from them."""

    def __init__(
        self,
        me: Identity,
        raft: Raft,
        run_state: RunState,
        part: Participant,
        links: Connections,
        leader_address: Callable[[], str],
    ) -> None:
        self._me = me
        self._raft, self._log = raft, raft.log
        self._run_state = run_state
        self._part = part
        self._links = links
        self._leader_address = leader_address
        self._messages = BranchMessages()
        self._intended: Name = ()
        """The branch of the log that is being read; the part that is here may end before its
        fork."""
        self._gives_up_at = NEVER
        """When our branch without a leader is given up for one with a leader."""
        self._alone_since = NEVER
        self._meeting: Meeting | None = None

    # Interface ------------------------------------------------------------------------------

    @property
    def ours(self) -> Name:
        """Our branch, by our whole log, uncommitted entries included."""
        log = self._run_state.forks + self._log.forks_after(self._run_state.index)
        if not self._intended:
            return log
        return self._intended if self._intended[: len(log)] == log else log

    @property
    def deadline(self) -> float:
        """The next time at which `look` has to run without an event."""
        meeting = self._meeting
        if meeting is None and self._alone_since == self._gives_up_at == NEVER:
            return NEVER
        alone = self._alone_since + self._rules.lonely_after_s
        met_at = NEVER if meeting is None else meeting.since
        return min(alone, met_at + self._rules.silence_timeout_s, self._gives_up_at)

    def first_message(self, peer: PeerId) -> list[Command]:
        """The first message on a new connection."""
        self._messages.forget(peer)
        return self._tell([peer])

    def heard(self, peer: PeerId, word: OnBranch, now: float) -> bool:
        """A peer reports its branch; True if it is another one than ours."""
        self._messages.theirs[peer] = word
        if self._log.last_index == 0:
            self._intended = word.forks  # We have no branch yet, and begin to read this one.
        if self._is_foreign(peer):
            self._raft.disconnected(peer, now)  # Its messages about our log do not count.
            return True
        return False

    def keeps_out(self, peer: PeerId, message: Control) -> bool:
        """Is the message about another branch of the log?"""
        if peer == self._me.peer or isinstance(message, OF_ANY_BRANCH):
            return False
        return self._is_foreign(peer)

    def look(
        self, now: float, led_term: LeadershipTerm | None, *, leaderless_since: float
    ) -> list[Command]:
        """Go on alone, decide with another branch, or give ours up, if it is time."""
        self._go_alone(now)
        self._gives_up_at = NEVER
        theirs = self._messages.theirs
        if not self.ours and not theirs:
            return []  # The usual case.
        up = sorted(self._links.up)
        foreign = [peer for peer in up if self._is_foreign(peer)]
        if led_term is not None:
            leading = [p for p in foreign if p in theirs and theirs[p].leads]
            left = self._left_alone() if leading else set[PeerId]()
            won = self._messages.won
            return self._meet(now, led_term, [p for p in leading if p in left - won])
        self._part_ways(None)
        known = self._named()
        led = (p for p in foreign if p in theirs and theirs[p].leader and p in known)
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
            self._leave_with(self._run_state, self._held(), now, after=after, live=True)
        else:
            # A new incarnation does not know what is committed; it has its checkpoint.
            head = transitions.copy(self._run_state)
            for entry in self._log.since(head.index + 1):
                transitions.apply(head, entry)
            member_status = self._part.member_status
            kept = member_status.kept
            if kept is not None and head.is_kept(kept.lineage, kept.versions):
                self._leave_with(head, kept, now, after=head.index)

    def _leave_with(
        self, run_state: RunState, cut: Kept | None, now: float, *, after: int, live: bool = False
    ) -> None:
        if cut is not None:
            fork = fork_of(run_state, self._me.peer, cut, lonely=True, live=live)
            self._raft.seize(now, fork, after=after)

    def _held(self) -> Kept | None:
        """The versions in memory; None if they are too old for the samples to be known."""
        rounds, run_state = self._part.rounds, self._run_state
        versions = tuple(Version(r.fragment, r.version, r.state_digest) for r in rounds)
        return cut_at(run_state, versions)

    def _is_alone(self) -> bool:
        """Is this peer one of exactly two voters, able to go on, with the other one out of
        reach?"""
        raft, member_status = self._raft, self._part.member_status
        # Committed entries only, if this incarnation knows any.
        voters = self._run_state.voters or raft.log.voters
        if raft.leads or len(voters) != 2 or self._me.peer not in voters:
            return False
        if self._links.up & set(voters) or not raft.disk.works or member_status.leaving:
            return False
        ready = self._has_state or (member_status.kept is not None and member_status.catchup.needed)
        return ready and not self._part.finished

    @property
    def _has_state(self) -> bool:
        member_status, rounds = self._part.member_status, self._part.rounds
        here = (
            member_status.accepted and member_status.is_member and not member_status.catchup.needed
        )
        # In a stepwise run the ranks have the state.
        return here and bool(rounds) and all(r.version >= 0 and not r.applying for r in rounds)

    # Two branches ---------------------------------------------------------------------------

    def _meet(self, now: float, led_term: LeadershipTerm, rivals: list[PeerId]) -> list[Command]:
        """Two leaders have met: both commit nothing until both have reported their tokens."""
        if not rivals or not self._raft.settled:
            self._part_ways(led_term)
            return self._tell(sorted(self._links.up))
        rival = rivals[0]
        if self._meeting is None or self._meeting.rival != rival:
            self._meeting = Meeting(rival, now)
        if now >= self._meeting.since + self._rules.silence_timeout_s:
            self._part_ways(led_term)  # Another connection tries again.
            return [self._links.close(rival, "does not report the tokens of its branch", now)]
        led_term.frozen = True
        commands = self._tell(sorted(self._links.up))
        messages = self._messages
        mine, theirs = messages.ours.get(rival), messages.theirs[rival]
        if not (mine and mine.final and theirs.final):
            return commands
        # Both sides of the connection compare the same two messages: exactly one gives up.
        if (-theirs.tokens, theirs.forks) < (-mine.tokens, mine.forks):
            return [*commands, self._give_up(rival)]
        messages.won.add(rival)
        led_term.leader.lose(rival, "its branch of the log is given up", left=False)
        led_term.append(BranchDropped(rival, theirs.forks, theirs.tokens))
        self._part_ways(led_term)
        return commands

    def _left_alone(self) -> set[PeerId]:
        """The peers that may have gone on alone: one of exactly two voters, while we were the other
        one. No other peer can make us give up our branch."""
        run_state = self._run_state
        return {*run_state.rivals, *parted(run_state.mandate, run_state.voters)}

    def _named(self) -> Set[PeerId]:
        """All peers that our log names, also in entries that are not applied yet."""
        log, run_state = self._log, self._run_state
        return addresses(run_state.seats.values(), log.since(run_state.index + 1)).keys()

    def _part_ways(self, led_term: LeadershipTerm | None) -> None:
        self._meeting = None
        if led_term is not None:
            led_term.frozen = False

    def _give_up(self, peer: PeerId) -> Stop:
        """The other branch stays; this peer stops."""
        why = f"another branch of this run stays, that of {peer}"
        if self._raft.leads:
            why += f"; ours had {self._run_state.tokens} committed {self._run_state.progress_unit}"
        return Stop(why, "dropped", self._messages.theirs[peer].leader)

    # Messages -------------------------------------------------------------------------------

    @property
    def _rules(self) -> ProtocolConfig:
        return self._raft.rules

    def _is_foreign(self, peer: PeerId) -> bool:
        word = self._messages.theirs.get(peer)
        return (word.forks if word is not None else ()) != self.ours

    def _tell(self, peers: list[PeerId]) -> list[Command]:
        """Report our branch once; peers of other branches also get changes, and the rival our
        tokens."""
        commands, sent = list[Command](), self._messages.ours
        rival = None if self._meeting is None else self._meeting.rival
        for peer in peers:
            foreign, said = self._is_foreign(peer), sent.get(peer)
            if foreign or (said is None and self.ours):
                word = self._word(final=peer == rival and self._is_quiet)
                if word != said:
                    sent[peer] = word
                    commands.append(Send(peer, word))
        return commands

    def _word(self, *, final: bool) -> OnBranch:
        tokens, leader = self._run_state.tokens if final else 0, self._raft.leader
        # A leader of another branch does not lead ours: a branch is not given up for itself.
        here = leader is not None and (leader == self._me.peer or not self._is_foreign(leader))
        address = self._leader_address() if here else ""
        return OnBranch(self.ours, tokens, self._raft.settled, final, address)

    @property
    def _is_quiet(self) -> bool:
        """Are all of our decisions committed?"""
        raft = self._raft
        return raft.log.last_index == raft.commit_index == self._run_state.index
