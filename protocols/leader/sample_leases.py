"""The leader leases samples to peers: in bulk and ahead of need, several peers in one entry.

Must NOT remember which peer holds what: the ledger after the whole log has it, uncommitted entries
included.
"""

from dataclasses import dataclass, field

from protocols.messages.log_entries import Lease
from protocols.messages.peer import WantSamples
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId
from protocols.types.sample_ranges import Grant, SampleRange, Samples, count, first, subtract, union

FREE_RANGES_MAX = 32
"""Ranges of freed samples in one grant; more go to another peer, or later."""

WANTS_MAX = 1 << 26
"""Samples that a peer may want ahead; no node draws so many between a few results."""


@dataclass(slots=True)
class SampleLeases:
    """By peer, how many samples it wants ahead."""

    wants: dict[PeerId, WantSamples] = field(default_factory=dict[PeerId, WantSamples])
    _enough_at: int = -1
    """Log index at which no peer needed more; valid until the log or a request changes."""

    def wanted(self, peer: PeerId, wants: WantSamples) -> None:
        """Note how many samples the peer wants."""
        ahead, carried = min(wants.ahead, WANTS_MAX), min(wants.carried, WANTS_MAX)
        self.wants[peer], self._enough_at = WantSamples(ahead, carried, wants.lineage), -1

    def forget(self, peer: PeerId) -> None:
        """The peer is gone, or has restarted."""
        self.wants.pop(peer, None)

    def next_entry(self, run_state: RunState) -> Lease | None:
        """A Lease, once a peer has only half of the samples it wants: all peers that lack a quarter
        get more."""
        if self._enough_at == run_state.index:
            return None
        low = {p: lack for p in self.wants if (lack := self._lack(run_state, p))}
        if not any(2 * lack >= self.wants[peer].ahead for peer, lack in low.items()):
            self._enough_at = run_state.index
            return None
        free, frontier, grants = run_state.ledger.free, run_state.ledger.frontier, list[Grant]()
        for peer, lack in sorted(low.items()):
            if 4 * lack < self.wants[peer].ahead:
                continue
            samples = self._from_free(run_state, peer, free, lack)
            free = subtract(free, samples)
            rest = lack - count(samples)
            if rest:
                samples = union(samples, (SampleRange(frontier, frontier + rest),))
                frontier += rest
            grants.append(Grant(peer, samples))
        return Lease(tuple(grants))

    def _lack(self, run_state: RunState, peer: PeerId) -> int:
        """How many samples the peer lacks; 0 if it is no member."""
        info, wants = run_state.members.get(peer), self.wants[peer]
        if info is None:
            return 0
        left = count(run_state.ledger.held_by(peer, info.incarnation)) - wants.carried
        return max(wants.ahead - left, 0)

    def _from_free(self, run_state: RunState, peer: PeerId, free: Samples, lack: int) -> Samples:
        info = run_state.members[peer]
        ranges = len(run_state.ledger.held_by(peer, info.incarnation))
        return first(free, lack, ranges_max=max(FREE_RANGES_MAX - ranges, 0))
