"""Which samples our own ranks may draw, and how many we want ahead.

The ledger says what we hold; what our ranks have seen and no round has decided about is in use.
Must NOT decide what anybody gets (leader/sample_leases.py), nor which sample a rank takes: the
shell does.
"""

from protocols.interface.commands import Command, Leased
from protocols.links.handshake import Identity
from protocols.messages.peer import Wants
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.run_state import Membership
from protocols.types.sample_ranges import Samples, count


class Drawing:
    """`anchor` is there once we know the run."""

    def __init__(self, me: Identity, members: Membership) -> None:
        self.ahead = 0
        """How many samples our ranks want to have ahead; 0: they take none of ours."""
        self.anchor: FragmentRounds | None = None
        self._me = me
        self._members = members
        self._told: Samples = ()

    def news(self) -> list[Command]:
        """What the shell does not know yet."""
        if not self.ahead or self.anchor is None:
            return []
        held = self._members.ledger.of(self._me.peer, self._me.incarnation)
        left = self.anchor.left(held)
        if left == self._told:
            return []
        self._told = left
        return [Leased(left)]

    def wants(self) -> Wants | None:
        """For the leader. It knows what we hold, but not what of it we carry from round to round:
        that is no reserve."""
        if not self.ahead or self.anchor is None:
            return None
        return Wants(self.ahead, count(self.anchor.carried), self._members.lineage)
