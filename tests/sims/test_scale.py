"""What a peer says and hears does not grow with the run; and runs that have relays stay correct."""

import json

import pytest

from protocols.interface.commands import Command
from protocols.leader import relay_plan, voters
from protocols.links.log_relay import LogRelay
from sims.checkers import disks
from sims.checkers.disks import Disks
from sims.scale import CountingWorld, Load, ScaleFigures, main, measure, table
from sims.sweep import SeedResult, run_seed
from tests.marks import few


@pytest.fixture
def relays_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the small runs of the sweep."""
    monkeypatch.setattr(voters, "VOTERS_MAX", 3)
    monkeypatch.setattr(disks, "VOTERS_MAX", 3)  # The checker knows it by its own name.
    monkeypatch.setattr(relay_plan, "LEARNERS_MIN", 1)


@pytest.fixture(scope="module")
def growth() -> tuple[ScaleFigures, ScaleFigures]:
    """A run in which nearly all vote, and one in which few do. Who relays for whom goes by hashes
    of their names: with this seed, each of the six does for somebody."""
    return measure(8, 8, seed=2), measure(24, 8, seed=2)


def messages(load: Load | None) -> tuple[float, float]:
    assert load is not None
    return load.sent, load.received


def test_what_an_ordinary_peer_says_and_hears_does_not_grow(
    growth: tuple[ScaleFigures, ScaleFigures],
) -> None:
    small, large = growth
    assert small.violations == large.violations == []
    assert (small.relays, large.relays and large.relays.peers) == (None, 6)
    for before, after in zip(messages(small.ordinary), messages(large.ordinary), strict=True):
        assert after <= before
    assert large.ordinary is not None
    assert large.ordinary.sent_max <= 5.0, (
        "the offer, Hold, Have, now and then Kept, and no retries"
    )
    assert large.ordinary.beats_sent_per_s <= 6.0


def test_the_relays_share_what_grows(growth: tuple[ScaleFigures, ScaleFigures]) -> None:
    small, large = growth
    sent, received = messages(large.leader)
    assert (sent, received) <= messages(small.leader)
    assert large.relays is not None
    learners = large.peers - 7
    per_learner = large.relays.sent_by_type["Relayed"] * large.relays.peers / learners
    assert 1.0 <= per_learner <= 1.5, "each gets each commit once, and now and then a lease"
    assert large.relays.received_by_type["Hold"] < learners


@pytest.mark.long
def test_when_logs_become_snapshots_relays_go_on_relaying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever voted forgot an entry that its learners had not got: all of them at once, and for
    four reduction timeouts the leader did all the work. With this seed every voter relays for
    somebody, and nobody falls behind these very short logs while all join at once."""

    def early(*_: object) -> int:
        return 16

    monkeypatch.setattr(CountingWorld, "draw_compaction", early)
    result = measure(24, 24, seed=1)
    assert result.violations == []
    assert result.ordinary is not None
    assert result.ordinary.received_by_type.keys() == {"Relayed"}
    assert result.leader.sent_by_type.keys() == {"Append"}
    sent, received = messages(result.leader)
    assert (sent, received) <= (20.0, 40.0), "six relays and itself"


def test_a_count_knows_heartbeats_from_news() -> None:
    world = CountingWorld(0, peers=3, rounds=4)
    world.run(until_s=600.0)
    assert world.checkers.violations == []
    kinds = {kind for tally in world.tallies.values() for kind in tally.sent}
    assert kinds <= {"Append", "Appended", "Have", "Hold", "Kept", "ContributionOffered"}
    assert all(tally.beats_sent for tally in world.tallies.values())


def test_the_command_prints_one_object_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(peers=3, rounds=3, growth=False, seed=1, as_json=True)
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["peers"], printed["rounds"], printed["violations"]) == (3, 3, [])
    assert printed["leader"]["received"] > 0
    assert "| 3 |" in table([measure(3, 3)])


# Faults ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("relays_everywhere")
@pytest.mark.parametrize("seed", few(range(7100, 7106), count=1))
def test_faulty_runs_with_relays_stay_correct(seed: int) -> None:
    assert run_seed(seed, peers=(5, 9)).violations == []


def nothing(*_: object) -> list[Command]:
    return []


def healthy(seed: int, monkeypatch: pytest.MonkeyPatch) -> SeedResult:
    """Without faults. A learner whose relay does nothing has the log a heartbeat later than the
    checker of votes allows, and so its vote."""
    monkeypatch.setattr(Disks, "_votes", nothing)
    return run_seed(seed, plan=[], peers=(6, 9))


@pytest.mark.usefixtures("relays_everywhere")
@pytest.mark.parametrize("seed", range(7200, 7203))
def test_a_relay_that_brings_nothing_costs_nobody_anything(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogRelay, "_forward", nothing)
    result = healthy(seed, monkeypatch)
    assert result.violations == []
    assert "Lost" not in result.log


@pytest.mark.usefixtures("relays_everywhere")
@pytest.mark.parametrize("seed", [7200, 7201, 7203])
def test_a_relay_that_keeps_what_it_is_told_costs_nobody_its_work(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader asks before it leaves a peer out. (While a run begins a joiner behind such a relay
    may wait for ever, as in seed 7202: no peer asks for what the leader never heard of.)"""
    monkeypatch.setattr(LogRelay, "_collect", nothing)
    result = healthy(seed, monkeypatch)
    assert result.violations == []
    assert "Lost" not in result.log
    assert "Attempt" not in result.log
