"""A rank of rounds towards a daemon whose part a test plays: what it says and does, and when."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.config.schema import DataConfig, RunConfig
from lowcomm.data.lease import NodeLease
from lowcomm.methods import AnyMethod, DiLoCoMethod, StreamingDiLoCoMethod
from lowcomm.training.interfaces import Kind
from lowcomm.training.round_rank import RoundRank, at_once
from peers.ipc.messages import Attached, Result
from peers.ipc.shared_memory import SlotsShape
from protocols.types.sample_ranges import SampleRange, Samples

STREAMING = StreamingDiLoCoMethod(inner_steps=8, fragments=2, overlap_steps=2, mixing=0.5)
BATCH = 2
TOKENS = 10


@dataclass(frozen=True)
class Given:
    fragment: int
    steps: int
    tokens: int
    samples: Samples


class Daemon:
    """Implements lowcomm.training.round_rank.RoundPeer and RoundClient: results are posted
    beforehand.
    """

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.lease = NodeLease()
        self.finished = self.evaluation_due = False
        self.given: list[Given] = []
        self.asked: list[tuple[int, bool, tuple[int, ...]]] = []
        self.early = False
        self.torn: list[int] = []
        self.steps = 0
        self.results: defaultdict[int, deque[Result]] = defaultdict(deque)
        self.choose: Callable[[Sequence[int]], int] = self._fewest

    @property
    def client(self) -> "Daemon":
        return self

    def post(self, fragment: int, kind: Kind = "full", **said: Any) -> None:
        values: dict[str, Any] = {"version": 1, "inner_step": 0, "boundary_steps": 8} | said
        result = Result(fragment=fragment, place=len(self.torn), kind=kind, **values)
        self.results[fragment].append(result)

    def evaluate(self) -> None:
        self.evaluation_due = True

    def finish(self, *, evaluate: bool) -> None:
        self.finished, self.evaluation_due = True, evaluate

    def contribution(self, fragment: int) -> memoryview:
        return memoryview(bytearray([fragment]))

    def contribute(self, fragment: int, *, steps: int, tokens: int, samples: Samples) -> None:
        self.given.append(Given(fragment, steps, tokens, samples))

    def wait_result(self, fragment: int) -> Result:
        return self.results[fragment].popleft()

    def result(self, result: Result) -> memoryview:
        return memoryview(bytes([result.version]))

    def check_untorn(self, result: Result) -> None:
        self.torn.append(result.fragment)

    def count_step(self, step: int) -> None:
        self.steps = step

    def ask_boundary(self, steps: int, *, due: bool, left: Sequence[int]) -> int | None:
        self.asked.append((steps, due, tuple(left)))
        return self.choose(left) if due or self.early else None

    def _fewest(self, left: Sequence[int]) -> int:
        times = [given.fragment for given in self.given]
        return min(left, key=lambda fragment: (times.count(fragment), -fragment))


class State:
    """Implements lowcomm.training.interfaces.RoundState: notes what it is told."""

    def __init__(self) -> None:
        self.notes: list[tuple[object, ...]] = []

    def write(self, fragment: int, place: memoryview) -> None:
        assert place[0] == fragment
        self.notes.append(("write", fragment))

    def copy(self, fragment: int, place: memoryview) -> None:
        raise AssertionError("only for an offset")

    def take_result(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        self.notes.append((kind, fragment, values[0], mixing))

    def snapshot(self, directory: str) -> None:
        self.notes.append(("snapshot", directory))


def new_rank(
    method: AnyMethod = STREAMING,
    *,
    fragments: int = 2,
    initial: bool = False,
    rounds: int = 9,
    buffers: int | None = None,
    when_written: Callable[[Callable[[], None]], None] = at_once,
) -> tuple[RoundRank, Daemon, State]:
    run = RunConfig(outer_steps=rounds, method=method, data=DataConfig(batch=BATCH))
    daemon, state = Daemon(run), State()
    shape = SlotsShape(1, (4,) * fragments)
    attached = Attached(shape=shape, initial=initial, slot=0, rank_state="")
    rank = RoundRank(daemon, state, attached, buffers=buffers, when_written=when_written)
    return rank, daemon, state


def started(**said: Any) -> tuple[RoundRank, Daemon, State]:
    rank, daemon, state = new_rank(**said)
    for fragment in range(said.get("fragments", 2)):
        daemon.post(fragment, version=0, samples=(SampleRange(0, 1000),))
    rank.start()
    state.notes.clear()
    return rank, daemon, state


def train(rank: RoundRank, daemon: Daemon, steps: int) -> None:
    for _ in range(steps):
        daemon.lease.draw(BATCH)
        rank.step(tokens=TOKENS)


def test_the_first_node_offers_its_parameters_before_it_waits() -> None:
    rank, daemon, state = new_rank(initial=True)
    following = rank.following()
    assert next(following) == 0
    assert [(x.fragment, x.steps, x.tokens) for x in daemon.given] == [(0, 0, 0), (1, 0, 0)]
    assert state.notes == [("write", 0), ("write", 1)]
    for fragment in (0, 1):
        daemon.post(fragment, version=0)
        rank.take_result(daemon.wait_result(fragment))
        assert next(following, None) == (1 if fragment == 0 else None)
    assert state.notes[2:] == [("full", 0, 0, 0.0), ("full", 1, 0, 0.0)]
    assert daemon.torn == [0, 1]


def test_a_counted_result_is_mixed_when_its_step_has_come() -> None:
    rank, daemon, state = started()
    train(rank, daemon, 4)
    assert daemon.asked == [(4, True, (0, 1))]
    daemon.post(1, counted=True)
    train(rank, daemon, 1)
    assert state.notes == [("write", 1)]
    train(rank, daemon, 1)
    assert state.notes == [("write", 1), ("full", 1, 1, 0.5)]
    assert daemon.steps == rank.steps == 6


@pytest.mark.parametrize(
    ("kind", "said"), [("delta", {}), ("full", {}), ("full", {"counted": True, "finish": True})]
)
def test_what_is_not_counted_or_the_last_is_never_mixed(kind: Kind, said: dict[str, Any]) -> None:
    rank, daemon, state = started()
    train(rank, daemon, 4)
    daemon.post(1, kind, **said)
    train(rank, daemon, 2)
    assert state.notes[-1] == (kind, 1, 1, 0.0)


def test_samples_go_with_the_anchor_and_come_with_its_result() -> None:
    rank, daemon, _ = started(method=DiLoCoMethod(inner_steps=3), fragments=1)
    daemon.post(0, counted=True, samples=(SampleRange(100, 200),))
    train(rank, daemon, 3)
    assert daemon.given == [Given(0, 3, 3 * TOKENS, (SampleRange(0, 6),))]
    assert daemon.lease.draw(1) == [100]
    rank, daemon, _ = started()
    train(rank, daemon, 4)
    assert daemon.given == [Given(1, 4, 4 * TOKENS, ())]
    daemon.post(1, counted=True, samples=(SampleRange(500, 600),))
    train(rank, daemon, 4)
    assert daemon.given[1:] == [Given(0, 8, 8 * TOKENS, (SampleRange(0, 16),))]


@pytest.mark.parametrize(
    ("mixing", "said", "again"),
    [
        (0.5, {"counted": True}, False),
        (0.0, {"counted": True}, True),
        (0.0, {"kind": "delta"}, False),
        (0.5, {}, True),
    ],
)
def test_samples_of_steps_that_are_thrown_away_are_drawn_again(
    mixing: float, said: dict[str, Any], again: bool
) -> None:
    rank, daemon, _ = started(method=replace(STREAMING, mixing=mixing))
    daemon.post(1, counted=True)
    train(rank, daemon, 8)
    daemon.post(0, **said, samples=(SampleRange(16, 600),))
    train(rank, daemon, 2)
    assert daemon.lease.draw(1) == [16 if again else 20]


@pytest.mark.parametrize(("mixing", "steps"), [(0.5, 8), (0.0, 6)])
def test_steps_that_a_counted_result_replaced_are_in_no_contribution(
    mixing: float, steps: int
) -> None:
    """The paper of Decoupled DiLoCo counts a node's work since it received the fragment last."""
    rank, daemon, _ = started(method=replace(STREAMING, mixing=mixing))
    daemon.post(1, counted=True)
    daemon.post(0, counted=True, inner_step=8, samples=(SampleRange(16, 600),))
    train(rank, daemon, 10)
    assert rank.run_step == steps + 2
    daemon.post(1, counted=True, version=2)
    train(rank, daemon, 6)
    found = [(x.fragment, x.steps, x.tokens) for x in daemon.given]
    assert found == [(1, 4, 4 * TOKENS), (0, 8, 8 * TOKENS)] + [
        (fragment, steps, steps * TOKENS) for fragment in (1, 0)
    ]


@given(st.integers(1, 4), st.integers(0, 5), st.randoms(use_true_random=False))
def test_samples_suffice_whichever_results_a_rollback_throws_away(
    fragments: int, overlap_steps: int, random: Random
) -> None:
    """Seed 1795712162115: fragments were contributed a second time before the anchor. Only its
    result brings new samples, and the ranks had none left."""
    method = StreamingDiLoCoMethod(
        inner_steps=random.randint(max(fragments, overlap_steps + 1), 9),
        fragments=fragments,
        overlap_steps=overlap_steps,
    )
    rank, daemon, _ = new_rank(method, fragments=fragments, rounds=100)
    daemon.choose = random.choice
    interval = BATCH * (method.inner_steps + overlap_steps)
    for fragment in range(fragments):
        daemon.post(fragment, version=0, samples=(SampleRange(0, interval),))
    rank.start()
    for _ in range(60):
        daemon.lease.draw(BATCH)
        rank.count(tokens=TOKENS)
        for fragment in rank.following():
            first, lost = random.randint(0, 1000), random.random() < 0.5
            kinds: dict[str, Any] = {"kind": "full"} if lost else {"kind": "full", "counted": True}
            lease = (SampleRange(first, first + interval),)
            daemon.post(fragment, **kinds, boundary_steps=method.inner_steps, samples=lease)
            rank.take_result(daemon.wait_result(fragment))


def test_others_that_wait_are_asked_for_from_half_a_round_on() -> None:
    rank, daemon, _ = new_rank(DiLoCoMethod(inner_steps=8), fragments=1)
    daemon.post(0, version=4, boundary_steps=4)
    rank.start()
    for _ in range(4):
        rank.step(tokens=TOKENS)
    assert daemon.asked == [(4, False, (0,))]
    daemon.early = True
    daemon.post(0, version=5, counted=True)
    rank.step(tokens=TOKENS)
    assert [(x.fragment, x.steps) for x in daemon.given] == [(0, 5)]
    for _ in range(7):
        rank.step(tokens=TOKENS)
    assert len(daemon.asked) == 2, "it was counted: it has time"


def test_who_answers_contributes_all_that_others_wait_for_after_one_step() -> None:
    """Of others that are two fragments ahead: right after a result too, and then it goes on from
    there."""
    rank, daemon, _ = new_rank()
    for fragment in (0, 1):
        daemon.post(fragment, version=0, boundary_steps=0, samples=(SampleRange(0, 1000),))
    rank.start()
    daemon.early = True
    train(rank, daemon, 1)
    assert [(x.fragment, x.steps) for x in daemon.given] == [(1, 1), (0, 1)]
    daemon.early = False
    daemon.post(1, counted=True, boundary_steps=0)
    daemon.post(0, counted=True, boundary_steps=0, samples=(SampleRange(2, 1000),))
    train(rank, daemon, 3)
    assert len(daemon.given) == 2
    train(rank, daemon, 1)
    assert [(x.fragment, x.steps) for x in daemon.given[2:]] == [(1, 4)], "at its own boundary"


def test_a_boundary_waits_for_a_step_when_a_result_has_just_replaced_all() -> None:
    """A state came from others at the very step of the next boundary: nothing would be in it."""
    uneven = StreamingDiLoCoMethod(inner_steps=5, fragments=2, overlap_steps=2)
    rank, daemon, _ = started(method=uneven)
    train(rank, daemon, 2)
    daemon.post(1, counted=True, finish=True)
    train(rank, daemon, 3)
    daemon.post(0, samples=(SampleRange(0, 1000),))
    train(rank, daemon, 2)
    assert [(x.fragment, x.steps) for x in daemon.given] == [(1, 2), (0, 5)]
    train(rank, daemon, 1)
    assert [(x.fragment, x.steps, x.tokens) for x in daemon.given[2:]] == [(0, 1, TOKENS)]


def test_the_run_ends_with_each_fragments_last_result() -> None:
    rank, daemon, state = started(rounds=1)
    daemon.post(1, counted=True, finish=True)
    train(rank, daemon, 6)
    assert not daemon.finished
    daemon.post(0, counted=True, finish=True, evaluate=True)
    train(rank, daemon, 2)
    assert daemon.finished
    assert daemon.evaluation_due
    # Taken at once; and fragment 1 again, for it was trained on.
    assert state.notes[-2:] == [("full", 0, 1, 0.0), ("full", 1, 1, 0.0)]


def test_an_evaluation_in_the_middle_is_passed_on_and_a_snapshot_is_of_the_result() -> None:
    rank, daemon, state = started(method=DiLoCoMethod(inner_steps=1), fragments=1)
    daemon.post(0, evaluate=True, snapshot="here")
    train(rank, daemon, 1)
    assert daemon.evaluation_due
    assert state.notes[-2:] == [("full", 0, 1, 0.0), ("snapshot", "here")]


def test_a_contribution_is_told_of_when_it_is_written_with_the_samples_of_its_steps() -> None:
    written: deque[Callable[[], None]] = deque()
    method = StreamingDiLoCoMethod(inner_steps=4, fragments=1, overlap_steps=2, mixing=0.5)
    rank, daemon, state = started(method=method, fragments=1, when_written=written.append)
    train(rank, daemon, 4)
    assert state.notes == [("write", 0)]
    train(rank, daemon, 1)  # The loop goes on meanwhile.
    assert not daemon.given
    written.popleft()()
    assert daemon.given == [Given(0, 4, 4 * TOKENS, (SampleRange(0, 4 * BATCH),))]
    assert not written


def test_steps_of_the_run_are_the_anchors() -> None:
    rank, daemon, _ = started()
    daemon.post(1, counted=True, inner_step=77)
    train(rank, daemon, 8)
    assert rank.run_step == 8
    daemon.post(0, counted=True, inner_step=8, samples=(SampleRange(16, 99),))
    train(rank, daemon, 2)
    assert rank.run_step == 10


def test_buffers_go_with_the_anchor_and_only_whole_ones_are_taken() -> None:
    """A difference of statistics, added to others, may make no statistics."""
    rank, daemon, state = started(method=DiLoCoMethod(inner_steps=8), buffers=1)
    kinds: tuple[Kind, ...] = ("full", "delta")
    for round_, kind in enumerate(kinds, start=1):
        samples = (SampleRange(1000 * round_, 1000 * round_ + 1000),)
        daemon.post(0, version=round_, inner_step=8 * round_, counted=True, samples=samples)
        daemon.post(1, kind, version=round_, counted=kind == "full")
        state.notes.clear()
        train(rank, daemon, 8)
        assert [(each.fragment, each.steps) for each in daemon.given[-2:]] == [(1, 8), (0, 8)]
        taken = [("full", 1, round_, 0.0)] if kind == "full" else []
        own = [("write", 1), ("write", 0), ("full", 0, round_, 0.0)]
        assert state.notes == own + taken
    assert [left for *_, left in daemon.asked] in ([], [(0,), (0,)])


def test_a_mean_of_buffers_is_never_mixed_with_the_ranks_own() -> None:
    rank, daemon, state = started(fragments=3, buffers=2)
    for fragment in (1, 0, 2):
        daemon.post(fragment, counted=True)
    train(rank, daemon, 10)
    taken = [note for note in state.notes if note[0] == "full"]
    assert taken == [("full", 1, 1, 0.5), ("full", 0, 1, 0.5), ("full", 2, 1, 0.0)]
