"""The ranks of one simulated node: inner steps, boundaries, results, and what nobody counted yet.

They contribute to one fragment after the other and go on training while a round is under way: a
result is taken at the first step at least `overlap_steps` after the contribution, and
`overlap_max_steps` after it they wait; if that is past boundaries of other fragments, several are
in flight at once. Must NOT know of rounds beyond what the core says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.rounds.fragment_schedule import next_fragment
from protocols.types.sample_ranges import Samples
from sims.node.samples import Feed
from sims.node.toy_model import Value

if TYPE_CHECKING:
    from sims.node.node import Node

STEP_TOKENS = 16
STEP_SAMPLES = 2
STALE_ROUNDS = 4
LINES = (0, 0, 50_000_000, 12_000_000, 1_000_000)
"""What lines carry, bytes a second; 0: whoever has it never had to know ..."""
LINE_STEPS = 50
"""... and for how many inner steps."""


@dataclass(frozen=True, slots=True)
class Training:
    """How the ranks of a run train; steps are inner steps."""

    inner_steps: int = 8
    """Between two contributions to one fragment."""
    fragments: int = 1
    overlap_steps: int = 0
    overlap_max_steps: int = 0
    discards_overlap: bool = False
    """A counted result replaces what the ranks did since they contributed; else that is kept."""
    void_one_in: int = 0
    """Of so many contributions one cannot be averaged with others; 0: none."""
    gossip: bool = False
    """Each exchanges with one other a round: its parameters, and not what they moved by."""
    answers: bool = False
    """Ranks contribute as soon as others wait for it, with what they have."""
    extremes: bool = False
    """Names, reasons and contributions stand at their limits (simulator/limit_values.py)."""
    lines: int = 0
    """What the nodes' lines carry is drawn with this; 0: nobody ever had to know."""

    @property
    def interval_samples(self) -> int:
        """What ranks draw between two results of the anchor, and have drawn since they contributed
        to the first one."""
        return (self.inner_steps + self.overlap_max_steps) * STEP_SAMPLES

    @property
    def slot_steps(self) -> int:
        """Between two boundaries."""
        return max(1, self.inner_steps // self.fragments)

    def line(self, name: str, step: int) -> int:
        """What this node knows of its line at this inner step, bytes a second."""
        source = random.Random(f"{self.lines} {name} {step // LINE_STEPS}")  # noqa: S311
        return source.choice(LINES) if self.lines else 0


@dataclass(frozen=True, slots=True)
class Handed:
    """What the ranks contributed, as it lies in shared memory."""

    last: int
    """The number of the first step that is not in it."""
    delta: Value
    moved: Value
    samples: tuple[int, ...]
    base_round: int
    """Of the state that the parameters began with; they are moved along with each state since."""


@dataclass(slots=True)
class Work:
    """The ranks' parameters of one fragment, and what of their work no round has counted yet."""

    local: Value = 0
    base: Value = 0
    base_round: int = 0
    oldest_round: int = 0
    """Of the base from which the first step that is not counted was made."""
    first: int = 0
    """Number of the first step that is not counted; steps of a peer are numbered for its life."""
    moved: Value = 0
    """Sum of the moves of these steps."""
    samples: list[int] = field(default_factory=list[int])
    """What these steps saw."""
    handed: Handed | None = None
    """While they have no result of it."""
    over: bool = False
    """The last round of the fragment is behind them."""


@dataclass(frozen=True, slots=True)
class Result:
    """On its way to the ranks."""

    resume: c.Resume
    outer: Value
    lineage: int
    samples: Samples
    """Of the anchor's: what the ranks may draw until the next one."""
    excused: bool
    """Ranks crashed, or the run went back: what they did is lost, and nobody's fault."""


class Ranks:
    """Of one node, for its life; ranks that crash are replaced in here."""

    def __init__(self, node: Node, training: Training) -> None:
        self._node = node
        self._training = training
        self.last = node.world.steps_of(node.peer)
        """How many steps this peer made in all its lives."""
        self.works = [Work(first=self.last) for _ in range(training.fragments)]
        self.feed = Feed(training.interval_samples)
        self.crashed: set[int] = set()
        """Fragments whose work since the last result is gone, or of no lineage."""
        self.life = 0
        """Rises when the ranks restart: what older ones scheduled is void."""
        self._results: dict[int, Result] = {}
        """That wait for their step."""
        self._without = set(range(training.fragments))
        """Fragments of which the ranks have no parameters yet."""
        self._first = False
        """No round of these ranks yet."""
        self._since_start = self._since_boundary = 0
        self._at_boundary = self._runs = False
        """They have to contribute; a step is under way."""

    # What the shell does --------------------------------------------------------------------

    def lose(self) -> None:
        """They crash."""
        self.life += 1
        self.set_back()
        self.feed.stop()
        self._results.clear()
        for work in self.works:
            work.handed = None  # New ranks wait for no result of it, nor for its step.
        self._without = set(range(len(self.works)))
        self._runs = self._at_boundary = False
        self._since_start = self._since_boundary = 0

    def set_back(self) -> None:
        """What they did since the last result belongs to no lineage, or is gone."""
        self.crashed = set(range(len(self.works)))

    def shared(self, fragment: int) -> tuple[Handed, int]:
        """What they contributed last, and the number of its first step."""
        work = self.works[fragment]
        assert work.handed is not None, "nothing was contributed"
        return work.handed, work.first

    def result(self, result: Result) -> None:
        """A result is in shared memory: they take it when its step has come."""
        self._results[result.resume.fragment] = result
        self._go_on()

    # What they do ---------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Whatever is due between two steps, and then the next step unless something is missing."""
        if self._runs:
            return
        for fragment in [f for f in self._results if self._is_due(f)]:
            self._take(self._results.pop(fragment))
        if self._without or not self._left:
            return
        while self._at_boundary:
            while not self._free:
                if not self._take_earliest():
                    return
            fragment = next_fragment(self._node.core.rounds, self._free)
            if self.works[fragment].first == self.last:
                break  # A result has just replaced all: one step more.
            self._contribute(fragment)
            if self._training.answers:
                self._look()
        patience = self._training.overlap_max_steps
        if any(work.handed and self.last - work.handed.last >= patience for work in self.works):
            return
        drawn = self.feed.draw(STEP_SAMPLES)
        if drawn is not None:
            self._step(drawn)
        elif 0 in self._free and self.works[0].first < self.last:
            self._contribute(0)  # They go on with the samples of its result.

    @property
    def _left(self) -> list[int]:
        """The fragments that have a result to come."""
        return [fragment for fragment, work in enumerate(self.works) if not work.over]

    @property
    def _free(self) -> list[int]:
        """Those of them that may be contributed now: no earlier result is still to come."""
        return [fragment for fragment in self._left if self.works[fragment].handed is None]

    def _take_earliest(self) -> bool:
        """At a boundary at which all are in flight: no later step could take what is there. False:
        it is still to come, or all is over."""
        handed = ((work.handed, f) for f, work in enumerate(self.works))
        in_flight = [(each.last, f) for each, f in handed if each is not None]
        fragment = min(in_flight)[1] if in_flight else None
        if fragment not in self._results:
            return False
        self._take(self._results.pop(fragment))
        return True

    def _is_due(self, fragment: int) -> bool:
        handed = self.works[fragment].handed
        return handed is None or self.last - handed.last >= self._training.overlap_steps

    def _contribute(self, fragment: int) -> None:
        work = self.works[fragment]
        delta = self._node.world.model.fold(work.base - work.local)
        work.handed = Handed(self.last, delta, work.moved, tuple(work.samples), work.base_round)
        self._since_boundary, self._at_boundary = 0, False
        seen: Samples = ()
        if fragment == 0:
            seen = self.feed.contribute()
        steps = self.last - work.first
        line = self._training.line(self._node.core.me.name, self.last)
        made = v.ContributionReady(fragment, steps * STEP_TOKENS, steps, seen, line=line)
        self._node.give(made)

    def _step(self, drawn: list[int]) -> None:
        """One inner step, on these samples; behind it there may be a boundary."""
        life, world = self.life, self._node.world
        self._runs = True

        def made() -> None:
            if life != self.life:
                return
            self._runs = False
            self.last += 1
            self._since_start += 1
            self._since_boundary += 1
            for work in self.works:
                move = world.model.move(self._node.core.me.name, work.local, world.random)
                work.local, work.moved = world.model.fold(work.local + move), work.moved + move
            self.feed.step()
            self.works[0].samples += drawn
            world.count_step(self._node.peer, self.last)
            self._look()
            self._go_on()

        self._node.after(self._node.speed * world.random.uniform(0.9, 1.1), made)

    def _look(self) -> None:
        """Are we at a boundary? New ranks may be asked for an early one, and those that answer."""
        new = self._first and 2 * self._since_start >= self._training.inner_steps
        early = new or self._training.answers
        if early:
            self._node.give(v.TrainersAble())
        rounds = self._node.core.rounds
        free = self._free
        asked = early and bool(free) and rounds[next_fragment(rounds, free)].others_wait
        self._at_boundary = asked or self._since_boundary >= self._training.slot_steps

    def _take(self, result: Result) -> None:
        """Go on from a result, with all work that it does not contain."""
        resume, work = result.resume, self.works[result.resume.fragment]
        fold, checkers = self._node.world.model.fold, self._node.world.checkers
        handed, work.handed = work.handed, None
        gone = (work.first, work.first)
        discards = self._training.discards_overlap
        if resume.fragment == 0:
            anew = resume.kind == "anew" or (resume.kind == "counted" and discards)
            self.feed.take(result.samples, anew=anew, last=resume.finish)
        match resume.kind:
            case "rebase":
                work.local = fold(work.local + result.outer - work.base)
            case "counted":
                assert handed is not None, "a result of nothing"
                gone = (work.first, handed.last)
                self._go_from(work, handed, result)
            case "anew":
                if not self._excused(result, work):
                    gone = (work.first, self.last)
                self._restart(work, result)
        checkers.dropped(self._node.peer, resume.fragment, gone, result.lineage)
        if work.first < self.last:
            of = {"base_round": work.base_round, "round_": resume.round}
            checkers.staleness.kept(self._node.peer, **of)
        work.base, work.base_round, work.over = result.outer, resume.round, resume.finish
        self._first = resume.first
        self._without.discard(resume.fragment)

    def _go_from(self, work: Work, handed: Handed, result: Result) -> None:
        """What was contributed is in the outer parameter: what came after it may stay ours."""
        if self.last == handed.last or self._training.discards_overlap:
            self._restart(work, result)
            return
        work.oldest_round = work.base_round
        local = work.local + result.outer - work.base + handed.delta
        work.local, work.first = self._node.world.model.fold(local), handed.last
        work.moved -= handed.moved
        del work.samples[: len(handed.samples)]

    def _restart(self, work: Work, result: Result) -> None:
        """From the outer parameter alone. The samples of what is dropped are still ours to draw."""
        work.local, work.first, work.moved, work.samples = result.outer, self.last, 0, []
        work.oldest_round = result.resume.round

    def _excused(self, result: Result, work: Work) -> bool:
        """By the log, not by what we hold: the ledger has given its samples to others."""
        resume = result.resume
        age = self._node.core.members.committed(resume.fragment) - work.oldest_round
        return age > STALE_ROUNDS or resume.finish or result.excused
