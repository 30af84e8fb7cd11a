"""A rank of a run of rounds, without torch: it contributes and takes results in time.

Every rank takes part in rounds by this class, with torch and without, with a daemon and in one
process (sims/lockstep/nodes.py). Must NOT know what a parameter is (a RoundState does), nor decide
which contributions count.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from lowcomm.config.round_length import planned_rounds, round_steps
from lowcomm.config.schema import RunConfig
from lowcomm.data.lease import NodeLease
from lowcomm.methods import EagerDiLoCoMethod, RoundMethod
from lowcomm.training.eager_offset import EagerOffset
from lowcomm.training.interfaces import RoundState
from lowcomm.training.round_schedule import ANCHOR, RoundSchedule
from peers.ipc import Attached, Result
from protocols.types import Samples


class RoundClient(Protocol):
    """The methods of `peers.ipc.rank_client.RankClient` that are needed here."""

    def contribution(self, fragment: int) -> memoryview: ...
    def contribute(self, fragment: int, *, steps: int, tokens: int, samples: Samples) -> None: ...
    def wait_result(self, fragment: int) -> Result: ...
    def result(self, result: Result) -> memoryview: ...
    def check_untorn(self, result: Result) -> None: ...
    def count_step(self, step: int) -> None: ...
    def ask_boundary(self, steps: int, *, due: bool, left: Sequence[int]) -> int | None: ...


class RoundPeer(Protocol):
    """The attributes of `lowcomm.training.attach.Peer` that are needed here."""

    @property
    def client(self) -> RoundClient: ...
    @property
    def run(self) -> RunConfig: ...
    @property
    def lease(self) -> NodeLease: ...
    def evaluate(self) -> None: ...
    def finish(self, *, evaluate: bool) -> None: ...


STEPS_WITHOUT_LEASE = 1 << 40
"""Inner steps for which data that is not leased suffices."""


def at_once(call: Callable[[], None]) -> None:
    """Call it now: what `write` was to write is written."""
    call()


class RoundRank:
    """The rounds of one rank that has joined: call `start`, then `step` after each inner step.

    Stop when the peer is finished. A caller that must not block iterates over `following` itself,
    and calls `count` in place of `step`.
    """

    def __init__(
        self,
        peer: RoundPeer,
        state: RoundState,
        attached: Attached,
        *,
        buffers: int | None = None,
        when_written: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        """`buffers`: the fragment of the model's buffers, the last one, if it has any. They are
        contributed with the anchor. `when_written`: call the function, in any thread, as soon as
        all that `state` was told to write is written."""
        method = peer.run.method
        assert isinstance(method, RoundMethod)
        self._peer, self._client, self._lease = peer, peer.client, peer.lease
        self._state, self._when_written = state, when_written
        self._method = method
        self._buffers = buffers
        self._initial = attached.initial
        self._fragments = len(attached.shape.fragment_bytes)
        self._round_schedule = RoundSchedule(
            inner_steps=method.inner_steps,
            fragments=self._fragments,
            overlap_steps=method.overlap_steps,
            outer_steps=planned_rounds(peer.run),
            has_buffers=buffers is not None,
        )
        self._offset = (
            EagerOffset(
                method, state, attached.shape.fragment_bytes[:1], replicas=peer.run.peers_min
            )
            if isinstance(method, EagerDiLoCoMethod)
            else None
        )
        self._last: dict[int, Result] = {}
        """By fragment, its last result; the run ends with these."""

    @property
    def steps(self) -> int:
        """Number of inner steps of this process."""
        return self._round_schedule.step

    @property
    def run_step(self) -> int:
        """The run's inner step: its committed steps, plus this node's steps since. For
        schedules."""
        return self._round_schedule.run_step

    def start(self) -> None:
        """Contribute the initial parameters if the run has none yet, and wait for the run's
        parameters."""
        self._follow()

    def step(self, *, tokens: int) -> None:
        """Count an inner step, on so many tokens of the whole node, and wait for the results that
        are due."""
        self.count(tokens=tokens)
        self._follow()

    def count(self, *, tokens: int) -> None:
        """Count an inner step, without contributing or taking anything yet."""
        self._round_schedule.count(tokens)
        self._lease.step()
        self._client.count_step(self.steps)

    def following(self) -> Iterator[int]:
        """Do all that is due before the next inner step. Yields the fragment of each result that
        must be taken first: give it to `take_result`, then continue the iteration."""
        round_schedule = self._round_schedule
        if self._initial:
            self._initial = False
            for fragment in range(self._fragments):
                self._state.write(fragment, self._client.contribution(fragment))
                self._contribute(fragment, steps=0, tokens=0)
        while not round_schedule.finished:
            while (fragment := round_schedule.awaited) is not None:
                yield fragment
            chosen = self._choose()
            if chosen is None or not round_schedule.has_work(chosen):
                return
            for fragment in round_schedule.together(chosen):
                steps, tokens = round_schedule.contribute(fragment)
                state = self._state if fragment == self._buffers else self._offset or self._state
                state.write(fragment, self._client.contribution(fragment))
                self._contribute(fragment, steps=steps, tokens=tokens)

    def take_result(self, result: Result) -> None:
        """Continue from this result of the fragment that `following` yielded."""
        fragment, finish, lease = result.fragment, result.finish, self._peer.lease
        counted = result.counted and not finish
        if fragment == self._buffers:
            self._take_buffers(result)
        elif self._offset is not None and not finish:
            self._offset.take_result(result, self._client.result(result))
            self._client.check_untorn(result)
        else:
            self._use(result, mixing=self._method.mixing if counted else 0.0)
        keeps = counted and not self._method.discards_overlap
        anew = result.kind == "full" and not keeps
        self._round_schedule.took(
            fragment,
            version=result.version,
            anew=anew,
            finish=finish,
            inner_step=result.inner_step,
            boundary_steps=result.boundary_steps,
            round_steps=round_steps(self._peer.run, result.inner_step),
        )
        if fragment == ANCHOR:
            if anew:
                lease.forget()
            lease.renew(result.samples, last=finish)
        if result.snapshot:
            self._state.snapshot(result.snapshot)
        if finish:
            self._finish(result)
        elif result.evaluate:
            self._peer.evaluate()

    def _take_buffers(self, result: Result) -> None:
        """Continue from these buffers, unless this node's own are as good. A node that was not
        counted goes on with its own, because a difference of statistics added to others may make no
        statistics (a variance below 0). With eager DiLoCo the result is a whole round old."""
        late = self._offset is not None and result.counted and not result.finish
        if result.kind == "full" and not late:
            self._use(result, mixing=0.0)

    def _finish(self, result: Result) -> None:
        """Keep the last result of a fragment. Other fragments are trained on until each has had its
        last one."""
        self._last[result.fragment] = result
        if self._round_schedule.finished:
            for each in self._last.values():
                if each is not result:
                    self._use(each, mixing=0.0)  # No result contains the steps since.
            self._peer.finish(evaluate=any(each.evaluate for each in self._last.values()))

    def _use(self, result: Result, *, mixing: float) -> None:
        client = self._peer.client
        self._state.take_result(result.fragment, client.result(result), result.kind, mixing=mixing)
        client.check_untorn(result)

    def _follow(self) -> None:
        for fragment in self.following():
            self.take_result(self._client.wait_result(fragment))

    def _choose(self) -> int | None:
        """The fragment to contribute now; None if there is none."""
        round_schedule, due = self._round_schedule, self._round_schedule.at_boundary
        if not due and not round_schedule.may_be_early:
            return None
        run = self._peer.run
        unleased = not run.data.is_leased
        steps_left = STEPS_WITHOUT_LEASE if unleased else self._lease.steps_left(run.data.batch)
        left = round_schedule.choices(steps_left)
        if due and len(left) == 1:
            return left[0]
        return self._client.ask_boundary(self.steps, due=due, left=left)

    def _contribute(self, fragment: int, *, steps: int, tokens: int) -> None:
        """Report the contribution that `write` was told to write, once it is written."""
        samples = self._lease.contribute() if fragment == ANCHOR else ()
        contribute = self._client.contribute
        self._when_written(
            partial(contribute, fragment, steps=steps, tokens=tokens, samples=samples)
        )
