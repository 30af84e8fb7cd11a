"""What is read from the events of nodes that waited for each other."""

import pytest

from benchmarks.waiting import mean_round_s, waited
from lowcomm.reports.events import Commit, Event, Ready
from protocols.types.ids import PeerId


def ready(name: str, round_: int, t: float, steps: int) -> Ready:
    counts = {"steps": steps, "tokens": 10 * steps}
    return Ready(t=t, peer=PeerId(f"{name}.1"), name=name, fragment=0, round=round_, **counts)


def commit(name: str, round_: int, t: float) -> Commit:
    return Commit(
        t=t,
        peer=PeerId(f"{name}.1"),
        name=name,
        fragment=0,
        round=round_,
        attempt=0,
        roster=("a.1", "b.1"),
        tokens=1,
        counted=True,
        state_digest="",
        inner_step=1,
    )


def test_who_waits_for_whom_is_between_contributions_and_commits() -> None:
    events: list[Event] = [
        *(ready("a", 1, 1.0, 5), ready("b", 1, 9.0, 5)),  # In the first round nodes still come.
        *(commit("a", 1, 10.0), commit("b", 1, 10.0)),
        *(ready("a", 2, 13.0, 8), ready("b", 2, 14.0, 2)),
        *(commit("a", 2, 14.5), commit("b", 2, 15.0)),
        *(ready("b", 3, 18.0, 2), ready("a", 3, 19.0, 7)),
        *(commit("a", 3, 20.0), commit("b", 3, 20.0)),
    ]
    assert mean_round_s(events) == pytest.approx(5.0)
    a, b = waited(events)
    assert (a.name, a.steps, a.for_others) == ("a", 15, pytest.approx(0.1))
    assert a.for_exchange == pytest.approx((0.5 + 1.0) / 10)
    assert (b.name, b.steps, b.for_others) == ("b", 4, pytest.approx(0.1))
    assert b.for_exchange == pytest.approx((1.0 + 1.0) / 10)
