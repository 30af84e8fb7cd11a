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


class Catchup:
    """What we need, what we wait for, and what we owe others."""

    def __init__(self, asking: str) -> None:
        self.asking = asking
        """Why we want a cut, until we have one; "" when we need none."""
        self.asked = False
        """The leader knows."""
        self.since = 0.0
        """When we asked (for people)."""
        self.transfer: Transfer | None = None
        self._owed: list[tuple[int, Cut]] = []

    @property
    def deadline(self) -> float:
        return self.transfer.deadline if self.transfer else float("inf")

    @property
    def needed(self) -> bool:
        return bool(self.asking) or self.transfer is not None

    def ask(self, why: str) -> None:
        """Our state is missing or not the run's: the leader shall give us a cut."""
        self.transfer = None
        self.asking, self.asked = why, False

    def granted(self, index: int, cut: Cut, deadline: float) -> list[Command]:
        """The log holds a cut for us."""
        self.asking = ""
        missing = {version.fragment for version in cut.versions}
        self.transfer = Transfer(index, cut, missing, deadline)
        return [ExpectState(cut.donor, index, cut.versions)]

    def expected(self, cut_index: int, fragment: int) -> Version | None:
        """The version that must arrive, or None if it belongs to an earlier cut."""
        transfer = self.transfer
        if transfer is None or transfer.cut_index != cut_index or fragment not in transfer.missing:
            return None
        return next((v for v in transfer.cut.versions if v.fragment == fragment), None)

    def arrived(self, fragment: int) -> bool:
        """True if that was the last fragment of the cut."""
        assert self.transfer is not None
        self.transfer.missing.discard(fragment)
        if self.transfer.missing:
            return False
        self.transfer = None
        return True

    def gone(self, peer: PeerId) -> None:
        """The peer left the run: it gives us nothing, and wants nothing from us."""
        self._owed = [(index, cut) for index, cut in self._owed if cut.info.peer != peer]
        if self.transfer is not None and self.transfer.cut.donor == peer:
            self.ask("the donor is gone")

    def owe(self, index: int, cut: Cut) -> None:
        """We are the donor of a cut."""
        self._owed.append((index, cut))

    def serve(self, applied: Sequence[int]) -> list[Command]:
        """Copy what a cut names as soon as we hold it, before the next round changes it."""
        due = [
            (index, cut)
            for index, cut in self._owed
            if all(applied[v.fragment] >= v.round for v in cut.versions)
        ]
        self._owed = [owed for owed in self._owed if owed not in due]
        return [ServeState(cut.info.peer, index, cut.versions) for index, cut in due]
