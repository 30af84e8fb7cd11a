"""A disk that hangs is noticed. A peer that cannot write loses its vote soon; if it can write
again, it gets a free vote.

Votes are checked only while a leader is settled, hears the peer, and changes no other vote. Must
NOT judge the content of a disk (durability.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocols.leader import LAG_MAX, VOTERS_MAX
from protocols.raft import HANG_MAX_S, RETRY_S
from protocols.types import PeerId
from sims.node.node import Node
from sims.node.storage import SLOW_SYNC_S

LOOK_S = 0.1
"""Seconds between two checks of a leader's peers."""
NOTICE_S = 1.0
"""Seconds that a peer or a leader may take for its next action, in addition to message delays."""
Since = dict[tuple[object, ...], float]
"""The time at which a condition began, by all values that must stay the same while it holds."""


class Disks:
    """Tracks for each disk since when it works or fails, as far as its peer and the leader can
    know."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._full: dict[PeerId, float] = {}
        """By peer that reports a failed disk: when the disk was last full or slow."""
        self._told: dict[PeerId, float] = {}
        """By peer: when it was reported that it does not notice a disk that hangs."""
        self._looked: dict[PeerId, float] = {}
        self._due: dict[PeerId, Since] = {}
        """By leader: the votes that it should end or give, and since when."""

    def check_event(self, node: Node) -> None:
        """A core handled an event."""
        if not _writes(node):
            self._tries_again(node)
        else:
            self._full.pop(node.peer, None)
            self._notices(node)
        if not node.raft.leads:
            self._due.pop(node.peer, None)
        elif node.now >= self._looked.get(node.peer, 0.0) + LOOK_S:
            self._looked[node.peer] = node.now
            self._votes(node)

    def _notices(self, node: Node) -> None:
        """Check that a peer with a write that does not return takes its disk for a failed one."""
        writer, now = node.wal_writer, node.now
        since = max(writer.began_at, node.turns.paused_until, self._told.get(node.peer, 0.0))
        if writer.writes and now > since + HANG_MAX_S + _allowed_s(node):
            self._found(f"{node.peer} does not notice that its disk hangs")
            self._told[node.peer] = now

    def _tries_again(self, node: Node) -> None:
        """Check that a peer notices in time that its disk works again."""
        now, until = node.now, max(node.disk.full_until, node.disk.slow_until)
        last = self._full.setdefault(node.peer, now)
        if now < until or node.wal_writer.writes:  # Writes under way may take any time.
            self._full[node.peer] = now
        elif now > max(last, node.turns.paused_until) + RETRY_S + _allowed_s(node):
            self._found(f"{node.peer} has a disk that works, and does not try it")
            self._full[node.peer] = now

    def _votes(self, leader: Node) -> None:
        now, before = leader.now, self._due.get(leader.peer, {})
        due: Since = {}
        for peer, what in self._changes(leader):
            node = leader.world.nodes[peer]
            network = leader.world.network
            line = network.line(leader.peer, peer)
            key = (peer, what, node.me.incarnation, line.connection, leader.raft.term)
            since = due[key] = before.get(key, now)
            # Messages that a stall or a pause held up arrive after its end.
            pauses = (leader.turns.paused_until, node.turns.paused_until)
            held = (*line.stalled_until.values(), line.held_until, *pauses, since)
            if now > max(held) + _allowed_s(leader):
                self._found(f"{leader.peer} does not notice that {peer} {what}")
                due[key] = now
        self._due[leader.peer] = due

    def _changes(self, leader: Node) -> Iterator[tuple[PeerId, str]]:
        """The (peer, reason) of each vote that this leader should change, from all that it can
        know."""
        core = leader.core
        led_term, raft = core.led_term, core.raft
        if led_term is None or led_term.frozen or not raft.settled or raft.reconfiguring:
            return
        head, vote_changes = led_term.head, led_term.leader.vote_changes
        voters = set(raft.log.voters)
        for peer in sorted(voters - {leader.peer}):
            node = leader.world.nodes[peer]
            if _listens(leader, node) and not _writes(node):
                yield peer, "votes, and cannot write"
        room = len(voters - vote_changes.leaving) < VOTERS_MAX and not head.rivals
        infos = {**head.members, **head.witnesses} if room else {}
        going = {*vote_changes.leaving, *led_term.leader.removals.gone, *head.revoked}
        via = led_term.relay_plan.via
        for peer in sorted(infos.keys() - voters - going - via.keys()):
            node = leader.world.nodes[peer]
            same = infos[peer].incarnation == node.me.incarnation
            lacks = raft.log.last_index - node.raft.disk.durable_index
            # Its reports about its log wait for its disk, the last slow write included.
            slow_until = max(node.disk.slow_until + SLOW_SYNC_S, node.disk.hung_until)
            answers = leader.now >= slow_until
            fit = same and answers and _writes(node) and 2 * lacks <= LAG_MAX
            if fit and _listens(leader, node):
                yield peer, "could vote, and has a place"


def _listens(leader: Node, node: Node) -> bool:
    """True if a node follows this leader, and both have the connection."""
    raft = node.raft
    here = node.peer in leader.raft.up and leader.peer in raft.up
    follows = raft.leader == leader.peer and raft.term == leader.raft.term
    network = leader.world.network
    up = network.line(leader.peer, node.peer).up
    return here and follows and up and node.running and node.member_status.accepted


def _allowed_s(node: Node) -> float:
    """Seconds for a message and its answer, and the next action of either side."""
    network = node.world.network
    return NOTICE_S + 2 * network.slowest_s


def _writes(node: Node) -> bool:
    """True if the core takes its disk for a working one."""
    disk = node.raft.disk
    return disk.works
