"""The ranks of one simulated node: inner steps, boundaries, results, and uncounted work.

The ranks contribute to one fragment after the other, and go on training while a round is under way.
They take a result at the first step at least `overlap_steps` after the contribution, and wait for
the result `overlap_max_steps` after the contribution. If that is past boundaries of other
fragments, several contributions are in flight at once. Must NOT know of rounds beyond the core's
commands, the value of a sample, nor which samples are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lowcomm.data import NodeLease
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.rounds import next_fragment
from protocols.types import LowcommError, Samples, count
from sims.node.node_view import NodeView
from sims.node.toy_model import STEP_SAMPLES, Model, Training, Value

STEP_TOKENS = 16
STALE_ROUNDS = 4
STALL_SEEN_S = 1.5
"""Virtual seconds from the last step of ranks that stall to the report of the shell."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A contribution of the ranks, as it lies in shared memory."""

    last: int
    """Number of the first step that is not in the contribution."""
    delta: Value
    moved: Value
    samples: tuple[int, ...]
    base_round: int
    """Round of the outer state from which `delta` is measured. Each result replaces that state, and
    moves the parameters along."""


@dataclass(slots=True)
class Work:
    """The ranks' parameters of one fragment, and the part of their work that no round has
    counted."""

    local: Value = 0
    base: Value = 0
    base_round: int = 0
    oldest_round: int = 0
    """Round of the base from which the first uncounted step was made."""
    first: int = 0
    """Number of the first uncounted step. The steps of a peer are numbered across all its
    incarnations."""
    moved: Value = 0
    """Sum of the moves of the uncounted steps."""
    samples: list[int] = field(default_factory=list[int])
    """Samples that the uncounted steps used."""
    handed: Handed | None = None
    """The last contribution, until the ranks have its result; else None."""
    over: bool = False
    """The result of the fragment's last round was taken."""


@dataclass(frozen=True, slots=True)
class PendingResult:
    """A result on its way to the ranks."""

    resume: c.Resume
    outer: Value
    lineage: int
    samples: Samples
    """With the anchor's result: the samples that the ranks may draw until the next one."""
    excused: bool
    """The ranks crashed, or the run was rolled back: the loss of the ranks' work is no
    violation."""


@dataclass(slots=True)
class SimulatedLeases:
    """The node's and the ranks' leases. A result of the anchor waits until the lease has enough
    samples; until then, the ranks draw from the lease of the last result."""

    interval: int
    """Number of samples that the ranks need between two results of the anchor."""
    lease: Samples = ()
    """The samples of the last Leased command of the core."""
    _waiting: list[tuple[Callable[[], None], Callable[[], bool]]] = field(
        default_factory=list[tuple[Callable[[], None], Callable[[], bool]]]
    )
    """Results of the anchor that wait for enough samples: (post, is_last)."""
    _ranks: NodeLease = field(default_factory=NodeLease)

    # The node -------------------------------------------------------------------------------

    def leased(self, samples: Samples) -> None:
        """Set the samples that the ranks may draw from the next result on."""
        self.lease = samples
        self.post_waiting()

    def post(self, post: Callable[[], None], is_last: Callable[[], bool]) -> None:
        """Give the ranks a result of the anchor by calling `post`. If the lease has too few samples
        for the interval after it, and some fragment still needs steps, wait for more."""
        if count(self.lease) < self.interval and not is_last():
            self._waiting.append((post, is_last))
        else:
            post()

    def post_waiting(self) -> None:
        """Try again to post the waiting results, after a change of what they wait for."""
        waiting, self._waiting = self._waiting, []
        for post, is_last in waiting:
            self.post(post, is_last)

    def drop_all(self) -> None:
        """Drop everything: the ranks are gone."""
        self._waiting.clear()
        self._ranks = NodeLease()

    # The ranks ------------------------------------------------------------------------------

    def take(self, samples: Samples, *, anew: bool, last: bool) -> None:
        """Take the lease of a result of the anchor. `anew`: the steps since the last contribution
        are thrown away. `last`: no later result brings samples."""
        if anew:
            self._ranks.forget()
        self._ranks.renew(samples, last=last)

    @property
    def unused(self) -> int:
        """Number of samples that no step has used yet."""
        return self._ranks.unused

    def draw(self, wanted: int) -> list[int]:
        """Draw the lowest samples for the step that begins. Raises LowcommError if too few are
        left."""
        return self._ranks.draw(wanted)

    def count_step(self) -> None:
        """Count the samples of the oldest batch as used by a step."""
        self._ranks.step()

    def contribute(self) -> Samples:
        """The samples that steps have used since the last call."""
        return self._ranks.contribute()


@dataclass(slots=True)
class RankPosition:
    """Where the ranks are between two boundaries. New ranks begin with a new one."""

    since_start: int = 0
    """Number of steps of these ranks."""
    since_boundary: int = 0
    at_boundary: bool = False
    """The ranks have to contribute."""
    runs: bool = False
    """A step is under way."""

    def step_made(self) -> None:
        self.runs = False
        self.since_start += 1
        self.since_boundary += 1

    def contributed(self) -> None:
        self.since_boundary, self.at_boundary = 0, False


class Ranks:
    """The ranks of one node in one incarnation. Ranks that crash are replaced inside this
    object."""

    def __init__(self, node: NodeView, training: Training) -> None:
        self._node = node
        self._training = training
        self.last = node.world.story.steps[node.peer]
        """Number of steps that this peer has made in all its incarnations."""
        self.works = [Work(first=self.last) for _ in range(training.fragments)]
        self.sample_leases = SimulatedLeases(training.interval_samples)
        self.crashed: set[int] = set()
        """Fragments with work since the last result that is lost, or belongs to no lineage."""
        self.life = 0
        """Rises when the ranks restart. Actions scheduled by earlier ranks are not run."""
        self.stalled_until = 0.0
        """Until this time (virtual seconds) the ranks make no step."""
        self._results: dict[int, PendingResult] = {}
        """By fragment: results that wait for the step at which they are taken."""
        self._without = set(range(training.fragments))
        """Fragments of which the ranks have no parameters yet."""
        self._first = False
        """These ranks have had no round yet."""
        self._position = RankPosition()

    # Called by the shell --------------------------------------------------------------------

    @property
    def _model(self) -> Model:
        return self._node.settings.model

    def lose(self) -> None:
        """Let the ranks crash."""
        self.life += 1
        self.stalled_until = 0.0
        self.set_back()
        self.sample_leases.drop_all()
        self._results.clear()
        for work in self.works:
            work.handed = None  # New ranks wait for no result of old contributions.
        self._without = set(range(len(self.works)))
        self._position = RankPosition()

    def set_back(self) -> None:
        """Mark all work since the last result as lost."""
        self.crashed = set(range(len(self.works)))

    def stall(self, seconds: float) -> None:
        """Let the ranks make no step for so long. The shell reports that after STALL_SEEN_S."""
        node, life = self._node, self.life
        if node.me.witness:
            return  # It has no ranks.
        self.stalled_until = max(self.stalled_until, node.now + seconds)

        def seen() -> None:
            if life == self.life and node.now < self.stalled_until:
                node.give(v.TrainersStalled("no step"))
                node.at_time(self.stalled_until, moves)

        def moves() -> None:
            if life == self.life and node.now < self.stalled_until:
                node.at_time(self.stalled_until, moves)  # They stalled again meanwhile.
            elif life == self.life:
                node.give(v.TrainersMoving())

        node.after(STALL_SEEN_S, seen)

    def excuse(self, resume: c.Resume) -> bool:
        """Is the loss of this fragment's work no violation? New parameters end that."""
        excused = resume.fragment in self.crashed
        if resume.kind == "anew":
            self.crashed.discard(resume.fragment)
        return excused

    def shared(self, fragment: int) -> tuple[Handed, int]:
        """The last contribution to this fragment, and the number of its first step."""
        work = self.works[fragment]
        assert work.handed is not None, "nothing was contributed"
        return work.handed, work.first

    def result(self, result: PendingResult) -> None:
        """Put a result into shared memory. The ranks take it when its step has come."""
        self._results[result.resume.fragment] = result
        self._go_on()

    # Training -------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Do all that is due between two steps, then begin the next step unless something is
        missing."""
        if self._position.runs:
            return
        for fragment in [f for f in self._results if self._is_due(f)]:
            self._take(self._results.pop(fragment))
        if self._without or not self._left:
            return
        while self._position.at_boundary:
            while not self._free:
                if not self._take_earliest():
                    return
            fragment = next_fragment([x.work for x in self._node.core.rounds], self._choices)
            if self.works[fragment].first == self.last:
                break  # A result has just replaced all work: make one more step.
            self._contribute(fragment)
            if self._training.answers:
                self._look()
        patience = self._training.overlap_max_steps
        if any(work.handed and self.last - work.handed.last >= patience for work in self.works):
            return
        try:
            self._step(self.sample_leases.draw(STEP_SAMPLES))
        except LowcommError as error:
            node = self._node
            node.observer.found(f"the ranks of {node.me.name} fail: {error}")

    @property
    def _left(self) -> list[int]:
        """The fragments that still expect a result."""
        return [fragment for fragment, work in enumerate(self.works) if not work.over]

    @property
    def _free(self) -> list[int]:
        """The fragments that may be contributed now: they expect a result, but none is
        outstanding."""
        return [fragment for fragment in self._left if self.works[fragment].handed is None]

    @property
    def _choices(self) -> list[int]:
        """Those of `_free` that may be next, as in lowcomm/training/round_schedule.py."""
        free, training = self._free, self._training
        steps = training.slot_steps + training.overlap_max_steps
        suffices = self.sample_leases.unused >= steps * STEP_SAMPLES
        return free if suffices or 0 not in free else [0]

    def _take_earliest(self) -> bool:
        """At a boundary with all fragments in flight, take the result of the earliest contribution;
        without it, no step is possible. False: that result is still to come, or the last round is
        over."""
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
        delta = self._model.fold(work.base - work.local)
        work.handed = Handed(self.last, delta, work.moved, tuple(work.samples), work.base_round)
        self._position.contributed()
        seen: Samples = ()
        if fragment == 0:
            seen = self.sample_leases.contribute()
        steps = self.last - work.first
        node = self._node
        line = self._training.line(node.me.name, self.last)
        made = v.ContributionReady(fragment, steps * STEP_TOKENS, steps, seen, line=line)
        node.give(made)

    def _step(self, drawn: list[int]) -> None:
        """Make one inner step on these samples; a boundary may follow."""
        life, node = self.life, self._node
        world, name = node.world, node.me.name
        self._position.runs = True

        def made() -> None:
            if life != self.life:
                return
            if world.clock.now < self.stalled_until:
                self._node.at_time(self.stalled_until, made)
                return
            self._position.step_made()
            self.last += 1
            for work in self.works:
                move = self._model.move(name, work.local, world.random)
                work.local, work.moved = (
                    self._model.fold(work.local + move),
                    work.moved + move,
                )
            self.sample_leases.count_step()
            self.works[0].samples += drawn
            world.story.steps[self._node.peer] = self.last
            self._look()
            self._go_on()

        node.after(node.process.speed * world.random.uniform(0.9, 1.1), made)

    def _look(self) -> None:
        """Find out whether the ranks are at a boundary. New ranks, and ranks with `answers`, may be
        asked for an early one."""
        position = self._position
        new = self._first and 2 * position.since_start >= self._training.inner_steps
        early = new or self._training.answers
        if early:
            self._node.give(v.TrainersAble())
        works = [rounds.work for rounds in self._node.core.rounds]
        choices = self._choices
        asked = early and bool(choices) and works[next_fragment(works, choices)].others_wait
        position.at_boundary = asked or position.since_boundary >= self._training.slot_steps

    def _take(self, result: PendingResult) -> None:
        """Go on from a result, with the work that it does not contain."""
        resume, fold = result.resume, self._model.fold
        work = self.works[resume.fragment]
        handed, work.handed = work.handed, None
        gone = (work.first, work.first)
        discards = self._training.discards_overlap
        if resume.fragment == 0:
            anew = resume.kind == "anew" or (resume.kind == "counted" and discards)
            self.sample_leases.take(result.samples, anew=anew, last=resume.finish)
        match resume.kind:
            case "rebase":
                work.local = fold(work.local + result.outer - work.base)
            case "counted":
                assert handed is not None, "a counted result without a contribution"
                gone = (work.first, handed.last)
                self._go_from(work, handed, result)
            case "anew":
                if not self._excused(result, work):
                    gone = (work.first, self.last)
                self._restart(work, result)
        history = self._node.observer.history
        history.dropped(self._node.peer, resume.fragment, gone, result.lineage)
        if work.first < self.last:
            of = {"base_round": work.base_round, "round_": resume.round}
            history.kept(self._node.peer, **of)
        work.base, work.base_round, work.over = result.outer, resume.round, resume.finish
        self._first = resume.first
        self._without.discard(resume.fragment)

    def _go_from(self, work: Work, handed: Handed, result: PendingResult) -> None:
        """Go on from a result that contains our contribution. The steps made since the contribution
        stay in the parameters, unless the run discards them."""
        if self.last == handed.last or self._training.discards_overlap:
            self._restart(work, result)
            return
        work.oldest_round = work.base_round
        local = work.local + result.outer - work.base + handed.delta
        work.local, work.first = self._model.fold(local), handed.last
        work.moved -= handed.moved
        del work.samples[: len(handed.samples)]

    def _restart(self, work: Work, result: PendingResult) -> None:
        """Go on from the outer parameter alone. The samples of dropped steps may be drawn again."""
        work.local, work.first, work.moved, work.samples = result.outer, self.last, 0, []
        work.oldest_round = result.resume.round

    def _excused(self, result: PendingResult, work: Work) -> bool:
        """True if the loss of the uncounted work is no violation. The work's age is measured by the
        log's committed rounds, not by the rounds that this peer holds: the ledger has given the
        samples of such work to other peers."""
        resume = result.resume
        run_state = self._node.run_state
        age = run_state.committed(resume.fragment) - work.oldest_round
        return age > STALE_ROUNDS or resume.finish or result.excused
