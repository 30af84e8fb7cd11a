"""The simulator's worlds with all checkers attached, which sweeps, scenarios and tests run.

Must NOT simulate anything: sims/simulator does.
"""

from __future__ import annotations

from sims.checkers.checkers import Checkers
from sims.checkers.step_runs import StepCheckers, StepHistory
from sims.simulator.step_world import BareStepWorld
from sims.simulator.world import BareWorld


class World(BareWorld):
    """`run()` to the end; `checkers` hold the violations."""

    checkers: Checkers
    """The observer of this world."""

    def make_observer(self) -> Checkers:
        self.checkers = self.make_checkers()
        return self.checkers

    def make_checkers(self) -> Checkers:
        """The checkers of this world; a subclass makes other ones."""
        return Checkers()


class StepWorld(BareStepWorld, World):
    """The world of a stepwise run. `outer_steps` counts steps of the model."""

    def make_checkers(self) -> StepCheckers:
        self.step_observer = StepHistory(self)
        return StepCheckers(self.step_observer)
