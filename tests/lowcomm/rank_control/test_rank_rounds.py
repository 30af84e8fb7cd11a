"""What ranks get for their contributions, and what is left to ranks that replace them."""

from dataclasses import replace

import numpy as np
import pytest

from lowcomm.config.schema import RunConfig
from lowcomm.daemon.daemon import Daemon
from lowcomm.data.lease import NodeLease
from lowcomm.methods import RoundMethod
from lowcomm.outer_state.replica import Replica
from lowcomm.startup.agreement import INTERVALS_AHEAD
from peers.ipc.messages import Result
from peers.ranks.events import GroupLost, RankContribution, RanksDemand, RanksSnapshotted
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.rounds.fencing import Fence
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.types.ids import PeerId
from protocols.types.sample_ranges import SampleRange, Samples
from tests.lowcomm.replicas import stamp
from tests.protocols.scenes import BORDERS, contributor, part_digest, state_digest


def given(made: Daemon) -> str:
    """What the next attempt of its ranks begins with."""
    attached = made.ranks.group._memory._attached
    assert attached is not None
    return attached.rank_state


def contribute(made: Daemon, *, steps: int = 10, tokens: int = 100) -> None:
    made.ranks._on_event(RankContribution(0, 1, steps, tokens))


def announced(made: Daemon) -> list[tuple[int, int]]:
    """(steps, tokens) of each contribution that the core will hear of."""
    inbox = made.context.driver._inbox
    events = [inbox.get_nowait() for _ in range(inbox.qsize())]
    return [(x.steps, x.tokens) for x in events if isinstance(x, v.ContributionReady)]


@pytest.fixture
def results(made: Daemon, monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """What the ranks got, in order."""
    assert isinstance(made.context.replica, Replica)
    assert made.ranks.group.slots is not None
    made.context.replica.share(made.ranks.group.slots)
    given: list[Result] = []
    monkeypatch.setattr(made.ranks.group, "post_result", given.append)
    return given


def goes_on(round_: int, kind: c.Verdict) -> c.Resume:
    return c.Resume(0, round_, kind, first=False, finish=False)


def enough(made: Daemon) -> None:
    made.ranks.rounds.leased(c.Leased((SampleRange(0, 1 << 20),)))


def lose(made: Daemon) -> None:
    made.ranks._on_event(GroupLost(0, "signal 9"))


def test_ranks_whose_parameters_are_not_finite_leave_nothing_to_others(made: Daemon) -> None:
    made.ranks._on_event(RanksSnapshotted(str(made.context.checkpoint_schedule.rank_state(10))))
    assert isinstance(made.context.replica, Replica)
    made.context.replica.contributions.take_local(1, np.full(4, np.nan, np.float32).data.cast("B"))
    made.ranks.rounds.resume(c.Resume(1, 11, "rebase", first=False, finish=False))
    lose(made)
    assert given(made) == ""


@pytest.mark.asyncio
async def test_work_that_no_round_counted_adds_up_until_it_is_counted(
    made: Daemon, results: list[Result]
) -> None:
    """A result that only moves the parameters leaves the steps in them; a full one replaces them,
    and tokens of steps that are gone would give the next contribution too much weight."""
    enough(made)
    contribute(made)
    made.ranks.rounds.resume(goes_on(1, "rebase"))
    contribute(made)
    made.ranks.rounds.resume(goes_on(2, "counted"))
    contribute(made)
    assert [result.kind for result in results] == ["delta", "full"]
    assert announced(made) == [(10, 100), (20, 200), (10, 100)]


@pytest.mark.asyncio
async def test_ranks_that_begin_anew_bring_no_uncounted_work(
    made: Daemon, results: list[Result]
) -> None:
    """They begin from the run's parameters: nothing of that work is in their next ones."""
    enough(made)
    contribute(made)
    made.ranks.rounds.resume(goes_on(1, "rebase"))
    made.ranks.rounds.resume(goes_on(2, "anew"))
    contribute(made)
    assert [result.kind for result in results] == ["delta", "full"]
    assert announced(made) == [(10, 100), (10, 100)]


def test_work_of_ranks_that_are_lost_is_not_counted(made: Daemon) -> None:
    contribute(made)
    lose(made)
    contribute(made)
    assert announced(made) == [(10, 100), (10, 100)]


@pytest.mark.asyncio
async def test_a_result_waits_for_samples_to_train_on(made: Daemon, results: list[Result]) -> None:
    assert isinstance(made.context.replica, Replica)
    made.context.replica.apply(stamp(0, 1), (0, 6), [np.ones(6, np.float32).tobytes()], ())
    made.ranks.rounds.resume(goes_on(1, "counted"))
    assert results == []
    enough(made)
    assert [(result.version, len(result.samples)) for result in results] == [(1, 1)]


@pytest.mark.asyncio
async def test_the_last_result_waits_for_samples_while_another_fragment_has_rounds_left(
    made: Daemon, results: list[Result]
) -> None:
    """Seed 304657047: a Restore found the other one nine rounds back. Of what ranks can train on
    its rounds is all that they have: the anchor's last result brought none."""
    core = made.context.core
    other = FragmentRounds(core.me.peer, Fence(core.run_state, 1))
    other.version = 1
    core.rounds.append(other)
    assert isinstance(made.context.replica, Replica)
    made.context.replica.apply(stamp(0, 1), (0, 6), [np.ones(6, np.float32).tobytes()], ())
    made.ranks.rounds.resume(replace(goes_on(1, "counted"), finish=True))
    assert results == []
    other.work.base = 10  # The ranks have its last result.
    made.ranks.rounds.resume(c.Resume(1, 0, "anew", first=False, finish=True))
    assert [result.fragment for result in results] == [1, 0], "nothing is left to train on"


@pytest.mark.asyncio
async def test_what_is_said_of_a_result_that_waited_is_of_what_is_in_it(
    made: Daemon, results: list[Result]
) -> None:
    """Else the snapshot of the ranks' state for round 10 would be of round 11's parameters."""
    replica, every = made.context.replica, made.context.config.node.checkpoint_every_rounds
    assert isinstance(replica, Replica)
    for round_ in (every, every + 1):
        mean = np.ones(6, np.float32).tobytes()
        replica.apply(stamp(0, round_), (0, 6), [mean], ())
        if round_ == every:
            made.ranks.rounds.resume(goes_on(round_, "counted"))
    enough(made)
    assert [(each.version, each.snapshot) for each in results] == [(every + 1, "")]


@pytest.mark.asyncio
async def test_ranks_write_their_state_beside_no_file_of_lost_ones(
    made: Daemon, results: list[Result]
) -> None:
    schedule = made.context.checkpoint_schedule
    replica, every = made.context.replica, made.context.config.node.checkpoint_every_rounds
    assert isinstance(replica, Replica)
    old = schedule.rank_state(every) / "rank-1-of-2.safetensors"
    old.parent.mkdir(parents=True)
    old.touch()
    replica.apply(stamp(0, every), (0, 6), [np.ones(6, np.float32).tobytes()], ())
    enough(made)
    made.ranks.rounds.resume(goes_on(every, "counted"))
    assert [result.snapshot for result in results] == [str(schedule.rank_state(every))]
    assert not old.exists()


@pytest.mark.asyncio
async def test_new_ranks_do_not_get_what_the_lost_ones_waited_for(
    made: Daemon, results: list[Result]
) -> None:
    """They get a result of their own, once they are ready: it would be followed by an older one."""
    made.ranks.rounds.resume(goes_on(1, "counted"))
    lose(made)
    enough(made)
    assert results == []


def do_jobs(made: Daemon) -> None:
    """Those of the driver, in order; they need no thread."""
    jobs = made.context.driver._jobs._jobs
    while not jobs.empty():
        job = jobs.get_nowait()
        assert job is not None
        job[0]()


@pytest.mark.asyncio
@pytest.mark.parametrize("leased", [True, False], ids=["enough", "it would wait"])
async def test_no_sample_is_drawn_twice_by_new_ranks_after_a_result_for_lost_ones(
    made: Daemon, results: list[Result], leased: bool
) -> None:
    """Two results in a row: the ranks take the second one for the answer to what they contribute
    after the first, while the core still counts on that contribution's samples."""
    driver = made.context.driver
    samples = (SampleRange(0, 1 << 20),)
    driver._do(c.Leased(samples if leased else ()))
    driver._do(goes_on(0, "rebase"))
    lose(made)
    while not driver._inbox.empty():
        driver._handle_event(driver._inbox.get_nowait())
    driver._do(goes_on(0, "anew"))
    driver._do(c.Leased(samples))
    do_jobs(made)
    lease, contributed = NodeLease(), list[Samples]()
    for result in results:
        lease.renew(result.samples)
        lease.draw(4)
        lease.step()
        contributed.append(lease.contribute())
    assert contributed == [(SampleRange(0, 4),)]
    assert [result.kind for result in results] == ["full"]


def test_new_ranks_do_not_write_over_what_is_still_needed_of_the_lost_ones(made: Daemon) -> None:
    slots = made.ranks.group.slots
    assert slots is not None
    lose(made)
    assert slots.places == [0, 0]
    contribute(made)
    lose(made)
    assert slots.places == [1, 0]


@pytest.mark.parametrize(("steps", "tokens"), [(0, 100), (10, 0)])
def test_ranks_whose_contribution_has_no_weight_begin_anew(
    made: Daemon, steps: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    why: list[str] = []
    monkeypatch.setattr(made.ranks.group, "restart", why.append)
    contribute(made, steps=steps, tokens=tokens)
    assert announced(made) == []
    assert why == [
        f"they contribute {steps} steps, {tokens} tokens: a contribution needs at least one of each"
    ]


@pytest.mark.asyncio
async def test_ranks_get_a_lease_that_suffices_for_the_batches_of_their_steps(
    made: Daemon, results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made.context.run_config
    assert run is not None
    assert isinstance(run.method, RoundMethod)
    granted: list[Samples] = []
    monkeypatch.setattr(made.ranks.group, "grant", granted.append)
    rounds, driver = made.ranks.rounds, made.context.driver
    needed = (run.method.inner_steps + run.method.overlap_steps) * 3 * run.data.batch + 5
    scarce, whole = (SampleRange(0, needed - 1),), (SampleRange(0, needed),)
    rounds.leased(c.Leased(scarce))
    made.ranks._on_event(RanksDemand(3 * run.data.batch, 5))
    event = driver._inbox.get_nowait()
    assert event == v.RunAccepted(run.protocol, INTERVALS_AHEAD * needed)
    assert granted == []
    rounds.leased(c.Leased(whole))
    rounds.leased(c.Leased(whole))
    assert granted == [whole], "once"
    lose(made)
    rounds.leased(c.Leased(scarce))
    rounds.resume(goes_on(1, "counted"))
    assert results == [], "ranks of a later attempt draw as many"
    rounds.leased(c.Leased(whole))
    assert [each.samples for each in results] == [whole]


def committed(made: Daemon, round_: int, *roster: PeerId) -> None:
    """These peers have committed a round of fragment 0, and this one has applied it."""
    replica = made.context.replica
    assert isinstance(replica, Replica)
    replica.apply(stamp(0, round_), (0, 6), [np.ones(6, np.float32).tobytes()], ())
    terms = tuple(contributor(peer, round_) for peer in roster)
    digests = part_digest(round_), state_digest(round_ - 1)
    commit = e.Commit(1, 0, round_, 0, terms, BORDERS, *digests)
    made.context.core.run_state.commits[0] = [commit]


@pytest.mark.asyncio
@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4])])
async def test_the_run_is_evaluated_each_time_after_so_many_rounds(
    every: int, due: list[int], made: Daemon, results: list[Result]
) -> None:
    run = RunConfig()
    made.context.run_config = replace(run, data=replace(run.data, eval_every_rounds=every))
    enough(made)
    for round_ in range(1, 5):
        committed(made, round_, made.context.core.me.peer)
        made.ranks.rounds.resume(goes_on(round_, "counted"))
        if results[-1].evaluate:
            assert made.ranks.rounds.evaluated_round == round_
    assert [number for number, result in enumerate(results, 1) if result.evaluate] == due


@pytest.mark.asyncio
async def test_only_one_of_the_nodes_that_contributed_evaluates(
    made: Daemon, results: list[Result]
) -> None:
    run, me = RunConfig(), made.context.core.me.peer
    made.context.run_config = replace(run, data=replace(run.data, eval_every_rounds=1))
    enough(made)
    first, last = PeerId(f"A{me}"), PeerId(f"~{me}")
    for round_, roster in enumerate([(me, last), (first, me), (last,)], 1):
        committed(made, round_, *roster)
        made.ranks.rounds.resume(goes_on(round_, "counted"))
    assert [result.evaluate for result in results] == [True, False, False]
