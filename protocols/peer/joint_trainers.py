"""The status of this node's ranks, as far as rounds depend on it.

The shell reports it. Must NOT know processes, steps or parameters.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class JointTrainers:
    """What the ranks can do at present."""

    ready: bool = False
    """They are attached: they have parameters, or wait for their first ones."""
    started: bool = False
    """They have got their first parameters."""
    able: bool = False
    """They can contribute to the next round, so other peers should wait for them."""
    why_not: str = "its ranks are not ready"

    def lost(self, why: str) -> None:
        """The ranks are lost and will be started again."""
        self.ready = self.started = self.able = False
        self.why_not = why
