"""How a peer without the run's state gets it (protocol.md section 7).

The log names donors, and then the roots of what they hold; the joiner takes cells from all of them.
Must NOT decide who may join (leader/decisions.py), whom to ask for what (receiver.py), nor what a
state means for rounds (rounds/fragment_rounds.py).
"""

from collections.abc import Set

from protocols.interface.commands import Command, Send
from protocols.interface.transfer_commands import ExpectState
from protocols.messages.log_entries import Cut
from protocols.messages.transfer import FetchState
from protocols.transfer.receiver import Intake
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Version


class Catchup:
    """What we need, and what we wait for."""

    def __init__(self, asking: str) -> None:
        self.asking = asking
        """Why we want a cut, until we have one; "" when we need none."""
        self.since = 0.0
        """When we began to need one (for people)."""
        self.transfer: Intake | None = None
        self.complete = 0
        """Log index of the last cut whose state is here; 0: none."""
        self._held: dict[int, dict[int, bytes]] = {}
        """Digests of the cells that the shell has, by fragment, until a state is complete."""
        self._over: tuple[int, set[PeerId]] = (0, set())
        """A cut that is over, and which of its donors do not know."""

    @property
    def deadline(self) -> float:
        return self.transfer.deadline if self.transfer else NEVER

    @property
    def needed(self) -> bool:
        return bool(self.asking) or self.transfer is not None

    def ask(self, why: str, now: float) -> None:
        """Our state is missing or not the run's: the leader shall give us a cut."""
        if not self.needed:
            self.since = now
        self.transfer = None
        self.asking = why

    def granted(self, index: int, cut: Cut, *, now: float, patience_s: float) -> list[Command]:
        """The log holds a cut for us."""
        self.asking = ""
        self.transfer = Intake(index, cut, self._held, now=now, patience_s=patience_s)
        return [ExpectState(index, cut.donors, cut.versions)]

    def has_own(self, index: int) -> None:
        """Our own checkpoint is the state that the log went back to at this index."""
        self.asking, self.transfer, self.complete = "", None, index

    def failed(self, now: float) -> str:
        """Why the present cut will not bring us our state; "": it may."""
        transfer = self.transfer
        if transfer is None:
            return ""
        return "the transfer took too long" if now >= transfer.late_at else transfer.hopeless

    def request(self, now: float, connected: Set[PeerId], roots: tuple[str, ...]) -> list[Command]:
        """Ask donors for what is due. `roots`: of our cut, as soon as the log says them."""
        index, told = self._over[0], self._over[1] & connected
        self._over[1].difference_update(told)
        commands: list[Command] = [Send(donor, FetchState(index, ())) for donor in sorted(told)]
        if self.transfer is not None:
            self.transfer.roots = roots
            commands += self.transfer.advance(now, connected)
        return commands

    def expected(self, cut_index: int, fragment: int) -> Version | None:
        """The version that must arrive, or None if nobody asked for it."""
        transfer = self.transfer
        if transfer is None or transfer.index != cut_index:
            return None
        return transfer.cut.versions[fragment] if fragment in transfer.missing else None

    def arrived(self, fragment: int) -> None:
        """We took over a fragment of the cut."""
        transfer = self.transfer
        assert transfer is not None
        transfer.missing.discard(fragment)
        if not transfer.missing:
            self.complete, self.transfer = transfer.index, None
            self._over = transfer.index, set(transfer.cut.donors)
            self._held = {}
