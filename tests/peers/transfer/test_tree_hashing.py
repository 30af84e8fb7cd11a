"""Cells and their digests, and the thread that makes them."""

import asyncio
import os
import threading
import time

import pytest
from blake3 import blake3

from peers.exchange.pieces import PIECE_ELEMENTS
from peers.transfer.tree_hashing import NICE, TreeHashing, cells, elements_of, leaves_of
from protocols.state.parts import ELEMENT_BYTES

CELL = PIECE_ELEMENTS * ELEMENT_BYTES


def test_a_state_is_cut_into_cells_and_each_has_a_leaf() -> None:
    state = os.urandom(2 * CELL + 8)
    parts = [state[:CELL], state[CELL : 2 * CELL], state[2 * CELL :]]
    assert [bytes(cell) for cell in cells([state])] == parts
    assert leaves_of([state]) == b"".join(blake3(part).digest() for part in parts)
    assert leaves_of([b""]) == leaves_of([]) == b""


@pytest.mark.parametrize("border", [0, 8, CELL - 4, CELL, CELL + 4, 2 * CELL, 2 * CELL + 8])
def test_a_cell_may_lie_in_several_buffers(border: int) -> None:
    state = os.urandom(2 * CELL + 8)
    parts = [state[:border], b"", state[border:]]
    assert [bytes(cell) for cell in cells(parts)] == [bytes(cell) for cell in cells([state])]
    assert elements_of(parts) == len(state) // ELEMENT_BYTES


def test_before_each_cell_what_matters_more_may_go_first() -> None:
    asked: list[int] = []
    leaves_of([bytes(2 * CELL + 8)], lambda: asked.append(len(asked)))
    assert asked == [0, 1, 2]


def test_work_is_done_in_order_in_a_thread_that_gives_way() -> None:
    async def scenario() -> None:
        tree_hashing, found, last = TreeHashing(), list[object](), asyncio.Event()
        loop_thread = threading.get_ident()

        def work() -> tuple[bool, int]:
            there = threading.get_native_id()
            return threading.get_ident() != loop_thread, os.getpriority(os.PRIO_PROCESS, there)

        tree_hashing.submit(work, found.append)
        tree_hashing.submit(lambda: "second", found.append)
        tree_hashing.submit(lambda: None, lambda _: last.set())
        await asyncio.wait_for(last.wait(), 10)
        assert found == [(True, NICE), "second"]
        assert os.getpriority(os.PRIO_PROCESS, 0) < NICE, "nobody else gives way"
        tree_hashing.close()

    asyncio.run(scenario())


def test_what_is_being_hashed_ends_at_its_next_cell() -> None:
    async def scenario() -> None:
        tree_hashing, began, found = TreeHashing(), threading.Event(), list[object]()
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, why: failures.append(why))

        def work() -> None:
            last = time.monotonic() + 10
            while time.monotonic() < last:
                began.set()
                tree_hashing.go_on()

        tree_hashing.submit(work, found.append)
        assert began.wait(10)
        at = time.monotonic()
        tree_hashing.close()
        assert time.monotonic() - at < 5
        for _ in range(5):  # What the thread hands over by `call_soon`.
            await asyncio.sleep(0)
        assert found == failures == []

    asyncio.run(scenario())


def test_nobody_hears_of_what_was_being_hashed_at_the_end() -> None:
    async def scenario() -> None:
        tree_hashing, goes_on, found = TreeHashing(), threading.Event(), list[object]()
        for _ in range(3):
            tree_hashing.submit(lambda: goes_on.wait(10), found.append)
        threading.Timer(0.05, goes_on.set).start()  # While `close` waits for what was begun.
        tree_hashing.close()
        await asyncio.sleep(0.05)
        assert found == []
        tree_hashing.close()

    asyncio.run(scenario())
