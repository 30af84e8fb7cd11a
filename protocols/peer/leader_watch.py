"""Whether a leader is heard, and since when there is none.

Must NOT look for a leader (links/leader_discovery.py), nor elect one (raft/election.py).
"""

from protocols.links.connections import Connections
from protocols.raft.node import Raft
from protocols.types.clock import NEVER

OUTAGE = 10
"""A finished peer stays for so many silence timeouts for members that may only be cut off: they
need its vote, and perhaps the last state."""


class LeaderWatch:
    """The leader as this peer hears it."""

    def __init__(self, raft: Raft, links: Connections) -> None:
        self.leaderless_since = NEVER
        self.silent_at = NEVER
        """When the leader will have been silent for too long."""
        self._raft = raft
        self._links = links

    def look(self, now: float) -> bool:
        """Note whether a leader is heard, and return it."""
        found = self.hears(now)
        self.silent_at = self._heard_until if found and not self._raft.leads else NEVER
        self.leaderless_since = NEVER if found else min(self.leaderless_since, now)
        return found

    def hears(self, now: float) -> bool:
        """Is there a leader, and was it heard lately?"""
        state = self._raft.term_state
        return state.leads or (state.leader in self._links.up and now < self._heard_until)

    @property
    def _heard_until(self) -> float:
        raft = self._raft
        return raft.term_state.heard_at + 2 * raft.rules.election_timeout_s
