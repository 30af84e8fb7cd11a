"""The operator of a simulated cluster: founds the run, names the places at which peers join, and
starts as many peers as the run needs to go on.

Must NOT cause faults (sims/scenarios).
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from typing import Protocol

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.types import PeerId
from sims.node.node import Node
from sims.simulator.connections import WorldDialer
from sims.simulator.dialled_world import DialledWorld
from sims.simulator.limit_values import LimitValues


class OperatedWorld(DialledWorld, Protocol):
    """One world as its operator sees it."""

    @property
    def limit_values(self) -> LimitValues: ...

    @property
    def dialer(self) -> WorldDialer: ...

    @property
    def finished(self) -> bool:
        """True if a node has seen the end of the run."""
        ...

    def add_peer(self) -> Node: ...

    def kill(self, node: Node) -> None: ...

    def revive(self, node: Node, after_s: float) -> None: ...

    def make_run(self, founder: PeerId) -> e.Run: ...

    def is_elsewhere(self, node: Node, peer: PeerId) -> bool:
        """True if the peer may be told to join at this node."""
        ...

    def is_needed(self, node: Node, coming_back: Set[PeerId]) -> bool:
        """True if the run cannot go on without this node."""
        ...


class Operator:
    """The operator of one world."""

    def __init__(self, world: OperatedWorld) -> None:
        self._world = world
        self.busy_until = float("inf")
        """Virtual time until which peers may come, even if none lives."""
        self._coming_back: set[PeerId] = set()
        """Peers that are being started again for good."""

    def heal(self) -> None:
        """Start a majority of the voters, and then as many peers as the run needs."""
        world = self._world
        self.busy_until = world.clock.now + 30.0
        all_peers = not world.finished and world.random.random() < 0.5
        self._bring_back(all_peers=all_peers)
        if not (world.finished or self._coming_back or world.live):
            # The founder died before the run began.
            world.revive(next(iter(world.nodes.values())), 0.1)
        world.clock.at(15.0, self._top_up)

    def lost_peer(self) -> None:
        """A peer got no answer, perhaps since all peers that it knew have left, or was removed. The
        operator of the cluster starts another one, unless later faults will do so anyway."""
        world = self._world
        if math.isfinite(self.busy_until) and not world.finished:
            world.clock.at(0.1, self._top_up)

    def found_run(self, node: Node) -> None:
        """Let the first peer begin the run, from a checkpoint of its initial state."""
        world = self._world
        digests = node.states.found(
            [world.settings.model.initial(world.random) for _ in node.states.outers]
        )
        certification = world.dialer.certification
        admission = certification.founds(node)
        opened = not certification.closed
        run = replace(
            world.make_run(node.peer),
            root=certification.root,
            voters_issue=certification.voters_issue or opened,
            voters_revoke=certification.voters_revoke or opened,
            voters_steer=certification.voters_steer or opened,
        )
        certification.begins(node)
        node.give(v.RunAccepted(world.settings.rules, world.settings.samples_ahead))
        node.give(v.Bootstrap(world.limit_values.largest_run(run), digests, admission))

    def way_in(self, peer: PeerId) -> str:
        """The address at which a peer is told to join: preferably a live node that knows the run,
        even one that has only just joined."""
        world = self._world
        places = [node for node in world.nodes.values() if world.is_elsewhere(node, peer)]
        places = [node for node in places if not world.dialer.certification.bans(node)] or places
        live = [node for node in places if node.running and not world.dialer.is_stranded(node)]
        knows = [node for node in live if node.run_state.run is not None]
        if not knows and peer in world.nodes and world.nodes[peer].disk.saved is None:
            # Two such peers, each told to join at the other, would never learn of the founder.
            places, live = places[:1], []
        return world.random.choice(knows or live or places).core.me.address

    def restart(self, node: Node) -> None:
        """End the daemon and start it again: the same peer, with the data on its disk."""
        world = self._world
        world.kill(node)
        world.revive(node, world.random.choice([0.05, 1.0, 4.0]))

    def _bring_back(self, *, all_peers: bool) -> None:
        world = self._world
        out = [node for node in world.nodes.values() if not node.running]
        for node in [node for node in out if not (world.finished and node.process.outcome)]:
            if (all_peers and not node.process.asked_to_leave) or world.is_needed(
                node, self._coming_back
            ):
                world.revive(node, 0.1)
                self._coming_back.add(node.peer)

    def _top_up(self) -> None:
        """Bring back or add as many peers as the run needs to begin and to decide: some may have
        left while there was no leader. A peer that knows only revoked peers is told to join at
        another one."""
        world = self._world
        self._bring_back(all_peers=False)
        for node in filter(world.dialer.is_stranded, world.live):
            world.happened["stranded"] += 1
            self.restart(node)
        training = [node for node in world.live if not node.me.witness]
        bans = world.dialer.certification.bans
        staying = sum(not (node.process.asked_to_leave or bans(node)) for node in training)
        for _ in range(0 if world.finished else world.settings.peers_min - staying):
            world.add_peer()


def is_needed_to_decide(world: OperatedWorld, node: Node, coming_back: Set[PeerId]) -> bool:
    """True if some log has voters that are no majority without this node. Once the run is
    finished, only logs of live nodes count: these nodes are still in the run because it was
    rolled back to before its end."""
    # A node that was asked to leave may still go, without a leader even as a voter.
    staying = {n.peer for n in world.nodes.values() if n.running and not n.process.asked_to_leave}
    back = staying | coming_back
    others = world.live if world.finished else world.nodes.values()
    logs = [other.raft.log for other in others]
    votes = [log.voters for log in logs]
    return any(
        node.peer in voters and 2 * len(back.intersection(voters)) <= len(voters)
        for voters in votes
    )
