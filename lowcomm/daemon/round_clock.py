"""When a round that has a time, and not a number of inner steps, is over.

One rule for a daemon, whose ranks ask after each step, and for nodes in virtual time. Must NOT look
at a clock itself.
"""

_SLACK_S = 1e-9
"""Of a thousand steps that fill the time exactly none is lost by rounding."""


def fits(now: float, step_s: float, *, until: float) -> bool:
    """A node begins a step if it will be over by then: so nobody waits for it longer than a step of
    its own."""
    return now + step_s <= until + _SLACK_S


class RoundClock:
    """Of one node: the daemon's, so that all its ranks contribute after the same step."""

    def __init__(self, round_s: float) -> None:
        """0: rounds have their inner steps, and no time."""
        self._round_s = round_s
        self._since = 0.0
        self._steps_before: int | None = None
        """Steps of the ranks when the round began."""
        self._joins = False

    def begin(self, now: float, *, joins: bool) -> None:
        """The ranks go on with a result. `joins`: they have contributed to nothing yet."""
        self._since, self._steps_before, self._joins = now, None, joins

    def is_over(self, now: float, steps: int) -> bool:
        """The ranks have made their step number `steps`, and asked after each of the round: was it
        the last one? A step takes as long as those of the round did so far."""
        if not self._round_s:
            return False
        if self._steps_before is None:
            self._steps_before = steps - 1
        step_s = (now - self._since) / (steps - self._steps_before)
        return not fits(now, step_s, until=self._since + self._round_s)

    def may_be_early(self, now: float) -> bool:
        """Asked before the round is over: they contribute if others wait for them. Without a time
        they ask only when they may."""
        return not self._round_s or (self._joins and now >= self._since + self._round_s / 2)
