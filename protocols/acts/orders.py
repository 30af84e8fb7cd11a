"""The acts that steer the run, as the log has them: those in force, and the newest others.

Must NOT check an act (authority.py, state/entry_validation.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols.messages.log_entries import Steered
from protocols.types.ids import PeerId
from protocols.types.limits import STEERED_MAX

if TYPE_CHECKING:
    from protocols.messages.snapshot import RunStateSnapshot

PAUSE, CONTINUE, KICK, SET = "pause", "continue", "kick", "set"
ADD, REMOVE = "add operator", "remove operator"
KINDS = (PAUSE, CONTINUE, KICK, SET, ADD, REMOVE)
NEEDS_A_KEY = (ADD, REMOVE)
"""Acts that no voter may ask for without a signature."""
OPERATORS_MAX = 16
OPERATOR_ACTS_MAX = 64
"""So many times the operators may change. These acts are kept for ever, since they prove which
later ones count."""


@dataclass(slots=True)
class Orders:
    """All acts that steer the run. A rollback keeps them."""

    acts: dict[int, Steered] = field(default_factory=dict[int, Steered])
    """By number, in the order of the log."""
    indices: dict[int, int] = field(default_factory=dict[int, int])
    """By number, the log index."""
    paused: Steered | None = None
    """The pause in force."""
    last_rounds: tuple[int, ...] = ()
    """While the run is paused: by fragment, the last round that may be made; () in a stepwise
    run."""
    settings: dict[str, str] = field(default_factory=dict[str, str])
    """The values that were set, as JSON, by key."""
    operators: tuple[str, ...] = ()
    """Public keys of the operators besides the root key, 64 hex digits each."""
    _kicks: dict[PeerId, Steered] = field(default_factory=dict[PeerId, Steered])
    """By peer, the last act that removed it."""

    @property
    def number(self) -> int:
        """The number of the last act; 0: there is none."""
        return next(reversed(self.acts), 0)

    @property
    def num_operator_acts(self) -> int:
        return sum(act.what in NEEDS_A_KEY for act in self.acts.values())

    @property
    def ever_operators(self) -> tuple[str, ...]:
        """Public keys of all operators besides the root key that there ever were."""
        added = (act.subject for act in self.acts.values() if act.what == ADD)
        return tuple(dict.fromkeys(added))

    @property
    def kicks(self) -> bool:
        """Was any peer removed?"""
        return bool(self._kicks)

    def kick_of(self, peer: PeerId, incarnation: int) -> Steered | None:
        """The act that removed this incarnation of a peer, if one did."""
        act = self._kicks.get(peer)
        return act if act is not None and incarnation <= int(act.value) else None

    def apply_act(
        self,
        act: Steered,
        index: int,
        *,
        last_rounds: tuple[int, ...],
        incarnations: Mapping[PeerId, int],
    ) -> None:
        """`last_rounds`: of a pause. `incarnations`: those of all peers that read the log: that
        these are removed is not forgotten."""
        self.acts[act.number], self.indices[act.number] = act, index
        self._take(act)
        if act.what in (PAUSE, CONTINUE):
            self.last_rounds = last_rounds if act.what == PAUSE else ()
        if len(self.acts) > STEERED_MAX:
            gone = next(n for n, act in self.acts.items() if not self._is_needed(act, incarnations))
            self._forget(gone)

    def restored(self, rounds: tuple[int, ...]) -> None:
        """The run went back to these rounds: a pause begins there."""
        if self.last_rounds:
            self.last_rounds = rounds

    def become(self, image: RunStateSnapshot) -> None:
        self.acts = {act.number: act for act in image.steered}
        self.indices = dict(zip(self.acts, image.steered_indices, strict=False))
        self.last_rounds = image.last_rounds
        self.paused, self.settings, self.operators, self._kicks = None, {}, (), {}
        for act in self.acts.values():
            self._take(act)

    def _forget(self, number: int) -> None:
        act = self.acts.pop(number)
        del self.indices[number]
        if self._kicks.get(PeerId(act.subject)) is act:
            del self._kicks[PeerId(act.subject)]

    def _take(self, act: Steered) -> None:
        match act.what:
            case "pause":
                self.paused = act
            case "continue":
                self.paused = None
            case "set":
                self.settings[act.subject] = act.value
            case "kick":
                self._kicks[PeerId(act.subject)] = act
            case _:
                self.operators = operators_after(self.operators, act)

    def _is_needed(self, act: Steered, incarnations: Mapping[PeerId, int]) -> bool:
        """Is the act in force, or the proof of others?"""
        match act.what:
            case "pause" | "continue":
                return act is self.paused
            case "set":
                later = (x for n, x in self.acts.items() if n > act.number and x.what == SET)
                return all(other.subject != act.subject for other in later)
            case "kick":
                return incarnations.get(PeerId(act.subject), -1) == int(act.value)
            case _:
                return True


def operators_after(operators: tuple[str, ...], act: Steered) -> tuple[str, ...]:
    """The operators after an act."""
    match act.what:
        case "add operator":
            return (*operators, act.subject)
        case "remove operator":
            return tuple(key for key in operators if key != act.subject)
        case _:
            return operators
