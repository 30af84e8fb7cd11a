"""Our own ranks, as far as rounds go.

Must NOT know processes, steps or parameters: the shell reports, this remembers.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Trainers:
    """What the ranks of this node can do at present."""

    ready: bool = False
    """They are attached: they have their parameters, or wait for their first ones."""
    started: bool = False
    """They got their first parameters."""
    able: bool = False
    """They can contribute to the next round, so that the others do well to wait for them."""
    why_not: str = "its ranks are not ready"

    def lost(self, why: str) -> None:
        """They will be started again."""
        self.ready = self.started = self.able = False
        self.why_not = why
