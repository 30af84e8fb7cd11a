"""A peer that cannot write has no vote for long; when it can write again, a free vote is its own.

Both only while a leader is settled, hears the peer, and changes no other vote. Must NOT judge what
is on a disk (durability.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from protocols.leader.voters import LAG_MAX, VOTERS_MAX
from protocols.raft.durability import RETRY_S
from sims.node.storage import SLOW_SYNC_S

if TYPE_CHECKING:
    from protocols.types.ids import PeerId
    from sims.node.node import Node

LOOK_S = 0.1
"""A leader's peers are looked at so often."""
NOTICE_S = 1.0
"""What a peer or a leader takes for its next step, beyond what messages take."""
Since = dict[tuple[object, ...], float]
"""Since when something holds, by all that must stay as it is for that."""


class Disks:
    """Of all peers: since when each disk works or not, as its peer and its leader can know."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._full: dict[PeerId, float] = {}
        """When each disk was full or slow last, of those whose peers say that they cannot write."""
        self._looked: dict[PeerId, float] = {}
        self._due: dict[PeerId, Since] = {}
        """By leader: which of its peers should lose or get a vote."""

    def handled(self, node: Node) -> None:
        """A core took an event."""
        if not node.core.raft.disk.works:
            self._tries_again(node)
        else:
            self._full.pop(node.peer, None)
        if not node.core.raft.leads:
            self._due.pop(node.peer, None)
        elif node.world.now >= self._looked.get(node.peer, 0.0) + LOOK_S:
            self._looked[node.peer] = node.world.now
            self._votes(node)

    def _tries_again(self, node: Node) -> None:
        """A peer finds out that its disk works again."""
        now, until = node.world.now, max(node.disk.full_until, node.disk.slow_until)
        last = self._full.setdefault(node.peer, now)
        if now < until or node.scribe.tickets:  # What is on its way may take as long as it does.
            self._full[node.peer] = now
        elif now > max(last, node.paused_until) + RETRY_S + _allowed_s(node):
            self._found(f"{node.peer} has a disk that works, and does not try it")
            self._full[node.peer] = now

    def _votes(self, leader: Node) -> None:
        now, before = leader.world.now, self._due.get(leader.peer, {})
        due: Since = {}
        for peer, what in self._changes(leader):
            node = leader.world.nodes[peer]
            line = leader.world.network.line(leader.peer, peer)
            key = (peer, what, node.core.me.incarnation, line.connection, leader.core.raft.term)
            since = due[key] = before.get(key, now)
            # What a stall or a pause held up comes when it is over.
            pauses = (leader.paused_until, node.paused_until)
            held = (*line.stalled_until.values(), line.held_until, *pauses, since)
            if now > max(held) + _allowed_s(leader):
                self._found(f"{leader.peer} does not see that {peer} {what}")
                due[key] = now
        self._due[leader.peer] = due

    def _changes(self, leader: Node) -> Iterator[tuple[PeerId, str]]:
        """The votes that this leader should change, if it knows what it can know."""
        core = leader.core
        office, raft = core.office, core.raft
        if office is None or office.frozen or not raft.settled or raft.reconfiguring:
            return
        head, votes = office.head, office.leader.votes
        voters = set(raft.log.voters)
        for peer in sorted(voters - {leader.peer}):
            node = leader.world.nodes[peer]
            if _listens(leader, node) and not node.core.raft.disk.works:
                yield peer, "votes, and cannot write"
        room = len(voters - votes.leaving) < VOTERS_MAX and not head.rivals
        infos = {**head.members, **head.witnesses} if room else {}
        going = {*votes.leaving, *office.leader.gone, *head.spendings.revoked}
        for peer in sorted(infos.keys() - voters - going - office.relays.via.keys()):
            node = leader.world.nodes[peer]
            same = infos[peer].incarnation == node.core.me.incarnation
            lacks = raft.log.last_index - node.core.raft.durable_index
            # What it says of its log waits for its disk, the last slow write included.
            answers = leader.world.now >= node.disk.slow_until + SLOW_SYNC_S
            fit = same and answers and node.core.raft.disk.works and 2 * lacks <= LAG_MAX
            if fit and _listens(leader, node):
                yield peer, "could vote, and has a place"


def _listens(leader: Node, node: Node) -> bool:
    """It follows this leader, and both have the connection."""
    raft = node.core.raft
    here = node.peer in leader.core.raft.up and leader.peer in raft.up
    follows = raft.leader == leader.peer and raft.term == leader.core.raft.term
    up = leader.world.network.line(leader.peer, node.peer).up
    return here and follows and up and node.running and node.core.standing.accepted


def _allowed_s(node: Node) -> float:
    """There and back, and the next step of either."""
    return NOTICE_S + 2 * node.world.network.slowest_s
