"""I6 and I8: a peer reports only what its disk has; a majority of disks has each applied entry.

If both hold, any peer may be killed at any moment. Must NOT read the memory of a process where its
disk can be read: the process may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft import Voters, voters_after
from protocols.types import PeerId
from sims.node.node import Node


class DurabilityChecks:
    """Checks votes, acknowledgements and applied entries against the disks."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._applied = 0
        """Index up to which some peer has applied the log."""
        self._voters: Voters = ()
        """The voters after that entry."""
        self._acknowledged: dict[tuple[PeerId, int, int], int] = {}
        """By (peer, incarnation, term): the index up to which it acknowledged the leader's log."""

    def woke(self, node: Node) -> None:
        """Check that a peer begins with the term and the vote of its disk: else it could vote
        twice."""
        state, saved = node.raft.term_state, node.disk.saved
        if saved is not None and (state.term, state.vote) != (saved.term, saved.vote):
            self._found(
                f"{node.peer} wakes in term {state.term} with the vote {state.vote!r}, "
                f"its disk has {saved.term} and {saved.vote!r}"
            )

    def claims(self, node: Node) -> None:
        """A write completed: check that the disk has the entries that the core counts as
        durable."""
        raft = node.raft
        index = raft.disk.durable_index
        if not node.disk.holds(index, raft.log.term_at(index)):
            self._found(
                f"{node.peer} counts entry {index} as durable, and its disk does not have it"
            )

    def voted(self, node: Node, to: PeerId, message: m.Vote | m.Voted) -> None:
        """Check that a vote is on the disk when it is sent: a crash must not take it back."""
        if message.pre:
            return
        saved, term = node.disk.saved, message.term
        if saved is None or saved.term < term:
            self._found(
                f"{node.peer} sends a vote message of term {term} before its disk has the term"
            )
            return
        vote = node.peer if isinstance(message, m.Vote) else to if message.granted else ""
        if vote and saved.term == term and saved.vote != vote:
            self._found(f"{node.peer} votes for {vote} in term {term} before its disk has the vote")

    def acknowledged(
        self, node: Node, to: PeerId, answer: m.Appended, leaders: Mapping[int, PeerId]
    ) -> None:
        """Check that an acknowledged entry is on the disk, and that the log is a copy of this
        leader's."""
        raft = node.raft
        if not answer.matches or answer.term != raft.term:
            return
        if leaders.get(answer.term, to) != to:
            self._found(f"{node.peer} takes entries of {to}, which does not lead term {raft.term}")
        index = answer.index
        if not node.disk.holds(index, raft.log.term_at(index)):
            self._found(f"{node.peer} acknowledges entry {index}, and its disk does not have it")
        key = (node.peer, node.me.incarnation, answer.term)
        before = self._acknowledged.get(key, 0)
        if raft.log.last_index < before:
            self._found(
                f"{node.peer} had the log up to {before} and now to {raft.log.last_index}, "
                f"both in term {answer.term}"
            )
        self._acknowledged[key] = max(before, index)

    def check_entry(self, node: Node, index: int, entry: e.Entry) -> None:
        """Check that no election can lose an entry that the first peer applies."""
        if index <= self._applied:
            return
        raft, log = node.raft, node.raft.log
        if log.term_at(raft.commit_index) != raft.term:
            # Copies of older entries do not commit them: a newer leader may replace them.
            self._found(
                f"{node.peer} commits entries of an older term than {raft.term} by their copies"
            )
        self._applied, self._voters = index, voters_after(self._voters, entry)
        term = log.term_at(index)
        nodes = node.world.nodes
        have = {peer for peer, one in nodes.items() if one.disk.holds(index, term)}
        # Usually a majority of the present voters has it; else of the voters after an entry in
        # between, which may be in a snapshot already.
        known = (log.voters, node.run_state.voters, self._voters)
        if any(_is_majority(have, voters) for voters in known):
            return
        voters = self._voters
        for later in log.since(index + 1) if index >= log.base else ():
            voters = voters_after(voters, later.body)
            if _is_majority(have, voters):
                return
        self._found(f"{node.peer} applies entry {index}, which only {sorted(have)} have")


def _is_majority(peers: set[PeerId], voters: Voters) -> bool:
    return 2 * len(peers.intersection(voters)) > len(voters)
