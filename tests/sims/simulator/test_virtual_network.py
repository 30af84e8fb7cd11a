"""Order, delay and loss on the lines between peers."""

import heapq
import itertools
import random
from collections.abc import Callable

from sims.simulator.virtual_network import Network
from tests.protocols.scenes import A, B, C


class Clock:
    """Runs what is scheduled, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + after_s, next(self._order), action))

    def run(self, until_s: float = 99.0) -> None:
        while self._heap and self._heap[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until_s


class Wire:
    """A network of one line, and what arrived on it when."""

    def __init__(self, seed: int = 3) -> None:
        self.clock = Clock()
        self.network = Network(random.Random(seed), self.clock.at)
        self.network.connect(A, B)
        self.arrived: list[tuple[float, str]] = []

    def note(self, what: str) -> None:
        self.arrived.append((self.clock.now, what))

    def send(self, what: str, *, purpose: str = "bulk") -> None:
        now = self.clock.now
        self.network.carry(A, B, purpose=purpose, now=now, deliver=lambda: self.note(what))

    @property
    def order(self) -> list[str]:
        return [what for _, what in self.arrived]


def test_what_is_sent_arrives_in_order_whatever_the_delays() -> None:
    for seed in range(20):
        wire = Wire(seed)
        for number in range(20):
            wire.send(str(number))
        wire.clock.run()
        assert wire.order == [str(number) for number in range(20)]
        assert wire.arrived[0][0] >= wire.network.delay_s


def test_control_may_overtake_bulk() -> None:
    wire = Wire()
    line = wire.network.line(A, B)
    line.slow_until, line.slow_s = 10.0, 5.0
    wire.send("bulk")
    wire.send("control", purpose="control")
    wire.clock.run()
    assert wire.order == ["control", "bulk"]
    assert wire.arrived[1][0] >= 5.0


def test_without_a_connection_nothing_arrives() -> None:
    wire = Wire()
    wire.network.carry(A, C, purpose="bulk", now=0.0, deliver=lambda: wire.note("x"))
    wire.clock.run()
    assert wire.arrived == []


def test_what_is_under_way_when_a_connection_ends_is_lost_even_if_a_new_one_begins() -> None:
    wire = Wire()
    wire.send("old")
    assert wire.network.disconnect(A, B)
    assert not wire.network.disconnect(A, B)
    wire.network.connect(B, A)
    wire.send("new")
    wire.clock.run()
    assert wire.order == ["new"]


def test_a_stalled_line_loses_nothing_and_delivers_later_in_order() -> None:
    wire = Wire()
    wire.send("before")
    wire.network.stall(A, B, 4.0)
    wire.send("after")
    wire.clock.run(3.9)
    assert wire.order == []
    wire.clock.run()
    assert wire.order == ["before", "after"]
    assert all(at >= 4.0 for at, _ in wire.arrived)


def test_a_stall_is_one_way() -> None:
    wire = Wire()
    wire.network.stall(B, A, 4.0)
    wire.send("out")
    wire.clock.run(3.9)
    assert wire.order == ["out"]
    wire.network.carry(B, A, purpose="bulk", now=3.9, deliver=lambda: wire.note("back"))
    wire.clock.run()
    assert wire.order == ["out", "back"]
    assert wire.arrived[1][0] >= 4.0


def test_a_shorter_stall_does_not_end_a_longer_one() -> None:
    wire = Wire()
    wire.network.stall(A, B, 4.0)
    wire.network.stall(A, B, 2.0)
    wire.send("x")
    wire.clock.run()
    assert wire.arrived[0][0] >= 4.0


def test_a_connection_takes_both_ways() -> None:
    for sender, to in ((A, B), (B, A)):
        wire = Wire()
        wire.network.stall(sender, to, 4.0)
        for one, other in ((A, B), (B, A)):
            assert not wire.network.reachable(one, other, 3.9)
            assert wire.network.reachable(one, other, 4.0)
        assert wire.network.reachable(A, C, 0.0)


def test_a_network_that_healed_is_neither_stalled_nor_slow() -> None:
    wire = Wire()
    wire.network.stall(A, B, 50.0)
    line = wire.network.line(A, B)
    line.slow_until, line.slow_s = 50.0, 20.0
    wire.network.heal()
    assert wire.network.reachable(A, B, 0.0)
    wire.send("x")
    wire.clock.run()
    assert wire.arrived[0][0] < 4.0


def test_a_slow_line_is_fast_again_later() -> None:
    wire = Wire()
    line = wire.network.line(A, B)
    line.slow_until, line.slow_s = 2.0, 5.0
    wire.clock.run(3.0)
    wire.send("x")
    wire.clock.run()
    assert wire.arrived[0][0] < 4.0
