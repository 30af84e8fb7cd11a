"""The state of a peer's ranks in a stepwise run, and their work on it.

Must NOT decide which step comes next (step_machine.py), nor know the copy that is kept of a
committed state (kept_copy.py).
"""

from protocols.steps.kept_copy import NONE
from protocols.types.ids import Stamp


class RankState:
    """The step of the ranks, as the core knows it."""

    def __init__(self) -> None:
        self.version = NONE
        """The step of their state; NONE if they have none."""
        self.digest = ""
        """Digest of that state."""
        self.view = 0
        """The view in which it was made; 0 if it is the base."""
        self.applying: Stamp | None = None
        """The step that they are applying."""
        self.loading = False
        """They are loading the base."""

    def become(self, version: int, digest: str, *, view: int) -> None:
        """They have another state."""
        self.version, self.digest, self.view = version, digest, view

    def clear(self) -> None:
        """Their state and their work are void, or they are lost."""
        self.version, self.applying, self.loading = NONE, None, False
