"""A peer has no vote when its certificate is revoked, and counts nowhere from then on. A voter has
asked for the revocation, or the root key signed it.

Must NOT know which revocations were requested: faults do.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from protocols.acts import act_statement, subject
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.peer import FAREWELL_S
from protocols.raft import Voters, voters_after
from protocols.types import PeerId
from sims.node.node import Node
from sims.node.toy_model import toy_signature
from sims.node.world_view import WorldView

HANGS_UP_S = FAREWELL_S + 1.5
"""Seconds in which a connection with a revoked peer ends: FAREWELL_S, in which the peer may read
on, and more than a heartbeat."""
QUEUED_S = 0.5
"""Seconds. A core may learn so much later of a connection made before it read the revocation."""
DECIDED_S = 15.0
"""Seconds in which a leader appends a revocation that it accepted."""
HEARD_BEATS = 3.1
"""A peer that is silent for so many heartbeats hangs."""


class Revocation:
    """Checks the revocations of one log."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._voters: Voters = ()
        self._run: e.Run | None = None
        self._voted: set[PeerId] = set()
        """Peers that ever had a vote."""
        self._revoked: dict[PeerId, int] = {}
        """Log index of each revocation."""
        self._known: dict[tuple[PeerId, int, PeerId], float] = {}
        """By (peer, its incarnation, revoked peer): when it was first seen to know the
        revocation."""
        self._taken: dict[tuple[PeerId, int, str], float] = {}
        """By (leader, term, subject): since when the leader has this act to append."""
        self._looked: dict[PeerId, int] = {}
        """By leader: the index up to which its log was checked."""
        self._leaving: dict[PeerId, frozenset[PeerId]] = {}
        """By leader: the peers that were to be removed, by all that it had accepted after its last
        event."""

    # The log --------------------------------------------------------------------------------

    def check_entry(self, index: int, entry: e.Entry) -> None:
        """The first peer applies an entry."""
        self._voters = voters_after(self._voters, entry)
        self._voted.update(self._voters)
        if isinstance(entry, e.Run):
            self._run = entry
        elif isinstance(entry, e.Revoked | e.TokenRevoked):
            self._is_authorized(entry)
        if isinstance(entry, e.Revoked):
            self._revoked[entry.peer] = index
            if entry.peer in self._voters:
                self._found(f"{entry.peer} is revoked while it votes")
        elif self._revoked and not isinstance(entry, e.Lost | e.Left):
            for peer in self._revoked.keys() & set(_counted(entry)):
                self._found(f"{peer} is revoked, and counts in a {type(entry).__name__} after that")

    def _is_authorized(self, entry: e.Revocation) -> None:
        run = self._run
        if run is None or not run.root:
            return
        said = toy_signature(run.root, act_statement(run.root, entry))
        if entry.signature != said and (entry.signature or not run.voters_revoke):
            self._found(f"{subject(entry)} is revoked without the root key, at {entry.by}")
        elif not entry.signature and entry.by not in self._voted:
            self._found(f"{subject(entry)} is revoked by {entry.by}, which never voted")

    # Cores ----------------------------------------------------------------------------------

    def check_event(self, node: Node, event: v.Event) -> None:
        """A core handled an event."""
        core, now = node.core, node.now
        if core.leads:
            self._led(node)
        revoked = core.run_state.revoked
        if not revoked:
            return
        life = node.peer, core.me.incarnation
        if isinstance(event, v.PeerConnected):
            since = self._known.get((*life, event.peer), now)
            if now > since + QUEUED_S:
                self._found(f"{node.peer} is connected with {event.peer}, which is revoked")
        for peer in revoked:
            since = self._known.setdefault((*life, peer), now)
            if now < since + HANGS_UP_S or node.turns.paused_until > since:
                continue
            if peer in core.links.up and isinstance(event, v.DeadlineReached):
                self._found(f"{node.peer} is still connected with {peer}, which is revoked")

    def _led(self, node: Node) -> None:
        """Check that a leader ends votes one at a time, and only if it reaches a majority of the
        rest."""
        log, raft = node.raft.log, node.raft
        led_term = node.core.led_term
        leader = led_term.leader if led_term is not None else None
        for one in leader.vote_changes.asked.values() if leader and raft.settled else ():
            number = one.entry.number if isinstance(one.entry, e.Steered) else 0
            name = f"{subject(one.entry)} {number or ''}"
            since = self._taken.setdefault((node.peer, raft.term, name), node.now)
            if node.now > since + DECIDED_S and node.turns.paused_until < since:
                self._found(f"{node.peer} leads, and does not append the act {name}")
        seen = max(self._looked.get(node.peer, 0), log.base)
        self._looked[node.peer] = log.last_index
        accepted = self._leaving.get(node.peer, frozenset[PeerId]())
        self._leaving[node.peer] = frozenset(leader.vote_changes.leaving if leader else ())
        if log.reconfigured <= seen:
            return
        before = _voters_at(node, raft.commit_index)
        changes = 0
        for entry in log.since(raft.commit_index + 1):
            after = voters_after(before, entry.body)
            mine = entry.term == raft.term  # Not an entry of an earlier leader.
            changes += after != before and mine
            ends = mine and isinstance(entry.body, e.Voter) and not entry.body.votes
            revokes = ends and entry.index > seen and _is_revoked(entry.body)
            if revokes and leader and not _leaves_majority(node, set(after), accepted):
                self._found(f"{node.peer} ends a vote, and no majority stays: {entry.body}")
            before = after
        if changes > 1:
            self._found(f"{node.peer} has two changes of voters under way")

    # The end --------------------------------------------------------------------------------

    def run_ended(self, world: WorldView[Node]) -> None:
        """Check that all peers that finished know each revocation that they read."""
        for node in world.nodes.values():
            run_state = node.run_state
            if node.process.outcome != "finished" or run_state.forks:
                continue
            read = {peer for peer, index in self._revoked.items() if index <= run_state.index}
            if not read <= run_state.revoked.keys():
                self._found(f"{node.peer} has forgotten that {min(read)} is revoked")


def _counted(entry: e.Entry) -> list[PeerId]:
    """The peers that an entry admits or gives a vote, and those with work that it counts."""
    match entry:
        case e.Voter(peer=peer, votes=True) | e.TokenSpent(peer=peer):
            return [peer]
        case e.Cut() | e.Member() | e.Witness():
            return [entry.info.peer]
        case e.View() | e.Attempt():
            return list(entry.roster)
        case e.Commit():
            return [term.peer for term in entry.contributors]
        case _:
            return []


def _heard(node: Node) -> set[PeerId]:
    """The peers that a node is connected with, without those that hang."""
    failure_detector, world = node.core.links.failure_detector, node.world
    since = world.clock.now - HEARD_BEATS * world.settings.rules.heartbeat_interval_s
    return {peer for peer in node.raft.up if failure_detector.heard_since(peer, since)}


def _leaves_majority(node: Node, after: set[PeerId], accepted: Set[PeerId]) -> bool:
    """Does a leader reach a majority of these voters but for those that go? `accepted`: peers
    with a removal that it had accepted before. In the same event it may have accepted more,
    counting on learners that get a vote first."""
    led_term = node.core.led_term
    assert led_term is not None, "it leads"
    leader, here = led_term.leader, {node.peer, *_heard(node)}
    changes, run_state = leader.vote_changes, leader.vote_changes.run_state
    staying = after - set(leader.removals.gone)
    known = {*run_state.members, *run_state.witnesses}
    fresh = known & here - {*node.raft.log.voters, *changes.leaving, *run_state.revoked}
    later = staying - changes.leaving | fresh
    return _is_majority(here, staying - accepted) and _is_majority(here, later)


def _is_majority(here: set[PeerId], voters: set[PeerId]) -> bool:
    return 2 * len(here & voters) > len(voters)


def _is_revoked(entry: e.Entry) -> bool:
    return isinstance(entry, e.Voter) and "is about to be" in entry.why


def _voters_at(node: Node, index: int) -> Voters:
    """The voters after this entry of a node's log."""
    run_state, log = node.run_state, node.raft.log
    voters = run_state.voters
    for entry in log.since(run_state.index + 1):
        if entry.index > index:
            break
        voters = voters_after(voters, entry.body)
    return voters
