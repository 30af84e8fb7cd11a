"""The comparison itself: a core that misses a wake is found, and every seed compares."""

import pytest

from protocols.interface import events as v
from protocols.peer import PeerCore, wakeups
from protocols.rounds.contributions import Holdings
from sims import gossip_sweep, step_sweep, sweep
from sims.checkers import World
from sims.node.toy_model import Training
from sims.simulator import twin_cores
from sims.simulator.twin_cores import LookingCore, TwinCores, copy_of
from sims.sweep import SeedResult
from tests.marks import few

SEED = 3


def found(result: SeedResult) -> list[str]:
    return [line for line in result.violations if "its twin" in line]


def nothing(*_: object, **__: object) -> None:
    """Does, and says, nothing."""


def test_every_kind_of_seed_is_compared() -> None:
    results = [sweep.run_seed(SEED), step_sweep.run_seed(0), gossip_sweep.run_seed(SEED)]
    for result in results:
        assert result.comparisons > 0
        assert found(result) == []


def test_a_seed_that_compares_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TwinCores, "born", nothing)
    result = sweep.run_seed(SEED)
    assert (result.comparisons, len(result.violations)) == (0, 1)


class DifferentError(Exception):
    """A core and its twin said different things."""


def first_difference() -> str:
    """Of a small world in which nothing fails; "" there is none."""
    world = World(SEED, peers=3, outer_steps=4, training=Training(certified=True))

    def raise_it(text: str) -> None:
        raise DifferentError(text)

    world.checkers.found = raise_it
    try:
        world.run(until_s=60.0)
    except DifferentError as error:
        return str(error)
    return ""


def test_a_world_without_faults_shows_no_difference() -> None:
    assert first_difference() == ""


@pytest.fixture
def one_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a whole incarnation."""
    monkeypatch.setattr(twin_cores, "COMPARED", 1_000_000)


@pytest.mark.usefixtures("one_twin")
@pytest.mark.parametrize("mark", ["SAID", "REPORTED", "DECIDED"])
def test_a_mark_that_wakes_nothing_is_found(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, mark, 0)
    assert "its twin" in first_difference()


@pytest.mark.usefixtures("one_twin")
@pytest.mark.parametrize("event", [v.Encoded, v.ContributionReady, v.Persisted])
def test_an_event_that_wakes_nothing_is_found(event: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wakeups.AFTER, event, 0)
    assert "its twin" in first_difference()


@pytest.mark.usefixtures("one_twin")
def test_bytes_that_complete_a_sum_and_wake_nothing_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Holdings, "wakes", nothing)
    assert "its twin" in first_difference()


@pytest.mark.usefixtures("one_twin")
@pytest.mark.parametrize("seed", few([3, 4, 5, 6, 8, 9, 15, 19], count=2))
def test_seeds_in_which_an_earlier_core_differed(seed: int) -> None:
    assert sweep.run_seed(seed).violations == []


def test_a_twin_that_began_as_a_copy_finds_a_mark_that_wakes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(twin_cores, "COMPARED", 20)
    monkeypatch.setattr(twin_cores, "BETWEEN", 10)
    assert first_difference() == ""
    made: list[PeerCore] = []

    def copied(core: PeerCore) -> LookingCore:
        made.append(core)
        monkeypatch.setattr(wakeups, "SAID", 0)
        return copy_of(core)

    monkeypatch.setattr(twin_cores, "copy_of", copied)
    assert "its twin" in first_difference()
    assert made, "the first twin, which was no copy, found nothing"
