"""How a peer without the run's state gets it, and how another gives it (protocol.md section 7).

Must NOT decide who may join (leader.py) nor what a state means for rounds (rounds.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocols.commands import Command, ExpectState, ServeState
from protocols.entries import Cut
from protocols.ids import PeerId, Version


@dataclass(slots=True)
class Transfer:
    """A state on its way to us."""

    cut_index: int
    cut: Cut
    missing: set[int]
    """Fragments that are not here yet."""
    deadline: float
    connected: bool
    """With the donor, at some time since the cut."""


class Catchup:
    """What we need, what we wait for, and what we owe others."""

    def __init__(self, asking: str) -> None:
        self.asking = asking
        """Why we want a cut, until we have one; "" when we need none."""
        self.since = 0.0
        """When we began to need one (for people)."""
        self.transfer: Transfer | None = None
        self.complete = 0
        """Log index of the last cut whose state is here; 0: none."""
        self._owed: list[tuple[PeerId, int, Version]] = []
        """To whom, for which cut, which version."""

    @property
    def deadline(self) -> float:
        return self.transfer.deadline if self.transfer else float("inf")

    @property
    def needed(self) -> bool:
        return bool(self.asking) or self.transfer is not None

    def ask(self, why: str, now: float) -> None:
        """Our state is missing or not the run's: the leader shall give us a cut."""
        if not self.needed:
            self.since = now
        self.transfer = None
        self.asking = why

    def granted(self, index: int, cut: Cut, *, deadline: float, connected: bool) -> list[Command]:
        """The log holds a cut for us."""
        self.asking = ""
        missing = {version.fragment for version in cut.versions}
        self.transfer = Transfer(index, cut, missing, deadline, connected)
        return [ExpectState(cut.donor, index, cut.versions)]

    def expected(self, donor: PeerId, cut_index: int, fragment: int) -> Version | None:
        """The version that must arrive, or None if nobody asked for it."""
        transfer = self.transfer
        if transfer is None or (transfer.cut.donor, transfer.cut_index) != (donor, cut_index):
            return None
        return transfer.cut.versions[fragment] if fragment in transfer.missing else None

    def arrived(self, fragment: int) -> None:
        """We took over a fragment of the cut."""
        assert self.transfer is not None
        self.transfer.missing.discard(fragment)
        if not self.transfer.missing:
            self.complete = self.transfer.cut_index
            self.transfer = None

    def connected(self, peer: PeerId) -> bool:
        """True if a transfer from this peer broke off: what was under way is lost."""
        if self.transfer is None or self.transfer.cut.donor != peer:
            return False
        broke, self.transfer.connected = self.transfer.connected, True
        return broke

    def gone(self, peer: PeerId) -> bool:
        """The peer left the run and wants nothing from us; True if it owes us a state."""
        self._owed = [owed for owed in self._owed if owed[0] != peer]
        return self.transfer is not None and self.transfer.cut.donor == peer

    def owe(self, index: int, cut: Cut) -> None:
        """We are the donor of a cut; an earlier one for the same peer is void."""
        peer = cut.info.peer
        self._owed = [owed for owed in self._owed if owed[0] != peer]
        self._owed += [(peer, index, version) for version in cut.versions]

    def serve(self, applied: Sequence[int]) -> list[Command]:
        """Copy what a cut names while we hold exactly that, before the next round changes it.

        What we jumped over by a transfer of our own is dropped: whoever waits for it asks again.
        """
        due = [owed for owed in self._owed if applied[owed[2].fragment] >= owed[2].round]
        self._owed = [owed for owed in self._owed if owed not in due]
        return [
            ServeState(peer, index, (version,))
            for peer, index, version in due
            if applied[version.fragment] == version.round
        ]
