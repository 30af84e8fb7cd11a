"""What a rank of a run of rounds does at which inner step: no I/O, no clock, no parameters.

The H inner steps between two contributions to one fragment are cut into as many intervals as there
are fragments: interval p ends at step floor((p + 1) H / P), with a boundary, at which one fragment
is contributed. Which one it is, the daemon says, of those whose result is not still to come; in a
run without faults it is fragment p + 1, and fragment 0, the anchor, at the end. Its result is taken
`overlap_steps` after it, in time for its next boundary, but maybe after boundaries of others: then
several are in flight. All ranks of a node do the same things at the same steps. Must NOT wait for
anything.
"""

from dataclasses import dataclass

ANCHOR = 0
"""The fragment by which a run counts its inner steps and its samples."""


@dataclass(slots=True)
class _Work:
    """One fragment, as the ranks know it."""

    steps: int = 0
    """What its next contribution holds, as `tokens`: since the last one, or since a result that
    replaced all of it."""
    tokens: int = 0
    version: int = 0
    """Of its last result."""
    due: int | None = 0
    """The inner step at which its next result is taken, if one is to come. At first all are: they
    bring the parameters."""
    over: bool = False
    """It had its last result."""


class Boundaries:
    """Of one process; inner steps are counted from its start.

    Between two inner steps: take results as long as there is one `awaited`; then contribute if it
    is a boundary, and take what that makes due.
    """

    def __init__(
        self, *, inner_steps: int, fragments: int, overlap_steps: int, outer_steps: int
    ) -> None:
        assert 1 <= fragments <= inner_steps, "a boundary a step at most"
        assert overlap_steps <= inner_steps, "a result before the next contribution"
        self.step = 0
        self._inner_steps = inner_steps
        self._overlap_steps = overlap_steps
        self._outer_steps = outer_steps
        self._works = [_Work() for _ in range(fragments)]
        self._next = self._interval(ANCHOR)
        """The step of the next boundary."""
        self._early: int | None = None
        """From this step on others may wait for us."""
        self._run_step = 0
        """What the run had committed, as the anchor's last result says; and our step then, but for
        those that were not in it."""
        self._run_since = self._given_at = 0

    # Questions ------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Every fragment had its last result."""
        return all(work.over for work in self._works)

    @property
    def awaited(self) -> int | None:
        """The fragment whose result is to be taken before anything else."""
        pending = [(w.due, f) for f, w in enumerate(self._works) if w.due is not None]
        if not pending:
            return None
        due, fragment = min(pending)
        nothing_else = all(w.over or self._is_last(w) for w in self._works)
        stuck = self.step >= self._next and not self.left
        return fragment if due <= self.step or nothing_else or stuck else None

    @property
    def left(self) -> list[int]:
        """The fragments that may be contributed now."""
        return [f for f, work in enumerate(self._works) if work.due is None and not work.over]

    @property
    def at_boundary(self) -> bool:
        """It is time to contribute one of those that are left."""
        return self.step >= self._next and bool(self.left)

    @property
    def may_be_early(self) -> bool:
        """Ask whether others wait for us: we came in the middle, or the run's nodes answer."""
        return self._early is not None and self.step >= self._early and bool(self.left)

    @property
    def run_step(self) -> int:
        """The inner step of the run: what it has committed, and ours since."""
        return self._run_step + self.step - self._run_since

    def has_work(self, fragment: int) -> bool:
        """There is a step that its next contribution would hold. A result that replaced all of
        them just now leaves none: the boundary waits for one step more."""
        return self._works[fragment].steps > 0

    # What happens ---------------------------------------------------------------------------

    def count(self, tokens: int) -> None:
        """An inner step is made, on so many tokens of the whole node."""
        self.step += 1
        for work in self._works:
            work.steps += 1
            work.tokens += tokens

    def contribute(self, fragment: int) -> tuple[int, int]:
        """It is contributed now; returns the (steps, tokens) that are in it."""
        work = self._works[fragment]
        assert work.due is None, "its last result is still to come"
        assert work.steps or not self.step, "a contribution of nothing"
        counts = (work.steps, work.tokens)
        work.steps = work.tokens = 0
        work.due = self.step + self._overlap_steps
        self._next = self.step + self._interval(fragment)
        if fragment == ANCHOR:
            self._given_at = self.step
        return counts

    def took(
        self,
        fragment: int,
        *,
        version: int,
        anew: bool,
        finish: bool,
        inner_step: int,
        boundary_steps: int,
        round_steps: int,
    ) -> None:
        """Its result is taken: as `peers.ipc.messages.Result` says. `anew`: it replaced all that
        our ranks have done since they contributed. `round_steps`: of the round that begins with
        it."""
        work = self._works[fragment]
        work.due, work.version, work.over = None, version, finish
        if anew:
            work.steps = work.tokens = 0
        early = boundary_steps < round_steps
        self._early = self.step + boundary_steps if early else None
        if fragment == ANCHOR:
            self._run_step, self._run_since = inner_step, self._given_at
            if anew:
                self._run_since = self.step
            # The next boundary was set at the contribution, when nobody knew this.
            self._next += round_steps - self._inner_steps
            self._inner_steps = round_steps

    def _is_last(self, work: _Work) -> bool:
        """No step from now on is in any result that it will have."""
        return work.due is not None and work.version + 1 >= self._outer_steps

    def _interval(self, fragment: int) -> int:
        """Inner steps from its boundary to the next one."""
        first, steps, count = fragment, self._inner_steps, len(self._works)
        return (first + 1) * steps // count - first * steps // count
