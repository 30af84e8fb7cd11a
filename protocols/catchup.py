"""How a peer without the run's state gets it, and how another gives it (protocol.md section 7).

The log names a donor; the joiner asks it once both are connected and the joiner has read the cut,
so that no state comes before anybody expects it. Must NOT decide who may join (leader.py) nor
what a state means for rounds (rounds.py).
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from protocols.commands import Command, ExpectState, Send, ServeState
from protocols.entries import Cut
from protocols.ids import PeerId, Version
from protocols.messages import FetchState, NoState

HOLD_S = 1.0
"""A donor stays this long at the version that a cut names: the joiner must read the cut, connect
and ask, a few round trips. Rounds take longer, so mostly nobody waits at all."""
NEVER = float("inf")


@dataclass(slots=True)
class Transfer:
    """A state on its way to us."""

    cut_index: int
    cut: Cut
    missing: set[int]
    """Fragments that are not here yet."""
    deadline: float
    asked: bool = False
    """The donor, on the present connection."""


@dataclass(slots=True)
class Owed:
    """A state that we are to give."""

    cut_index: int
    versions: tuple[Version, ...]
    hold_until: float
    """Until then we stay at these versions."""


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
        self._owed: dict[PeerId, Owed] = {}
        self._wanted: dict[PeerId, int] = {}
        """Who asked us for the state of which cut, and has no answer yet."""

    @property
    def deadline(self) -> float:
        held = NEVER
        for owed in self._owed.values():
            held = min(held, owed.hold_until)
        return min(held, self.transfer.deadline) if self.transfer else held

    @property
    def needed(self) -> bool:
        return bool(self.asking) or self.transfer is not None

    def is_late(self, now: float) -> bool:
        """The state that we wait for does not come."""
        return self.transfer is not None and now >= self.transfer.deadline

    def stays(self, fragment: int, version: int) -> bool:
        """Somebody will ask for just this version of the fragment."""
        return bool(self._owed) and any(
            owed.hold_until < NEVER and owed.versions[fragment].round <= version
            for owed in self._owed.values()
        )

    # Taking ---------------------------------------------------------------------------------

    def ask(self, why: str, now: float) -> None:
        """Our state is missing or not the run's: the leader shall give us a cut."""
        if not self.needed:
            self.since = now
        self.transfer = None
        self.asking = why

    def granted(self, index: int, cut: Cut, deadline: float) -> list[Command]:
        """The log holds a cut for us."""
        self.asking = ""
        missing = {version.fragment for version in cut.versions}
        self.transfer = Transfer(index, cut, missing, deadline)
        return [ExpectState(cut.donor, index, cut.versions)]

    def has_own(self, index: int) -> None:
        """Our own checkpoint is the state that the log went back to at this index."""
        self.asking, self.transfer, self.complete = "", None, index

    def request(self, connected: Set[PeerId]) -> list[Command]:
        """Ask the donor, once on each connection: what was under way on the last one is lost."""
        transfer = self.transfer
        if transfer is None or transfer.asked or transfer.cut.donor not in connected:
            return []
        transfer.asked = True
        return [Send(transfer.cut.donor, FetchState(transfer.cut_index))]

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

    # Giving ---------------------------------------------------------------------------------

    def owe(self, index: int, cut: Cut, now: float) -> None:
        """We are the donor of a cut; an earlier one for the same peer is void."""
        self._owed[cut.info.peer] = Owed(index, cut.versions, now + HOLD_S)

    def wanted(self, peer: PeerId, index: int) -> None:
        """The joiner read its cut (perhaps before we did)."""
        self._wanted[peer] = index

    def serve(self, applied: Sequence[int | None], last_index: int, now: float) -> list[Command]:
        """Answer those who asked: with what the cut names, if we hold exactly that.

        Call it before rounds are applied. `applied`: the version of each fragment, None while it
        changes; `last_index`: how far we have read the log.
        """
        commands: list[Command] = []
        for peer, index in list(self._wanted.items()):
            if index > last_index:
                continue  # We read of it soon.
            owed = self._owed.get(peer)
            if owed is None or owed.cut_index != index:
                del self._wanted[peer]
                commands.append(Send(peer, NoState(index)))
                continue
            held = [h for v in owed.versions if (h := applied[v.fragment]) is not None]
            if len(held) < len(owed.versions):
                continue  # A copy would be neither the old state nor the new one.
            beyond = [h - v.round for h, v in zip(held, owed.versions, strict=True)]
            if min(beyond) < 0 == max(beyond) and now < owed.hold_until:
                continue  # The last rounds before the cut are committed, and not applied here yet.
            del self._wanted[peer]
            owed.hold_until = NEVER
            fits = not any(beyond)
            commands.append(
                ServeState(peer, index, owed.versions) if fits else Send(peer, NoState(index))
            )
        for owed in self._owed.values():
            if now >= owed.hold_until:
                owed.hold_until = NEVER
        return commands

    # Both -----------------------------------------------------------------------------------

    def disconnected(self, peer: PeerId) -> None:
        """What was under way between us is lost; whoever lacks it asks again."""
        self._wanted.pop(peer, None)
        if self.transfer is not None and self.transfer.cut.donor == peer:
            self.transfer.asked = False

    def gone(self, peer: PeerId) -> bool:
        """The peer left the run and wants nothing from us; True if it owes us a state."""
        self._owed.pop(peer, None)
        self._wanted.pop(peer, None)
        return self.transfer is not None and self.transfer.cut.donor == peer
