"""Worlds of two peers that lose each other: one seed in eight of `sims.sweep`.

Each may go on alone in a branch of its own. When they meet, one branch stays; the peer that gives
its branch up comes back as another peer. Each branch has a set of checkers: everything agreed
before the fork holds in both. Must NOT decide which branch stays.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import PeerId, Stamp
from sims.checkers import Checkers, World
from sims.checkers.branches import BranchChecks, Name
from sims.checkers.history import HistoryCheckers
from sims.node.node import Node
from sims.node.storage import COMPACT_ENTRIES
from sims.node.toy_model import ToyContribution
from sims.node.world_view import WorldView
from sims.scenarios.fault_plan import FaultKind, PlannedFault, draw_hangs, draw_revocations
from sims.simulator.world import RULES

KINDS: tuple[FaultKind, ...] = (
    *("kill", "restart", "leader", "cut", "stall", "one_way", "partition", "lonely", "pause"),
    *("disk", "ranks"),
)
FAULT_EVERY_S = 3.0
DURATIONS_S = (0.1, 1.0, 4.0, 15.0, 30.0)
"""The longest ones exceed `lonely_after_s`."""
RETURN_S = 0.5


PARTED_S = 18.0
"""Seconds of a partition: long enough to go on alone, and time is left to meet again."""


def draw_faults(seed: int, *, until_s: float) -> list[PlannedFault]:
    """Draw few faults at a time: a branch has to live for a while. In half of the seeds the first
    fault is a partition."""
    source = random.Random(seed ^ 0xF0)  # noqa: S311 (a simulation, no secrets)
    faults: list[PlannedFault] = []
    at_s = 0.0
    if source.random() < 0.5:
        at_s = source.uniform(2.0, 8.0)
        faults.append(PlannedFault(at_s, "partition", 0, 0, PARTED_S))
    while (at_s := at_s + source.expovariate(1 / FAULT_EVERY_S)) < until_s:
        kind, duration_s = source.choice(KINDS), source.choice(DURATIONS_S)
        peer, other = source.randrange(1 << 16), source.randrange(1 << 16)
        faults.append(PlannedFault(at_s, kind, peer, other, duration_s))
    faults += [*draw_hangs(seed, until_s=until_s), *draw_revocations(seed, until_s=until_s)]
    return sorted(faults, key=lambda x: x.at_s)


class ForkHistory(HistoryCheckers):
    """One set of checkers for each branch: `branches`, by name, the run's own branch included."""

    def __init__(self, world: ForkWorld) -> None:
        super().__init__()
        self.branches: dict[Name, HistoryCheckers] = {(): HistoryCheckers(self.violations)}
        self._world = world
        self._read: dict[Name, dict[int, tuple[int, e.Entry]]] = {(): {}}
        """By branch: its entries, as (lineage, entry) by index."""
        self._begins: dict[Name, int] = {(): 0}
        """By branch: the log index of the fork that opened it."""
        self.on: dict[PeerId, Name] = {}
        """By peer: the branch of the entry that it applied last; its core may be further."""
        self.between = BranchChecks(self.violations.append, self.on)

    @property
    def commits(self) -> dict[tuple[int, int, int], e.Commit]:
        return {key: x for one in self.branches.values() for key, x in one.commits.items()}

    @property
    def log(self) -> dict[int, e.Entry]:
        """The entries of all branches, in no order."""
        entries = [
            entry
            for name, read in self._read.items()
            for index, (_, entry) in read.items()
            if index >= self._begins[name]
        ]
        return dict(enumerate(entries))

    def _of(self, peer: PeerId) -> HistoryCheckers:
        return self.branches[self.on[peer]]

    def entry_applied(self, peer: PeerId, lineage: int, index: int, entry: e.Entry) -> None:
        name = self.on[peer] = self._branch(peer, index, entry)
        if name not in self.branches:
            self._fork(name, peer, index)
        if index not in self._read[name]:
            self.between.read(peer, name, entry)
        self._read[name].setdefault(index, (lineage, entry))
        self.branches[name].entry_applied(peer, lineage, index, entry)

    def _branch(self, peer: PeerId, index: int, entry: e.Entry) -> Name:
        """The branch of an entry. An entry before the fork in the peer's log that no peer read on
        the parent branch belongs to the new branch: no majority held it before the fork."""
        name = self.on[peer]
        fork = self._next_fork(peer, index)
        if not fork or fork in name:
            return name
        begins = isinstance(entry, e.Restore) and entry.fork == fork
        common = self._read[name].get(index, (0, None))[1] == entry
        return name if common and not begins else (*name, fork)

    def _next_fork(self, peer: PeerId, index: int) -> int:
        """The first fork in the peer's log from this entry on, applied or not; 0 if there is
        none."""
        log = self._world.nodes[peer].core.raft.log
        bodies = (entry.body for entry in log.since(max(index, log.base + 1)))
        return next((x.fork for x in bodies if isinstance(x, e.Restore) and x.fork), 0)

    def _fork(self, name: Name, peer: PeerId, index: int) -> None:
        """Open a branch, with everything that its parent agreed on before."""
        self._world.happened["fork"] += 1
        parent = self.branches[name[:-1]]
        before = {i: x for i, x in self._read[name[:-1]].items() if i < index}
        branch = self.branches[name] = HistoryCheckers(self.violations)
        branch.share(parent)
        self._read[name], self._begins[name] = before, index
        for i in sorted(before):
            branch.entry_applied(peer, before[i][0], i, before[i][1])

    def encoded(self, manifest: str, made: ToyContribution) -> None:
        self.branches[()].encoded(manifest, made)  # The branches share all contributions.

    def samples_of(self, node: Node, manifest: str, round_: int, samples: Sequence[int]) -> None:
        self._of(node.peer).samples_of(node, manifest, round_, samples)

    def means(self, peer: PeerId, stamp: Stamp, means: set[int]) -> None:
        for branch in (self._of(peer), *self.branches.values()):
            if (stamp.lineage, stamp.fragment, stamp.round) in branch.commits:
                branch.means(peer, stamp, means)
                return
        self.violations.append(f"round {stamp.round} is applied and no branch has its commit")

    def state(self, peer: PeerId, lineage: int, fragment: int, round_: int, digest: str) -> None:
        self._of(peer).state(peer, lineage, fragment, round_, digest)

    def dropped(self, peer: PeerId, fragment: int, steps: tuple[int, int], lineage: int) -> None:
        self._of(peer).dropped(peer, fragment, steps, lineage)


class ForkCheckers(Checkers):
    """The checkers of a world that may fork. Votes, disks and elections are checked in the bigger
    worlds, which have one log."""

    def __init__(self, forks: ForkHistory) -> None:
        super().__init__(forks)
        self.forks = forks
        """The same as `history`."""
        self.between = forks.between

    def woke(self, node: Node) -> None:
        """An incarnation begins, and reads its log from the beginning."""
        self.forks.on[node.peer] = ()
        self.between.woke(node)

    def handled(self, node: Node, event: v.Event, commands: object) -> None:
        self.between.looked(node)

    def sent(self, node: Node, to: PeerId, message: m.Control) -> None:
        if isinstance(message, m.OnBranch):
            self.between.said(node, to, message)

    def survives(self, node: Node, index: int, entry: e.Entry) -> None:
        pass

    def healed(self, world: WorldView[Node]) -> None:
        super().healed(world)
        self.between.healed(world)

    def run_ended(self, world: WorldView[Node]) -> None:
        """Check that connected live peers are on the same branch: one has given its own up."""
        for one in world.live:
            for other in world.live:
                apart = one.run_state.forks != other.run_state.forks
                if one.peer < other.peer and apart and other.peer in one.core.linked_peers:
                    self.found(f"{one.peer} and {other.peer} are connected, but on two branches")
        self.between.run_ended()


class ForkWorld(World):
    """A world of two training peers, without a witness."""

    base_rules = replace(RULES, lonely_after_s=8.0)

    def draw_compaction(self, seed: int) -> int:
        """The most entries, so that there is no snapshot: each incarnation reads all of its
        branch."""
        return COMPACT_ENTRIES[-1]

    def make_checkers(self) -> Checkers:
        return ForkCheckers(ForkHistory(self))

    def stopped(self, node: Node, stop: c.Stop) -> None:
        """If a peer gave its branch up, start another one at its address, with another id and an
        empty disk."""
        super().stopped(node, stop)
        checkers = self.checkers
        assert isinstance(checkers, ForkCheckers), "these worlds have checkers of their own"
        checkers.between.stopped(node, stop)
        if stop.outcome != "dropped":
            return
        self.story.happened["dropped"] += 1
        old = node.me

        def again() -> None:
            peer = PeerId(f"{old.name}.{self.random.getrandbits(32):08x}")
            self.start_node(Identity(peer=peer, name=old.name, incarnation=1, address=old.address))

        self.clock.at(RETURN_S, again)

    def is_elsewhere(self, node: Node, peer: PeerId) -> bool:
        """False if the node is the peer itself, or an earlier peer at the same address."""
        return node.me.name != peer.partition(".")[0]

    def revive(self, node: Node, after_s: float) -> None:
        if node.process.outcome != "dropped":
            super().revive(node, after_s)
