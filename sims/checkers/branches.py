"""Checks that of two branches the one that has trained more stays (protocol.md section 8).

The worlds of two peers feed it (scenarios/two_peers.py). Must NOT check the content of a branch,
which has checkers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import PeerId
from sims.node.node import Node
from sims.node.world_view import WorldView

Name = tuple[int, ...]
"""The name of a branch: its forks, oldest first."""
MEET_SILENCES = 1.5
"""If leaders of two branches are connected, one gives up or they disconnect within one silence
timeout. The check allows so many silence timeouts."""
HEALED_S = 60.0
"""Seconds. A peer that lives so long after the last fault has met all other peers."""
SLACK_S = 0.01


class BranchChecks:
    """Checks forks and their end. `on`: the branch of the entry that each peer applied last."""

    def __init__(self, found: Callable[[str], None], on: Mapping[PeerId, Name]) -> None:
        self._found = found
        self._on = on
        self._tokens: dict[Name, int] = {(): 0}
        """Tokens committed on each branch, from the beginning of the run."""
        self._voted: set[PeerId] = set()
        """The peers that ever had a vote."""
        self._lonely: dict[Name, set[PeerId]] = {}
        """By branch of a peer that went on alone: the voters that it left behind, which may still
        come."""
        self._with_voter: dict[PeerId, float] = {}
        """By peer: when it was last connected with another voter."""
        self._knew: dict[PeerId, Name] = {}
        """By peer: the branch of its whole log, applied or not."""
        self._met: dict[tuple[PeerId, PeerId], float] = {}
        """By pair of connected leaders of two branches: the time at which this began."""
        self._final: dict[PeerId, tuple[PeerId, int]] = {}
        """By peer that sent a final OnBranch: the receiver, and the commit index of the sender
        then."""
        self._healed = float("inf")
        self._finished_late: set[PeerId] = set()
        """Peers that finished more than HEALED_S after the last fault."""

    # Events ---------------------------------------------------------------------------------

    def woke(self, node: Node) -> None:
        """An incarnation of a peer begins."""
        self._with_voter[node.peer] = node.now
        self._final.pop(node.peer, None)
        self._knew[node.peer] = _branch_of(node)

    def healed(self, world: WorldView[Node]) -> None:
        self._healed = world.clock.now

    def said(self, node: Node, to: PeerId, word: m.OnBranch) -> None:
        """A peer sends the position of its branch."""
        self._takes_its_word_back(node)
        self._final.pop(node.peer, None)
        if word.final:
            # It has no uncommitted entry then: any later entry was decided after this message.
            self._final[node.peer] = to, node.raft.commit_index

    def looked(self, node: Node) -> None:
        """A core handled an event."""
        to, _ = self._final.get(node.peer, (node.peer, 0))
        core, log, up, now = node.core, node.raft.log, node.core.linked_peers, node.now
        if not (to in up and node.world.nodes[to].core.raft.leads):
            self._final.pop(node.peer, None)
        ours, alone = _branch_of(node), log.voters == (node.peer,)
        if core.raft.leads and alone and len(ours) > len(self._knew[node.peer]):
            since = now - self._with_voter[node.peer]
            if since < core.rules.lonely_after_s - SLACK_S:
                self._found(f"{node.peer} goes on alone after {since:.1f} s")
        self._knew[node.peer] = ours
        if up.intersection(core.run_state.voters or log.voters):
            self._with_voter[node.peer] = now
        # Also peers that it has disconnected from: these may be paused, and handle no event.
        met = {peer for pair in self._met if node.peer in pair for peer in pair}
        for peer in sorted({*up, *met} - {node.peer}):
            self._decide_in_time(node, node.world.nodes[peer])

    def read(self, peer: PeerId, name: Name, entry: e.Entry) -> None:
        """The first peer applies an entry of a branch."""
        match entry:
            case e.Run():
                self._voted.add(entry.founder)
            case e.Restore(tokens=tokens):
                self._tokens[name] = tokens
                if entry.fork and entry.lonely:
                    self._lonely[name] = self._voted - set(entry.voters)
            case e.Commit(fragment=0, contributors=terms):
                self._tokens[name] = self._tokens.get(name, 0) + sum(x.tokens for x in terms)
            case e.Voter(votes=True) if name in self._lonely:
                self._found(f"{peer} is alone in its branch, and lets {entry.peer} vote")
            case e.Voter(votes=True):
                self._voted.add(entry.peer)
            case e.Revoked() if entry.peer in self._lonely.get(name, ()):
                del self._lonely[name]  # Its rival never comes back.
            case e.BranchDropped():
                self._lonely.pop(name, None)
                theirs, mine = (-entry.tokens, entry.forks), (-self._tokens[name], name)
                if theirs < mine:
                    self._found(f"{peer} stays, and {entry.peer} has trained {entry.tokens} tokens")
            case _:
                pass

    def stopped(self, node: Node, stop: c.Stop) -> None:
        """A peer ends by itself."""
        if stop.outcome == "dropped":
            self._gave_up(node)
        elif stop.outcome == "finished" and node.now > self._healed + HEALED_S:
            self._finished_late.add(node.peer)

    def run_ended(self) -> None:
        """The run is over."""
        late = self._finished_late
        if len({self._on[peer] for peer in late}) > 1:
            self._found(f"{' and '.join(sorted(late))} finish on different branches")

    # Checks ---------------------------------------------------------------------------------

    def _takes_its_word_back(self, node: Node) -> None:
        """Check that a peer that sent its final position appends nothing until both peers know
        which branch stays."""
        log = node.raft.log
        to, last = self._final.get(node.peer, (node.peer, log.last_index))
        fresh = log.since(max(last, log.base) + 1)
        if fresh and not any(isinstance(entry.body, e.BranchDropped) for entry in fresh):
            self._found(
                f"{node.peer} goes on with {fresh[0].body!r} after its final position to {to}"
            )

    def _gave_up(self, node: Node) -> None:
        """A peer gives its branch up: check that the other branch has trained more, or that this
        peer has had no leader for a silence timeout."""
        core, mine, nodes = node.core, self._on[node.peer], node.world.nodes
        rivals = [nodes[p] for p in core.links.up if self._on.get(p, mine) != mine]
        for rival in rivals:
            if rival.process.outcome == "dropped":
                self._found(f"{node.peer} and {rival.peer} both give their branches up")
            elif core.leads and rival.running and rival.core.leads:
                theirs = self._on[rival.peer]
                if (-self._tokens[mine], mine) < (-self._tokens[theirs], theirs):
                    self._found(f"{node.peer} gives up, and has trained more than {rival.peer}")
        alone_s = node.now - core.leader_watch.leaderless_since
        if not core.leads and alone_s < core.rules.silence_timeout_s - SLACK_S:
            self._found(f"{node.peer} gives up, {max(0.0, alone_s):.1f} s after it knew a leader")

    def _decide_in_time(self, node: Node, other: Node) -> None:
        """Check that connected leaders of two branches do not both go on."""
        one, two = min(node.peer, other.peer), max(node.peer, other.peer)
        both = all(
            x.running and x.core.leads and x.raft.settled and y.peer in x.core.linked_peers
            for x, y in ((node, other), (other, node))
        )
        if not both or self._on.get(one) == self._on.get(two):
            self._met.pop((one, two), None)
            return
        now = node.now
        since = self._met.setdefault((one, two), now)
        rules = node.core.rules
        if now > since + MEET_SILENCES * rules.silence_timeout_s:
            self._found(f"{one} and {two} met, and both go on")
            self._met[one, two] = float("inf")  # Report it once.


def _branch_of(node: Node) -> Name:
    """The name of a node's branch, by its whole log."""
    connectivity = node.core.connectivity
    return connectivity.other_branches.ours
