"""The samples that this peer's ranks may draw, and how many it wants ahead.

The ledger has the samples that this peer holds; those that the ranks have seen, and that no round
has decided about, are in use. Must NOT decide which peer gets samples (leader/sample_leases.py),
nor which sample a rank draws (the shell).
"""

from protocols.interface.commands import Command, Leased
from protocols.links.handshake import Identity
from protocols.messages.peer import WantSamples
from protocols.rounds.local_work import LocalWork
from protocols.state.run_state import RunState
from protocols.types.sample_ranges import Samples, count


class SampleRequests:
    """The requests of one peer; `anchor` is set once the run is known."""

    def __init__(self, me: Identity, run_state: RunState) -> None:
        self.ahead = 0
        """Samples that the ranks want to hold ahead; 0: samples are not accounted for."""
        self.anchor: LocalWork | None = None
        self._me = me
        self._run_state = run_state
        self._told: Samples = ()

    def news(self) -> list[Command]:
        """Leased commands with the set of samples, if it has changed."""
        if not self.ahead or self.anchor is None:
            return []
        ledger = self._run_state.ledger
        held = ledger.held_by(self._me.peer, self._me.incarnation)
        left = self.anchor.left(held)
        if left == self._told:
            return []
        self._told = left
        return [Leased(left)]

    def wants(self) -> WantSamples | None:
        """The request for the leader, which knows the held samples, but not those of uncounted
        work, which are no reserve."""
        if not self.ahead or self.anchor is None:
            return None
        return WantSamples(self.ahead, count(self.anchor.carried), self._run_state.lineage)
