"""Inner steps at which a rank of a run of rounds contributes and takes results.

The H inner steps between two contributions to one fragment are divided into as many intervals as
there are fragments: interval p ends at step floor((p + 1) H / P), with a boundary, at which one
fragment is contributed. The daemon chooses it among the fragments that await no result; in a run
without faults it is fragment p + 1, and fragment 0, the anchor, at the end. Its result is taken
`overlap_steps` after the contribution, before its next boundary, but maybe after boundaries of
other fragments: then several are in flight. All ranks of a node do the same at the same steps. No
I/O, no clock, no parameters. Must NOT wait for anything.
"""

from dataclasses import dataclass

ANCHOR = 0
"""The fragment by which a run counts its inner steps and its samples."""


@dataclass(slots=True)
class _Work:
    """The progress of one fragment, as the ranks know it."""

    steps: int = 0
    """Inner steps in its next contribution (`tokens`: their tokens), counted from its last
    contribution, or from a result that replaced all steps."""
    tokens: int = 0
    version: int = 0
    """The round of its last result."""
    due: int | None = 0
    """The inner step at which its next result is taken; None if it awaits none. At first every
    fragment awaits one, which brings the parameters."""
    over: bool = False
    """Whether it has had its last result."""


class RoundSchedule:
    """The boundaries of one process; inner steps are counted from its start.

    Between two inner steps: take results as long as one is `awaited`; then contribute if a boundary
    is reached, and take the results that become due by that.
    """

    def __init__(
        self,
        *,
        inner_steps: int,
        fragments: int,
        overlap_steps: int,
        outer_steps: int,
        has_buffers: bool = False,
    ) -> None:
        """`has_buffers`: the last fragment has the buffers."""
        self._buffers = fragments - 1 if has_buffers else None
        """The fragment that has no boundary of its own: it is contributed with the anchor, or by
        itself once that is over."""
        self._intervals = fragments - has_buffers
        assert 1 <= self._intervals <= inner_steps, "a boundary a step at most"
        assert overlap_steps <= inner_steps, "a result before the next contribution"
        self.step = 0
        self._inner_steps = inner_steps
        self._overlap_steps = overlap_steps
        self._outer_steps = outer_steps
        self._works = [_Work() for _ in range(fragments)]
        self._next = self._interval(ANCHOR)
        """The inner step of the next boundary."""
        self._early: int | None = None
        """From this inner step on other peers may wait for this node; None: at no step."""
        self._run_step = 0
        """The run's committed inner steps, from the anchor's last result. `_run_since`: the step of
        this process that corresponds to it. `_given_at`: the step of the anchor's last
        contribution."""
        self._run_since = self._given_at = 0

    # Queries --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every fragment has had its last result."""
        return all(work.over for work in self._works)

    @property
    def awaited(self) -> int | None:
        """The fragment that has a result to take before anything else; None if there is none."""
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
        left = [f for f, work in enumerate(self._works) if work.due is None and not work.over]
        return left if self._works[ANCHOR].over else [f for f in left if f != self._buffers]

    def choices(self, steps_left: int) -> list[int]:
        """Those of `left` after which the samples suffice until the anchor's next result, if the
        node has samples for `steps_left` more inner steps. Only that result brings new samples.

        In a run without faults, none is left out. A rollback throws away results in flight: the
        other fragments are contributed again, and would be before the anchor every time."""
        left = self.left
        if ANCHOR not in left:
            return left
        reserve = steps_left - self._overlap_steps
        return [f for f in left if f == ANCHOR or self._interval(f) <= reserve]

    @property
    def at_boundary(self) -> bool:
        """Whether it is time to contribute one of the fragments in `left`."""
        return self.step >= self._next and bool(self.left)

    @property
    def may_be_early(self) -> bool:
        """Whether to ask if other peers wait for this node: if it joined during a round, or if
        nodes of this run contribute early."""
        return self._early is not None and self.step >= self._early and bool(self.left)

    @property
    def run_step(self) -> int:
        """The run's inner step: its committed steps, plus this node's steps since."""
        return self._run_step + self.step - self._run_since

    def has_work(self, fragment: int) -> bool:
        """Whether the fragment's next contribution has at least one step. If a result has just
        replaced all of them it has none: the boundary then waits for one more step."""
        return self._works[fragment].steps > 0

    def together(self, fragment: int) -> list[int]:
        """The fragments that are contributed at this fragment's boundary, itself as the last."""
        if fragment != ANCHOR or self._buffers is None:
            return [fragment]
        work = self._works[self._buffers]
        joins = work.due is None and not work.over and (work.steps > 0 or not self.step)
        return [self._buffers, fragment] if joins else [fragment]

    # Transitions ----------------------------------------------------------------------------

    def count(self, tokens: int) -> None:
        """Count an inner step, on so many tokens of the whole node."""
        self.step += 1
        for work in self._works:
            work.steps += 1
            work.tokens += tokens

    def contribute(self, fragment: int) -> tuple[int, int]:
        """Begin a contribution of the fragment; returns its (steps, tokens)."""
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
        """A result of the fragment has been taken. The arguments are those of
        `peers.ipc.messages.Result`. `anew`: the result replaced all work since the contribution.
        `round_steps`: length of the round that begins with the result, in inner steps."""
        work = self._works[fragment]
        work.due, work.version, work.over = None, version, finish
        if anew:
            work.steps = work.tokens = 0
        early = boundary_steps < round_steps
        if fragment != self._buffers:
            self._early = self.step + boundary_steps if early else None
        if fragment == ANCHOR:
            self._run_step, self._run_since = inner_step, self._given_at
            if anew:
                self._run_since = self.step
            # The contribution set the next boundary before this length was known.
            self._next += round_steps - self._inner_steps
            self._inner_steps = round_steps

    def _is_last(self, work: _Work) -> bool:
        """Whether the fragment awaits its last result, so that no result will contain any further
        step."""
        return work.due is not None and work.version + 1 >= self._outer_steps

    def _interval(self, fragment: int) -> int:
        """Inner steps from the boundary of this fragment to the next boundary."""
        first, steps, count = fragment, self._inner_steps, self._intervals
        return (first + 1) * steps // count - first * steps // count
