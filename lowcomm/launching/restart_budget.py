"""Decides whether a peer that has ended is started again, and after how many seconds.

Must NOT start a process, nor read a clock.
"""

import signal
from dataclasses import dataclass

from lowcomm.exit_codes import EXIT_CONFIG, EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_TERMINATED

FIRST_DELAY_S = 1.0
DELAY_MAX_S = 60.0
HEALTHY_S = 600.0
"""A peer that has lived so long was in order: the count of its restarts begins anew."""
FINAL = {
    0: "the run is finished, or the node was asked to leave",
    EXIT_CONFIG: "its configuration cannot work",
    EXIT_REFUSED: "it was refused, or it refused the run",
    EXIT_INTERRUPTED: "it left the run after SIGINT",
    EXIT_TERMINATED: "it left the run after SIGTERM",
    -signal.SIGINT: "SIGINT ended it",
    -signal.SIGTERM: "SIGTERM ended it",
}
"""Exit statuses after which a peer is not started again, with the reason."""


@dataclass(slots=True)
class RestartBudget:
    """The restarts of one peer."""

    restarts_max: int
    """So many restarts in a row; then it is given up."""
    used: int = 0

    def after(self, code: int, *, lived_s: float) -> tuple[float | None, str]:
        """(seconds until the next start, or None: it is not started again; the reason).

        `code`: its exit status as in subprocess, negative for a signal; `lived_s`: seconds that it
        ran.
        """
        if code in FINAL:
            return None, FINAL[code]
        if lived_s >= HEALTHY_S:
            self.used = 0
        if self.used >= self.restarts_max:
            return None, f"it ended with {code}, and had {self.used} restarts in a row"
        delay_s = min(DELAY_MAX_S, FIRST_DELAY_S * 2.0 ** min(self.used, 10))
        self.used += 1
        return delay_s, f"it ended with {code}: restart {self.used} of {self.restarts_max}"
