"""The status of this node's ranks, as far as rounds depend on it.

The shell reports it. Must NOT know processes, steps or parameters.
"""

from dataclasses import dataclass

from protocols.interface.events import (
    TrainersAble,
    TrainersLost,
    TrainersMoving,
    TrainersReady,
    TrainersStalled,
)
from protocols.wire.codec import one_line

OfTrainers = TrainersReady | TrainersAble | TrainersStalled | TrainersMoving | TrainersLost


@dataclass(slots=True)
class JointTrainers:
    """What the ranks can do at present."""

    ready: bool = False
    """They are attached: they have parameters, or wait for their first ones."""
    started: bool = False
    """They have got their first parameters."""
    trained: bool = False
    """As joiners, they have made enough steps to contribute to the next round."""
    able: bool = False
    """They have the parameters, and as joiners the steps, to contribute to the next round, and this
    peer has the links and the state for that."""
    stalled: str = ""
    """Why they make no step at present; "" while they do."""
    missing: str = "its ranks are not ready"
    """Why they are not able."""

    @property
    def can_contribute(self) -> bool:
        """Whether other peers should wait for their next contribution."""
        return self.able and not self.stalled

    @property
    def why_not(self) -> str:
        """Why they cannot contribute."""
        return self.stalled or self.missing

    def reported(self, event: OfTrainers) -> None:
        """The shell reports a change."""
        match event:
            case TrainersReady():
                self.ready = True
            case TrainersAble():
                self.trained = True
            case TrainersStalled(why=why):
                self.stalled = one_line(why)
            case TrainersMoving():
                self.stalled = ""
            case TrainersLost(why=why):
                self.lost(one_line(why))

    def unable(self) -> None:
        """They cannot contribute until their next contribution."""
        self.able = self.trained = False

    def lost(self, why: str) -> None:
        """The ranks are lost and will be started again."""
        self.ready = self.started = False
        self.unable()
        self.missing, self.stalled = why, ""
