"""Decides when a round of fixed duration (`round_s`) is over for one node.

A daemon (its ranks ask after each inner step) and simulated nodes use the same rule. Must NOT
read a clock.
"""

_SLACK_S = 1e-9
"""Seconds of rounding: a thousand steps that fill the duration exactly lose none."""


def fits(now: float, step_s: float, *, until: float) -> bool:
    """Whether a step that begins now ends by then. A node begins no other step, so no peer waits
    for this node longer than for one of its steps. In seconds."""
    return now + step_s <= until + _SLACK_S


class RoundClock:
    """The clock of one node's rounds. The daemon owns it, so that all ranks contribute after the
    same step."""

    def __init__(self, round_s: float) -> None:
        """`round_s`: seconds of a round; 0: a round ends after its inner steps."""
        self._round_s = round_s
        self._since = 0.0
        self._steps_before: int | None = None
        """Number of the ranks' last step before the round; None until the first question."""
        self._joins = False

    def begin_round(self, now: float, *, joins: bool) -> None:
        """The ranks begin a round with a result. `joins`: they have not contributed to any round
        yet."""
        self._since, self._steps_before, self._joins = now, None, joins

    def is_over(self, now: float, steps: int) -> bool:
        """Whether step number `steps` of the ranks was the last one of the round. The ranks ask
        after each step of a round; its steps so far predict the duration of the next one."""
        if not self._round_s:
            return False
        if self._steps_before is None:
            self._steps_before = steps - 1
        step_s = (now - self._since) / (steps - self._steps_before)
        return not fits(now, step_s, until=self._since + self._round_s)

    def may_be_early(self, now: float) -> bool:
        """Whether the ranks may contribute before the round is over, if other peers wait. In a run
        without `round_s` they ask only when they may."""
        return not self._round_s or (self._joins and now >= self._since + self._round_s / 2)
