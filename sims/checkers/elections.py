"""I1 and I4, elections: each term has one leader, which has all committed entries and is followed.

Must NOT check the decisions of a leader (decisions.py), nor disks (durability.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft import Voters
from protocols.types import PeerId
from sims.node.node import Node

LEADS_ALONE_TIMEOUTS = 2.2
"""Election timeouts that a leader may lead without a majority. It checks once in a timeout which
voters answered since the last check, so it notices after two at most."""
ASLEEP_S = 2.5
"""Seconds without an event after which a leader was paused: it sends heartbeats each second."""


@dataclass(slots=True)
class LeaderRecord:
    """The record of one leader in one term."""

    node: Node
    term: int
    began: float
    since: float
    """When it began to lead, or when its last pause ended."""
    seen: int
    """Index up to which its log was checked."""
    commit_index: int
    looked_at: float
    heard: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """By peer: when its last acknowledgement arrived."""
    planned_at: dict[int, float] = field(default_factory=dict[int, float])
    """By fragment: when the leader last opened or changed a round."""
    voters: Voters = ()
    """The voters of which a majority must answer."""
    before: list[tuple[float, Voters]] = field(default_factory=list[tuple[float, Voters]])
    """Earlier sets of voters as (end of their vote, voters): the last check of the leader may have
    counted them."""


class Elections:
    """Checks all elections of a world, by the messages of its peers."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self.leaders: dict[int, PeerId] = {}
        """The leader of each term."""
        self.reigns: dict[PeerId, LeaderRecord] = {}
        """The reign of each peer that led at its last event."""
        self._found = found
        self._votes: dict[tuple[PeerId, int], PeerId] = {}
        """The candidate that got the vote, by (voter, term)."""
        self._voters: dict[tuple[PeerId, int], Voters] = {}
        """The voters that a peer asked for pre-votes, by (peer, term)."""
        self._granted: dict[tuple[PeerId, int], set[PeerId]] = {}
        """The peers that granted it a pre-vote, by (peer, term)."""
        self._heirs: set[tuple[PeerId, int]] = set()
        """(peer, term) of each peer that a leader asked to lead in this term, itself included."""
        self._stood: dict[tuple[PeerId, int], m.Vote] = {}
        self._heard: dict[PeerId, tuple[PeerId, float]] = {}
        """By peer: the leader that it heard last, and when."""

    # Votes ----------------------------------------------------------------------------------

    def note_message(self, node: Node, event: v.MessageReceived) -> None:
        """Record an append of a leader, an acknowledgement or a hand-over."""
        raft, now = node.raft, node.now
        if isinstance(event.message, m.Append):
            if raft.leader == event.peer and raft.term == event.message.term:
                self._heard[node.peer] = (event.peer, now)
        elif isinstance(event.message, m.Appended):
            reign = self.reigns.get(node.peer)
            if reign is not None and event.message.term == reign.term:
                reign.heard[event.peer] = now
            elif reign is not None and event.message.term > reign.term:
                # It may begin a newer term for a reader that cannot follow it any more.
                self._heirs.add((node.peer, event.message.term + 1))
        elif isinstance(event.message, m.HandOver):
            self._heirs.add((node.peer, event.message.term + 1))

    def asked_or_voted(self, node: Node, to: PeerId, message: m.Vote | m.Voted) -> None:
        """Check that a peer votes once in a term, and stands only with pre-votes or a hand-over."""
        term = message.term
        match message:
            case m.Vote(pre=True):
                log = node.raft.log
                self._voters[node.peer, term] = log.voters
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
            self._found(
                f"{voter} votes for {candidate} in term {term}, and voted for {known} before"
            )

    def _stands(self, node: Node, message: m.Vote) -> None:
        """Check that a peer without connections does not raise the term of connected peers."""
        key = (node.peer, message.term)
        if key in self._stood:
            return
        self._stood[key] = message
        voters = self._voters.get(key, ())
        granted = self._granted.get(key, set()) | {node.peer}
        asked = 2 * len(granted.intersection(voters)) > len(voters)
        # If its disk was full meanwhile, it asks voters that connected since without `urgent`.
        heir = message.urgent or key in self._heirs
        if not (heir or (voters and asked)):
            self._found(
                f"{node.peer} stands in term {message.term} without a majority of pre-votes"
            )

    def _would_vote(self, node: Node, to: PeerId, term: int) -> None:
        """Check that a peer that hears its leader grants no pre-vote."""
        self._granted.setdefault((to, term), set()).add(node.peer)
        raft, now = node.raft, node.now
        leader, at = self._heard.get(node.peer, (None, 0.0))
        election = raft.election
        recent = now < at + election.timeout_s
        if raft.leads or (raft.leader == leader and leader in raft.up and recent):
            self._found(f"{node.peer} hears {leader}, and grants {to} a pre-vote for term {term}")

    def _fits(self, node: Node, to: PeerId, term: int) -> None:
        """Check that a vote goes to a candidate with a log at least as complete as the voter's."""
        raft, vote = node.raft, self._stood.get((to, term))
        if vote is None or raft.term != term or raft.leader is not None:
            return  # A peer leads this term already, and may have changed the log of the voter.
        log = raft.log
        if (vote.last_term, vote.last_index) < (log.last_term, log.last_index):
            self._found(f"{node.peer} votes in term {term} for {to}, and that log lacks entries")

    # Leaders --------------------------------------------------------------------------------

    def led(self, node: Node, event: v.Event, log: Mapping[int, e.Entry]) -> LeaderRecord | None:
        """A core handled an event: the reign of its peer; None if the peer does not lead any
        more."""
        raft, now = node.raft, node.now
        reign = self.reigns.get(node.peer)
        if not raft.leads:
            self.reigns.pop(node.peer, None)
            return None
        if reign is None or reign.node is not node or reign.term != raft.term:
            seen, committed = raft.log.last_index, raft.commit_index
            reign = LeaderRecord(node, raft.term, now, now, seen, committed, now)
            self.reigns[node.peer] = reign
            self._elected(node, log)
        if now > reign.looked_at + ASLEEP_S:
            reign.since = now  # It was paused, and could notice nothing.
        reign.looked_at = now
        if isinstance(event, v.DeadlineReached):
            self._is_followed(reign)
        self._counts(reign)
        return reign

    def _elected(self, node: Node, log: Mapping[int, e.Entry]) -> None:
        raft = node.raft
        leader = self.leaders.setdefault(raft.term, node.peer)
        if leader != node.peer:
            self._found(f"{node.peer} leads in term {raft.term}, as {leader} does")
        if not log or raft.term < max(self.leaders):
            return  # Its votes were late: it need not have entries that a later term committed.
        first, last = raft.log.base + 1, max(log)
        held = [entry.body for entry in raft.log.since(first)][: max(0, last - first + 1)]
        for index, body in enumerate(held, start=first):
            if log.get(index, body) != body:
                self._found(
                    f"{node.peer} leads with another entry {index} than is committed: {body!r}"
                )
                return
        if raft.log.last_index < last:
            self._found(f"{node.peer} leads without entry {last}, which is committed")

    def _is_followed(self, reign: LeaderRecord) -> None:
        """Check that a leader steps down if no majority answers: else it would block the run for
        ever."""
        node, now = reign.node, reign.looked_at
        rules, log = node.core.rules, node.raft.log
        patience_s, voters = LEADS_ALONE_TIMEOUTS * rules.election_timeout_s, log.voters
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
            reign.since = now  # Report it once.

    def _counts(self, reign: LeaderRecord) -> None:
        """Check that copies of an entry of an earlier term do not commit it (Raft, figure 8)."""
        raft = reign.node.core.raft
        if raft.commit_index > reign.commit_index:
            reign.commit_index = raft.commit_index
            term = raft.log.term_at(raft.commit_index)
            if term != raft.term:
                self._found(
                    f"{reign.node.peer} leads term {raft.term}, and counts copies of one of {term}"
                )
