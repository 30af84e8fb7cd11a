"""Steps in the shell: one peer's core, its payloads and copies, and ranks that obey in the test."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import pytest

from lowcomm.numerics.arrays import IN_MEMORY
from peers.exchange.interfaces import Bytes
from peers.exchange.outbound import Stream
from peers.ipc.shared_memory import Slots
from peers.ipc.step_orders import Order, StepSlots, following, step_shape
from peers.steps.payload_store import digest_of
from peers.steps.step_shell import INLINE_BYTES, StepCommand, StepShell
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages.log_entries import Run
from protocols.peer.core import PeerCore
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig

T = TypeVar("T")
ME, COMMIT, SNAPSHOT = PeerId("alpha.00000000"), 4, 8


class AddingWork:
    """States are bytes; what a step does to them is the ranks' business."""

    arrays = IN_MEMORY

    def __init__(self, size: int) -> None:
        self.payload_bytes = self.mean_bytes = size
        self.copies: dict[int, Bytes] = {}
        self.useless: set[int] = set()

    def make_payload(self, written: Bytes) -> Bytes:
        return bytes(written)

    def write_mean(self, step: int, payloads: Sequence[Bytes], out: memoryview) -> Sequence[int]:
        out[:] = bytes(sum(column) % 256 for column in zip(*payloads, strict=True))
        return () if step in self.useless else range(len(payloads))

    def state_digest(self, state: Bytes) -> str:
        return digest_of(state)

    def keep_copy(self, step: int, state: Bytes, digest: str, *, lineage: int) -> None:
        assert digest == digest_of(state)
        self.copies[step] = state

    def base(self, step: int) -> Bytes:
        return self.copies[step]

    def release(self, step: int) -> None:
        self.copies = {at: state for at, state in self.copies.items() if at >= step}

    def lend_state(self, fragment: int, round_: int) -> tuple[Bytes, ...]:
        return (self.copies[round_],) if round_ in self.copies else ()

    def check_state(
        self, fragment: int, round_: int, state: Sequence[Bytes], before_cell: object = None
    ) -> str:
        return digest_of(*state)

    def adopt_state(
        self, fragment: int, round_: int, buffer: Bytes, *, lineage: int, kept: bool = False
    ) -> None:
        self.copies[round_] = buffer

    def adopt_kept(self, fragment: int, round_: int, *, lineage: int) -> str:
        return ""

    def state_bytes(self, fragment: int) -> int:
        return self.payload_bytes


class Node:
    """A run of one peer. Ranks do nothing until the test lets them."""

    def __init__(self, size: int = 64, *, outer_steps: int = 100) -> None:
        self.now = 0.0
        self.events: list[v.Event] = []
        self.jobs: list[Callable[[], None]] = []
        """What the worker thread has to do, in order."""
        self.orders: list[Order] = []
        """Not obeyed yet."""
        self.there = True
        self.state = bytes(size)
        self.work = AddingWork(size)
        self.slots = Slots.create(step_shape(1, step_bytes=size, state_bytes=size))
        self.memory = StepSlots(self.slots)
        me = Identity(peer=ME, name="alpha", incarnation=1, address="127.0.0.1:1")
        self.core = PeerCore(me, join=False, rules=ProtocolConfig())
        self.bases: list[int] = []
        self.step_shell = StepShell(
            self.core, work=self.work, ranks=self, shell=self, based=self.bases.append
        )
        self.run = Run(7, "{}", "", 1, outer_steps, 1, b"", (size // 4,), ME, COMMIT, SNAPSHOT)

    # StepRanks and StepHost ------------------------------------------------------------------

    def order(self, order: Order) -> bool:
        if self.there:
            self.orders.append(order)
        return self.there

    def feed(self, event: v.Event) -> None:
        self.events.append(event)

    def send(self, peer: PeerId, stream: Stream) -> None:
        raise AssertionError("there is nobody to send to")

    def compute(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self.jobs.append(lambda: done(work()))

    def in_turn(self, action: Callable[[], None]) -> None:
        self.jobs.append(action)

    # What the test lets happen ----------------------------------------------------------------

    def found(self) -> None:
        """The ranks' state is the one that the run begins with."""
        digests: list[str] = []
        self.step_shell.found(digests.append)
        self.obey()
        self.go_on(events=False)
        self.feed(v.RunAccepted(ProtocolConfig()))
        self.feed(v.Bootstrap(self.run, tuple(digests)))
        self.feed(v.TrainersReady())
        self.go_on()

    def go_on(self, *, events: bool = True) -> None:
        """Whatever needs no ranks."""
        while self.jobs or (events and self.events):
            if self.jobs:
                self.jobs.pop(0)()
            else:
                self.handle(self.events.pop(0))

    def handle(self, event: v.Event) -> None:
        for command in self.core.handle(event, self.now):
            if isinstance(command, StepCommand):
                self.step_shell.do(command)
            elif isinstance(command, c.Persist):
                self.feed(v.Persisted(command.write_number))

    def obey(self) -> Order:
        """The ranks do the next order: each payload is the number of its step."""
        order = self.orders.pop(0)
        match order.kind:
            case "make":
                self.memory.payload[:] = bytes([order.step % 256]) * len(self.state)
            case "load":
                self.state = bytes(self.memory.given)
            case "apply":
                mean = zip(self.state, self.memory.mean, strict=True)
                self.state = bytes((3 * a + b) % 256 for a, b in mean)
            case _:
                pass
        if order.show or order.kind == "show":
            self.memory.shown[:] = self.state
        if order.go_on:
            self.orders.append(following(order))
        self.step_shell.obeyed(order.number)
        return order

    def step(self, number: int) -> None:
        """The ranks obey until they completed it."""
        for _ in range(2 * number + 2):
            order = self.obey()
            self.go_on()
            if (order.kind, order.step) == ("apply", number):
                return
        raise AssertionError(f"step {number} was not made")


def expected(steps: int, size: int = 64) -> bytes:
    """The state after so many steps of one peer."""
    state = bytes(size)
    for step in range(1, steps + 1):
        state = bytes((3 * a + step) % 256 for a in state)
    return state


class NewNode(Protocol):
    def __call__(self, size: int = 64, *, outer_steps: int = 100) -> Node: ...


@pytest.fixture
def loaded() -> Iterator[NewNode]:
    """Makes nodes whose ranks have the first state, and an order to make the first payload."""
    nodes: list[Node] = []

    def new(size: int = 64, *, outer_steps: int = 100) -> Node:
        node = Node(size, outer_steps=outer_steps)
        nodes.append(node)
        node.found()
        assert node.obey().kind == "load"
        node.go_on()
        assert [order.kind for order in node.orders] == ["make"]
        return node

    yield new
    for node in nodes:
        node.slots.close()


@pytest.mark.parametrize("size", [64, INLINE_BYTES + 4])
def test_steps_are_made_one_order_at_a_time(loaded: NewNode, size: int) -> None:
    """Small ones in the loop's thread, large ones in the worker's."""
    node = loaded(size)
    for step in range(1, 3):
        node.step(step)
        assert len(node.orders) == 1
    assert node.state == expected(2, size)


def test_a_state_is_shown_at_commits_and_kept_where_all_keep_it(loaded: NewNode) -> None:
    node = loaded()
    shown: list[int] = []
    for step in range(1, 2 * SNAPSHOT + 1):
        node.step(step - 1) if step > 1 else None
        node.obey()
        node.go_on()
        shown += [order.step for order in node.orders if order.show]
    node.step(2 * SNAPSHOT)
    assert shown == list(range(COMMIT, 2 * SNAPSHOT + 1, COMMIT))
    assert node.work.copies == {2 * SNAPSHOT: expected(2 * SNAPSHOT)}
    assert node.bases == [0, SNAPSHOT, 2 * SNAPSHOT]
    assert node.core.run_state.step_progress.digest == digest_of(expected(2 * SNAPSHOT))


def test_payloads_since_the_base_are_kept_and_no_others(loaded: NewNode) -> None:
    node = loaded()
    for step in range(1, SNAPSHOT + COMMIT):
        node.step(step)
    payloads = {digest_of(bytes([step]) * 64) for step in range(SNAPSHOT + 1, SNAPSHOT + COMMIT)}
    assert set(node.step_shell.payloads.held) >= payloads
    assert digest_of(bytes([1]) * 64) not in node.step_shell.payloads.held


def test_a_payload_that_the_core_has_not_taken_yet_is_not_pruned(loaded: NewNode) -> None:
    node = loaded()
    node.obey()
    node.step_shell.do(c.ReleaseSteps(0))
    node.go_on()
    node.step(1)
    assert node.state == expected(1)


def test_new_ranks_get_the_base_and_the_steps_since(loaded: NewNode) -> None:
    node = loaded()
    for step in range(1, SNAPSHOT + COMMIT + 3):
        node.step(step)
    node.orders.clear()
    node.step_shell.ranks_lost()
    node.feed(v.TrainersLost("a test"))
    node.go_on()
    node.state = b"?" * 64
    node.feed(v.TrainersReady())
    node.go_on()
    loads = node.obey()
    assert (loads.kind, loads.step) == ("load", SNAPSHOT)
    assert node.state == expected(SNAPSHOT)
    node.go_on()
    node.step(SNAPSHOT + COMMIT + 3)
    assert node.state == expected(SNAPSHOT + COMMIT + 3)


def test_ranks_hear_whether_what_they_made_last_is_in_a_step(loaded: NewNode) -> None:
    """New ranks repeat steps whose payloads others made: their predecessors."""
    node = loaded()
    last = SNAPSHOT + COMMIT + 2
    applied = [order for _ in range(2 * last) if (order := obeyed(node)).kind == "apply"]
    assert [(order.step, order.counted) for order in applied] == [
        (step, True) for step in range(1, last + 1)
    ]
    node.orders.clear()
    node.step_shell.ranks_lost()
    node.feed(v.TrainersLost("a test"))
    node.feed(v.TrainersReady())
    node.go_on()
    again = [obeyed(node) for _ in range(last - SNAPSHOT + 2)]
    assert [(order.kind, order.step) for order in again] == [
        ("load", SNAPSHOT),
        *(("apply", step) for step in range(SNAPSHOT + 1, last + 1)),
        ("make", last + 1),
    ]
    assert [order.step for order in again if order.counted] == [last]


@pytest.mark.parametrize("size", [64, INLINE_BYTES + 4])
def test_a_payload_that_nobody_could_use_is_not_counted(size: int, loaded: NewNode) -> None:
    node = loaded(size)
    node.work.useless = {2, 5}
    assert [order.step for _ in range(12) if (order := obeyed(node)).counted] == [1, 3, 4, 6]


def obeyed(node: Node) -> Order:
    order = node.obey()
    node.go_on()
    return order


def test_nothing_comes_of_what_ranks_did_who_are_gone(loaded: NewNode) -> None:
    node = loaded()
    make = node.orders.pop()
    node.step_shell.ranks_lost()
    node.step_shell.obeyed(make.number)
    assert node.events == []


def test_ranks_that_are_not_there_get_no_more_orders(loaded: NewNode) -> None:
    node = loaded()
    node.there = False
    node.obey()
    node.go_on()
    assert node.orders == []


def ahead(node: Node) -> tuple[Order, v.Event]:
    """The ranks completed step 2 and make the next payload; the core has not heard of it."""
    node.step(1)
    assert node.obey().kind == "make"
    node.go_on()
    assert node.obey().kind == "apply"
    (make,), (applied,) = node.orders, node.events
    assert (make.kind, make.step) == ("make", 3)
    node.events.clear()
    return make, applied


def test_ranks_go_on_before_the_core_asks(loaded: NewNode) -> None:
    node = loaded()
    make, applied = ahead(node)
    node.obey()
    assert node.events == [], "nobody asked"
    node.feed(applied)
    node.go_on()
    (order,) = node.orders
    assert (order.number, order.kind, order.step) == (make.number + 1, "apply", 3)
    node.step(3)
    assert node.state == expected(3)


def test_a_payload_that_is_asked_for_later_is_not_made_twice(loaded: NewNode) -> None:
    node = loaded()
    _, applied = ahead(node)
    node.feed(applied)
    node.go_on()
    assert [order.kind for order in node.orders] == ["make"]
    node.step(3)
    assert node.state == expected(3)


def test_what_ranks_went_on_to_is_void_when_they_get_another_state(loaded: NewNode) -> None:
    node = loaded()
    make, _ = ahead(node)
    node.step_shell.do(c.LoadBase(0))
    node.go_on()
    assert node.orders == [make], "they would write while they read"
    node.obey()
    assert node.obey().kind == "load"
    assert node.state == expected(0)
    node.events.clear()
    node.step_shell.do(c.MakeStep(3, 2))
    assert node.events == [], "it was made from another state"
    assert [order.kind for order in node.orders] == ["make"]


def test_a_load_waits_for_what_the_ranks_are_at_and_voids_it(loaded: NewNode) -> None:
    node = loaded()
    for step in (1, 2):
        node.step(step)
    (make,) = node.orders
    node.step_shell.do(c.LoadBase(0))
    node.go_on()
    assert node.orders == [make], "they would write while they read"
    assert node.obey() == make
    assert node.events == [], "no answer to an earlier order follows"
    loads = node.obey()
    assert (loads.kind, loads.step) == ("load", 0)
    assert node.state == expected(0)


def test_the_last_of_several_loads_counts(loaded: NewNode) -> None:
    node = loaded()
    node.step(1)
    for _ in range(2):
        node.step_shell.do(c.LoadBase(0))
    node.go_on()
    node.obey()
    assert [order.kind for order in node.orders] == ["load"]
    node.obey()
    assert node.orders == []


def test_the_run_ends_with_an_order_to_finish(loaded: NewNode) -> None:
    node = loaded(outer_steps=COMMIT)
    for step in range(1, COMMIT + 1):
        node.step(step)
    assert node.core.stopped
    node.step_shell.finish(evaluate=True)
    (order,) = node.orders
    assert (order.kind, order.evaluate) == ("finish", True)
