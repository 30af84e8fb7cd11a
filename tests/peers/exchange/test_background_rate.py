"""How much of a state goes while payload moves."""

import asyncio
import time

from peers.exchange.background_rate import (
    BUSY_BYTES,
    CREDIT_BYTES_MAX,
    GIVE_WAY_S_MAX,
    QUIET_S,
    SHARE,
    BackgroundRate,
)

CELL = 1 << 20


def test_while_nothing_else_moves_everything_may_go() -> None:
    async def scenario() -> None:
        pace = BackgroundRate(lambda: None)
        assert all(pace.may_send(CELL) for _ in range(100))
        pace.moved(1)
        await asyncio.sleep(2 * QUIET_S)
        assert pace.may_send(CELL)

    asyncio.run(scenario())


def test_beside_payload_a_share_of_its_bytes_may_go_and_whoever_waits_is_woken() -> None:
    async def scenario() -> None:
        woken = asyncio.Event()
        pace = BackgroundRate(woken.set)
        pace.moved(int(CELL / SHARE) - 1)
        assert not pace.may_send(CELL)
        pace.moved(8)
        assert pace.may_send(CELL)
        assert not pace.may_send(CELL), "that was its share"
        await asyncio.wait_for(woken.wait(), 10)
        pace.close()

    asyncio.run(scenario())


def test_what_was_not_used_is_not_saved_up() -> None:
    async def scenario() -> None:
        pace = BackgroundRate(lambda: None)
        for _ in range(1000):
            pace.moved(CELL)
        count = 0
        while pace.may_send(CELL):
            count += 1
        assert count == CREDIT_BYTES_MAX // CELL
        pace.close()

    asyncio.run(scenario())


def test_hashing_waits_until_payload_is_still_but_not_for_ever() -> None:
    async def scenario() -> None:
        pace = BackgroundRate(lambda: None)
        pace.giving_way()()  # Nothing moves: at once.
        pace.moved(BUSY_BYTES - 1)
        began = time.monotonic()
        pace.giving_way()()  # Nor for steps of some KiB, which never end.
        assert time.monotonic() - began < QUIET_S / 2
        pace.moved(BUSY_BYTES)
        began = time.monotonic()
        await asyncio.to_thread(pace.giving_way())
        assert time.monotonic() - began >= QUIET_S / 2
        give_way, waits, moving = pace.giving_way(), 0, False
        while not moving:
            pace.moved(BUSY_BYTES)
            until = asyncio.get_running_loop().time() + QUIET_S
            give_way()
            moving = time.monotonic() < until - QUIET_S / 2  # It did not wait to the end.
            waits += 1
        assert waits >= GIVE_WAY_S_MAX / QUIET_S
        pace.moved(BUSY_BYTES)
        pace.close()
        pace.giving_way()()

    asyncio.run(scenario())


def test_nobody_is_woken_after_the_end() -> None:
    async def scenario() -> None:
        woken = list[int]()
        pace = BackgroundRate(lambda: woken.append(1))
        pace.moved(1)
        assert not pace.may_send(CELL)
        pace.close()
        await asyncio.sleep(2 * QUIET_S)
        assert woken == []

    asyncio.run(scenario())
