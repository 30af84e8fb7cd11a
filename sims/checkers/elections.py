"""I1 and I4, elections: one leader for each term, who has all that holds, and whom nobody unseats.

Must NOT look at what a leader decides (decisions.py), nor at disks (durability.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.log import Voters
from protocols.types.ids import PeerId

if TYPE_CHECKING:
    from sims.node.node import Node

LEADS_ALONE_TIMEOUTS = 2.2
"""A leader looks once in an election timeout who answered since it looked last: it notices after
at most two that nobody does."""
ASLEEP_S = 2.5
"""Longer than any pause between two events of a leader, which sends heartbeats each second."""


@dataclass(slots=True)
class Reign:
    """What we saw of one leader in its term."""

    node: Node
    term: int
    began: float
    since: float
    """When it began, or woke up the last time."""
    seen: int
    """We looked at its log up to here."""
    commit_index: int
    looked_at: float
    heard: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """When each acknowledged something."""
    planned_at: dict[int, float] = field(default_factory=dict[int, float])
    """By fragment: when it last opened or changed a round."""
    voters: Voters = ()
    """Of whom a majority must answer."""
    before: list[tuple[float, Voters]] = field(default_factory=list[tuple[float, Voters]])
    """Of whom it had to, and until when: the leader may have looked last while they voted."""


class Elections:
    """Of the whole world, by what is said aloud."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self.leaders: dict[int, PeerId] = {}
        """By term."""
        self.reigns: dict[PeerId, Reign] = {}
        """Of those who led when they were seen last."""
        self._found = found
        self._votes: dict[tuple[PeerId, int], PeerId] = {}
        """By (voter, term)."""
        self._voters: dict[tuple[PeerId, int], Voters] = {}
        """Whom a peer asked for a term, by (peer, term)."""
        self._granted: dict[tuple[PeerId, int], set[PeerId]] = {}
        """Who would vote for it, by (peer, term)."""
        self._heirs: set[tuple[PeerId, int]] = set()
        """Whom a leader asked to lead in this term."""
        self._stood: dict[tuple[PeerId, int], m.Vote] = {}
        self._heard: dict[PeerId, tuple[PeerId, float]] = {}
        """Which leader each peer heard last, and when."""

    # Votes ----------------------------------------------------------------------------------

    def received(self, node: Node, event: v.MessageReceived) -> None:
        """A follower hears its leader; a leader hears that it is followed."""
        raft, now = node.core.raft, node.world.now
        if isinstance(event.message, m.Append):
            if raft.leader == event.peer and raft.term == event.message.term:
                self._heard[node.peer] = (event.peer, now)
        elif isinstance(event.message, m.Appended):
            reign = self.reigns.get(node.peer)
            if reign is not None and event.message.term == reign.term:
                reign.heard[event.peer] = now
        elif isinstance(event.message, m.HandOver):
            self._heirs.add((node.peer, event.message.term + 1))

    def asked_or_voted(self, node: Node, to: PeerId, message: m.Vote | m.Voted) -> None:
        """Votes are given once in a term, and nobody stands who was not asked to."""
        term = message.term
        match message:
            case m.Vote(pre=True):
                self._voters[node.peer, term] = node.core.raft.log.voters
            case m.Vote():
                self._stands(node, message)
                self._votes_for(node.peer, term, node.peer)
            case m.Voted(granted=True, pre=True):
                self._would_vote(node, to, term)
            case m.Voted(granted=True):
                self._votes_for(node.peer, term, to)
                self._fits(node, to, term)
            case _:
                pass

    def _votes_for(self, voter: PeerId, term: int, candidate: PeerId) -> None:
        known = self._votes.setdefault((voter, term), candidate)
        if known != candidate:
            self._found(f"{voter} votes for {candidate} in term {term}, and did for {known}")

    def _stands(self, node: Node, message: m.Vote) -> None:
        """Whoever hears nobody must not raise the term of those who hear each other."""
        key = (node.peer, message.term)
        if key in self._stood:
            return
        self._stood[key] = message
        voters = self._voters.get(key, ())
        granted = self._granted.get(key, set()) | {node.peer}
        asked = 2 * len(granted.intersection(voters)) > len(voters)
        # Its disk may have been full meanwhile: then it asks who came since without hurry.
        heir = message.urgent or key in self._heirs
        if not (heir or (voters and asked)):
            self._found(f"{node.peer} stands in term {message.term}, for which few would vote")

    def _would_vote(self, node: Node, to: PeerId, term: int) -> None:
        """Who hears its leader helps nobody to unseat it."""
        self._granted.setdefault((to, term), set()).add(node.peer)
        raft, now = node.core.raft, node.world.now
        leader, at = self._heard.get(node.peer, (None, 0.0))
        recent = now < at + node.core.rules.election_timeout_s
        if raft.leads or (raft.leader == leader and leader in raft.up and recent):
            self._found(f"{node.peer} hears {leader}, and would vote for {to} in term {term}")

    def _fits(self, node: Node, to: PeerId, term: int) -> None:
        """A vote goes to a log that has all that the voter's has."""
        raft, vote = node.core.raft, self._stood.get((to, term))
        if vote is None or raft.term != term or raft.leader is not None:
            return  # Somebody leads this term already: our log may be another one than it was.
        log = raft.log
        if (vote.last_term, vote.last_index) < (log.last_term, log.last_index):
            self._found(f"{node.peer} votes in term {term} for {to}, whose log lacks entries")

    # Who leads ------------------------------------------------------------------------------

    def led(self, node: Node, event: v.Event, log: Mapping[int, e.Entry]) -> Reign | None:
        """A peer that leads took an event; None: it does not, any more."""
        raft, now = node.core.raft, node.world.now
        reign = self.reigns.get(node.peer)
        if not raft.leads:
            self.reigns.pop(node.peer, None)
            return None
        if reign is None or reign.node is not node or reign.term != raft.term:
            seen, committed = raft.log.last_index, raft.commit_index
            reign = Reign(node, raft.term, now, now, seen, committed, now)
            self.reigns[node.peer] = reign
            self._elected(node, log)
        if now > reign.looked_at + ASLEEP_S:
            reign.since = now  # It was stopped, and could notice nothing.
        reign.looked_at = now
        if isinstance(event, v.DeadlineReached):
            self._is_followed(reign)
        self._counts(reign)
        return reign

    def _elected(self, node: Node, log: Mapping[int, e.Entry]) -> None:
        raft = node.core.raft
        leader = self.leaders.setdefault(raft.term, node.peer)
        if leader != node.peer:
            self._found(f"{node.peer} leads in term {raft.term}, as {leader} does")
        if not log or raft.term < max(self.leaders):
            return  # Its votes were late: what a later term committed it need not hold.
        first, last = raft.log.base + 1, max(log)
        held = [entry.body for entry in raft.log.since(first)][: max(0, last - first + 1)]
        for index, body in enumerate(held, start=first):
            if log.get(index, body) != body:
                self._found(f"{node.peer} leads with another entry {index} than holds: {body!r}")
                return
        if raft.log.last_index < last:
            self._found(f"{node.peer} leads without entry {last}, which holds")

    def _is_followed(self, reign: Reign) -> None:
        """A leader that no majority answers steps down: it would be in the way for ever."""
        node, now = reign.node, reign.looked_at
        patience_s = LEADS_ALONE_TIMEOUTS * node.core.rules.election_timeout_s
        voters = node.core.raft.log.voters
        if voters != reign.voters:
            reign.before.append((now, reign.voters))
            reign.voters = voters
        looked_s = patience_s / 2
        reign.before = [(until, old) for until, old in reign.before if now < until + looked_s]
        if now < reign.since + patience_s:
            return
        heard = {p for p, at in reign.heard.items() if now < at + patience_s} | {node.peer}
        asked = [voters, *(old for _, old in reign.before)]
        if all(2 * len(heard.intersection(some)) <= len(some) for some in asked):
            self._found(f"{node.peer} leads, and only {sorted(heard)} of {len(voters)} answer")
            reign.since = now  # Once is enough.

    def _counts(self, reign: Reign) -> None:
        """Copies of an entry of an earlier term are no proof that it stays (Raft, figure 8)."""
        raft = reign.node.core.raft
        if raft.commit_index > reign.commit_index:
            reign.commit_index = raft.commit_index
            term = raft.log.term_at(raft.commit_index)
            if term != raft.term:
                self._found(f"{reign.node.peer} leads term {raft.term} and counts one of {term}")
