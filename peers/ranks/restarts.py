"""Whether another attempt of the ranks follows a lost one, and after which delay.

Must NOT start an attempt, nor wait.
"""

from peers.ranks.attempt_runner import AttemptRunner
from peers.ranks.events import ProgramFailed, RanksFailed
from peers.ranks.lasting_faults import SAME_FAULTS_MAX, AttemptFault, RepeatedFaults, same_again
from protocols.types import LowcommError

RESTART_DELAYS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before a restart, by the number of attempts in a row without a contribution."""


class Restarts:
    """Counts the lost attempts of one group."""

    def __init__(self, restarts_max: int) -> None:
        self.fault: AttemptFault | None = None
        """How the last attempt was lost; None before that, or if the daemon gave it up."""
        self._restarts_max = restarts_max
        self._fruitless = 0
        """Attempts in a row without a contribution."""
        self._repeats = RepeatedFaults()

    def lost(self, running: AttemptRunner, *, program: str) -> LowcommError | None:
        """An attempt is lost. Returns why there is no further one; None if there is."""
        self._fruitless = 1 if running.attempt.contributed_once else self._fruitless + 1
        if running.end.hopeless:
            return running.end.hopeless
        self.fault = running.end.fault
        if self.fault is not None and self.fault.hidden_package:
            return ProgramFailed(f"{program} cannot work: {self.fault.hidden_package}")
        alike = self._repeats.count(self.fault)
        if self._repeats.fault is not None and alike >= SAME_FAULTS_MAX:
            return ProgramFailed(same_again(program, self._repeats.fault, attempts=alike))
        if self._fruitless > self._restarts_max:
            many = f"{self._fruitless} attempts of the ranks failed in a row: "
            why = f"{many if self._restarts_max else ''}{running.end.why}"
            return RanksFailed(why) if self.fault is None else ProgramFailed(why)
        return None

    @property
    def delay_s(self) -> float:
        """Seconds before the next attempt."""
        return RESTART_DELAYS_S[min(self._fruitless, len(RESTART_DELAYS_S)) - 1]
