"""The payloads of steps that a peer holds.

These are names and digests; the shell has the bytes. Must NOT decide which payloads are accepted
(step_machine.py) nor which steps are committed (leader/step_views.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocols.messages.log_entries import View
from protocols.types.ids import PeerId, StepPayloads


@dataclass(slots=True)
class Payloads:
    """By view and step: a step that is tried again in another view has other payloads."""

    held: dict[tuple[int, int], dict[PeerId, str]] = field(
        default_factory=dict[tuple[int, int], dict[PeerId, str]]
    )
    """Digests by (view, step) and peer."""
    _newest: dict[int, dict[PeerId, int]] = field(default_factory=dict[int, dict[PeerId, int]])
    """By view and peer, the last step in `held`."""
    _furthest: dict[int, int] = field(default_factory=dict[int, int])
    """By view, the last step in `held` of any peer."""

    def add(self, view: int, step: int, peer: PeerId, digest: str) -> bool:
        """Add a payload. False if another one of the same peer and step is here: the first one
        stays."""
        self._noted(view, step, peer)
        held = self.held.get((view, step))
        if held is None:
            self.held[view, step] = {peer: digest}
            return True
        return held.setdefault(peer, digest) == digest

    def of_step(self, view: int, step: int) -> dict[PeerId, str]:
        return self.held.get((view, step), {})

    def missing(self, view: View, step: int) -> tuple[PeerId, ...]:
        """The peers with missing payloads, in the order of the roster."""
        held = self.of_step(view.view, step)
        return tuple(peer for peer in view.roster if peer not in held)

    def listed(self, view: int, first: int, count: int) -> tuple[StepPayloads, ...]:
        """The held payloads of some steps."""
        found = ((step, self.of_step(view, step)) for step in range(first, first + count))
        return tuple(StepPayloads(step, tuple(sorted(held))) for step, held in found if held)

    def newest(self, view: int) -> Mapping[PeerId, int]:
        """By peer, the step of its last payload."""
        return self._newest.get(view, {})

    def furthest(self, view: int) -> int:
        """The last step of which any payload is here; 0 if none is."""
        return self._furthest.get(view, 0)

    def prune(self, fits: Callable[[int, int], bool]) -> None:
        """Drop the payloads with a (view, step) for which `fits` is False."""
        self.held = {key: held for key, held in self.held.items() if fits(*key)}
        self._newest, self._furthest = {}, {}
        for (view, step), held in self.held.items():
            for peer in held:
                self._noted(view, step, peer)

    def _noted(self, view: int, step: int, peer: PeerId) -> None:
        newest = self._newest.setdefault(view, {})
        if step > newest.get(peer, 0):
            newest[peer] = step
        if step > self._furthest.get(view, 0):
            self._furthest[view] = step
