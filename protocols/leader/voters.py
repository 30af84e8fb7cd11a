"""Decides which peer gets or loses its vote next; a revocation takes the vote away first.

A revoked peer with a vote would be needed for majorities but not heard, so its certificate is valid
until the entry that takes its vote is committed. The voters change one at a time (raft/node.py).
Must NOT append anything (decisions.py), nor answer a person (peer/certificates.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from protocols.leader.peer_accounts import Accounts
from protocols.messages.log_entries import Act, Entry, Revoked, TokenIssued, Voter
from protocols.messages.peer import RequestAct
from protocols.raft.log import Log
from protocols.raft.node import Raft
from protocols.state.entry_validation import cannot_act
from protocols.state.run_state import RunState
from protocols.state.tokens import subject
from protocols.types.ids import PeerId

VOTERS_MAX = 7
"""More voters would make every entry slower and no run safer."""
LAG_MAX = 64
"""Entries that a peer's log may lack when it becomes a voter."""
BEATS = 3
"""A peer that was silent for so many heartbeats does not count as reachable."""
PATIENCE_S = 1.5
"""Seconds until a revocation without a majority is refused. Meanwhile a connection may return, a
dead voter be removed, or another revocation be asked for."""
BRANCHES = (
    "the run goes on in two branches without a connection, and entries of this branch are lost if "
    "the other one stays: ask again when the branches have met, or add --force"
)


@dataclass(slots=True)
class Voters:
    """The leader's knowledge about votes. `accounts` and `gone` are the leader's own tables."""

    me: PeerId
    run_state: RunState
    """The state after the whole log, as in decisions.py."""
    raft: Raft
    accounts: Accounts
    gone: Mapping[PeerId, tuple[bool, str]]
    """Peers that are about to be removed from the log."""
    asked: dict[str, RequestAct] = field(default_factory=dict[str, RequestAct])
    """Accepted acts that are not in the log yet, by subject, oldest first."""
    leaving: set[PeerId] = field(default_factory=set[PeerId])
    """The peers of the revocations among these: they get neither a vote nor the lead."""

    log: Log = field(init=False)
    _reached: set[PeerId] = field(default_factory=set[PeerId])
    """Peers that were heard lately, and this one: a hanging connection shows no end."""
    _objected: dict[str, float] = field(default_factory=dict[str, float])
    """By subject of a revocation that is not accepted, since when there is a reason to refuse
    it."""

    def __post_init__(self) -> None:
        self.log = self.raft.log

    # Revocations ----------------------------------------------------------------------------

    def accept_acts(
        self, asked: Mapping[str, RequestAct], now: float
    ) -> list[tuple[RequestAct, str]]:
        """Accept every act of `asked`: a revocation if it leaves a majority, together with the
        others.

        Called again before each decision, since a remaining voter may be lost meanwhile. Returns
        the refused acts with their reasons: those with a reason for PATIENCE_S. A forced one is not
        refused.
        """
        if not (asked or self.asked) or not self.raft.settled:
            return []  # The usual case; or it is not known yet which peers are connected.
        self._look(now)
        self.asked, self.leaving = {}, set()
        objections: dict[str, str] = {}
        found = -1
        # One revocation may be possible only after another one, of a dead voter.
        while found < len(self.asked):
            found, objections = len(self.asked), {}
            for name, one in asked.items():
                if name in self.asked:
                    continue
                why = "" if one.force else self._objection(one.entry)
                if why:
                    objections[name] = why
                    continue
                self.asked[name] = one
                if isinstance(one.entry, Revoked):
                    self.leaving.add(one.entry.peer)
        self._objected = {name: self._objected.get(name, now) for name in objections}
        late = [name for name, since in self._objected.items() if now >= since + PATIENCE_S]
        return [(asked[name], objections[name]) for name in late]

    def next_act(self) -> Entry | None:
        """An act, of a revocation only if its peer does not vote any more; or the entry that takes
        the next vote."""
        for one in self.asked.values():
            if not cannot_act(self.run_state, one.entry) and self._has_no_vote(one):
                return one.entry
        return next(self._ends_of_votes(), None)

    def next_voter(self) -> Voter | None:
        """The next change of voters: up to VOTERS_MAX of the longest-lived members vote, not
        counting votes that are about to end; a peer with a failed disk does not vote."""
        voters = self.log.voters
        if self.raft.reconfiguring:
            return None
        for peer in voters:
            if peer != self.me and (why := self.accounts.broken(peer)):
                return Voter(peer, votes=False, why=why)
        if self.run_state.rivals or len(set(voters) - self.leaving) >= VOTERS_MAX:
            return None  # One of two voters that went on alone decides alone which branch stays.
        peer = next(self._fit(), None)
        if peer is None:
            return None
        key = self.run_state.key_of(peer)
        return Voter(peer, votes=True, why="there is a place", key=key)

    # Steps of a revocation ------------------------------------------------------------------

    def _has_no_vote(self, asked: RequestAct) -> bool:
        """Does its peer have no vote, by committed entries? A forced revocation does not wait for
        them."""
        if not isinstance(asked.entry, Revoked):
            return True  # A token has no vote.
        log, peer = self.raft.log, asked.entry.peer
        gone = peer not in log.voters
        return gone and (asked.force or not log.voted_since(peer, self.raft.commit_index))

    def _ends_of_votes(self) -> Iterator[Voter]:
        """Entries that take votes and can be committed; a revoked leader hands over instead
        (peer/connectivity.py).

        The new configuration is valid as soon as it is appended: a majority of it must be
        reachable, or the change could neither be committed nor taken back. Peers that are
        unreachable, or lag, come first, while the others still count for the majority.
        """
        voters, reached = set(self.log.voters), self._reached
        if not self.leaving or self.raft.reconfiguring:
            return
        replication = self.raft.replication
        asked = ((name, one.entry) for name, one in self.asked.items())
        revoked = [
            (entry.peer in reached, replication.match(entry.peer), name)
            for name, entry in asked
            if isinstance(entry, Revoked) and entry.peer in voters - {self.me}
        ]
        stays = _is_majority(reached, voters - self.leaving)
        for *_, name in sorted(revoked):
            one, rest = self.asked[name], voters - {PeerId(name)}
            if rest and (one.force or (stays and _is_majority(reached, rest))):
                why = f"its certificate is about to be revoked, as {one.entry.by} asked"
                yield Voter(PeerId(name), votes=False, why=why)

    def _objection(self, entry: Act) -> str:
        """Why this act is refused, as a line for a person; "" if it is not."""
        if isinstance(entry, TokenIssued):
            return ""
        if self.run_state.rivals and subject(entry) not in self.run_state.rivals:
            return BRANCHES
        voters = set(self.log.voters)
        if not isinstance(entry, Revoked) or entry.peer not in voters:
            return ""
        going = {entry.peer, *self.leaving, *self.gone}
        stay = voters - going
        fresh = len(set(self._fit()) - going)  # Learners that get a vote first.
        fresh = 0 if self.run_state.rivals else min(fresh, VOTERS_MAX - len(stay))
        here = stay & self._reached
        if 2 * (len(here) + fresh) > len(stay) + fresh:
            return ""
        if not stay:
            return "no voter would remain to decide anything: let another node join first"
        return (
            f"of the {len(stay)} voters that would remain only {len(here)} can be reached (not "
            f"{self._names(stay - here)}), and nothing could be decided: ask again when they are "
            "back or counted as lost, or add --force"
        )

    # Helpers --------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        links = self.accounts.links
        failure_detector = links.failure_detector
        since = now - BEATS * failure_detector.interval_s
        up = self.raft.up
        self._reached = {self.me, *(p for p in up if failure_detector.heard_since(p, since))}

    def _fit(self) -> Iterator[PeerId]:
        """Learners and witnesses that could vote now, the longest-lived first."""
        raft, voters, revoked = self.raft, self.log.voters, self.run_state.revoked
        accounts, run_state = self.accounts, self.run_state
        for peer, info in (*run_state.members.items(), *run_state.witnesses.items()):
            if peer in voters or peer in self.leaving or peer in revoked:
                continue
            if peer not in raft.up or peer in self.gone or accounts.broken(peer):
                continue
            lag = raft.log.last_index - raft.replication.match(peer)
            # Not an incarnation that the log does not know yet: it may have another disk.
            same = info.incarnation == accounts.links.life(peer, info.incarnation)
            if same and lag <= LAG_MAX:
                yield peer

    def _names(self, peers: Iterable[PeerId]) -> str:
        infos = {**self.run_state.seats, **self.run_state.witnesses}
        return ", ".join(infos[p].name if p in infos else p for p in sorted(peers))


def _is_majority(reached: set[PeerId], voters: set[PeerId]) -> bool:
    return 2 * len(reached & voters) > len(voters)
