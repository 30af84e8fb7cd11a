"""How a peer without the run's state gets one (protocol.md section 7).

The log names donors, then the roots of their states; the joiner takes cells from all donors. Must
NOT decide which peer may join (leader/joins.py), which donor gives which cells (receiver.py), nor
what a state means for rounds (rounds/fragment_rounds.py).
"""

from collections.abc import Iterable, Set

from protocols.interface.commands import Command, Send
from protocols.interface.transfer_commands import ExpectState
from protocols.messages.log_entries import Cut
from protocols.messages.transfer import FetchState
from protocols.state.entry_validation import name_of_state
from protocols.transfer.receiver import StateReceiver
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Version


class CatchUp:
    """The state that this peer needs, and the transfer that brings it."""

    def __init__(self, asking: str) -> None:
        self.asking = asking
        """Why this peer asks for a cut; "" once the log has one, or if none is needed."""
        self.since = 0.0
        """Since when a state is needed; shown to people."""
        self.transfer: StateReceiver | None = None
        self.complete = 0
        """Log index of the last cut with a complete state; 0: none."""
        self.state = ""
        """The name of that state, by its own cells or checkpoint."""
        self._held: dict[int, dict[int, bytes]] = {}
        """By fragment, digests of the cells that the shell has, until the state is complete."""
        self._over: tuple[int, set[PeerId]] = (0, set())
        """(log index of a cut that is complete, its donors that do not know that yet)."""

    @property
    def deadline(self) -> float:
        return self.transfer.deadline if self.transfer else NEVER

    @property
    def needed(self) -> bool:
        return bool(self.asking) or self.transfer is not None

    def ask(self, why: str, now: float) -> None:
        """The state is missing or differs from the run's: ask the leader for a cut."""
        if not self.needed:
            self.since = now
        self.transfer = None
        self.asking = why

    def granted(self, index: int, cut: Cut, *, now: float, patience_s: float) -> list[Command]:
        """The log has a cut for this peer."""
        self.asking = ""
        self.transfer = StateReceiver(index, cut, self._held, now=now, patience_s=patience_s)
        return [ExpectState(index, cut.donors, cut.versions)]

    def has_own(self, index: int, versions: Iterable[Version]) -> None:
        """This peer has these versions, the state of the rollback at this log index."""
        self.asking, self.transfer, self.complete = "", None, index
        self.state = name_of_state(version.state_digest for version in versions)

    def failed(self, now: float) -> str:
        """Why the present cut cannot bring the state; "" if it may."""
        transfer = self.transfer
        if transfer is None:
            return ""
        return "the transfer took too long" if now >= transfer.late_at else transfer.hopeless

    def request(self, now: float, connected: Set[PeerId], roots: tuple[str, ...]) -> list[Command]:
        """Ask donors for leaves and cells. `roots`: those of the cut, once the log has them."""
        index, told = self._over[0], self._over[1] & connected
        self._over[1].difference_update(told)
        commands: list[Command] = [Send(donor, FetchState(index, ())) for donor in sorted(told)]
        if self.transfer is not None:
            self.transfer.roots = roots or self.transfer.roots  # A false snapshot may lack them.
            commands += self.transfer.advance(now, connected)
        return commands

    def expected(self, cut_index: int, fragment: int) -> Version | None:
        """The version that must arrive; None if this cut or fragment is not expected."""
        transfer = self.transfer
        if transfer is None or transfer.index != cut_index:
            return None
        return transfer.cut.versions[fragment] if fragment in transfer.missing else None

    def arrived(self, fragment: int) -> None:
        """This peer has adopted a fragment of the cut."""
        transfer = self.transfer
        assert transfer is not None
        transfer.missing.discard(fragment)
        if not transfer.missing:
            self.complete, self.transfer = transfer.index, None
            self.state = name_of_state(transfer.roots)
            self._over = transfer.index, set(transfer.cut.donors)
            self._held = {}
