"""When the memory of a round goes back: not while ranks copy, and before it is in the way."""

import asyncio

import pytest

from peers.exchange import buffer_release as releases_module
from peers.exchange.buffer_release import COPIED_BYTES_PER_S, BufferReleases
from protocols.interface import commands as c
from protocols.messages import log_entries as e
from tests.peers import xor_node

LONG = int(3600 * COPIED_BYTES_PER_S)
Made = list[tuple[int, int]]


def room() -> tuple[BufferReleases, Made]:
    made: Made = []
    return BufferReleases(lambda fragment, round_: made.append((fragment, round_))), made


@pytest.mark.asyncio
async def test_a_release_waits_while_the_ranks_copy() -> None:
    buffer_releases, made = room()
    over = asyncio.Event()
    short = BufferReleases(lambda fragment, round_: over.set())
    buffer_releases.put_off(0, 7, copied_bytes=LONG)
    short.put_off(0, 7, copied_bytes=1)
    await over.wait()
    assert made == []
    buffer_releases.close()


@pytest.mark.asyncio
async def test_what_needs_the_memory_does_not_wait() -> None:
    buffer_releases, made = room()
    for fragment, round_ in ((0, 7), (1, 7), (0, 8), (2, 7)):
        buffer_releases.put_off(fragment, round_, copied_bytes=LONG)
    buffer_releases.make(0)
    assert made == [(0, 7), (0, 8)], "in their order, and none of another fragment"
    buffer_releases.make(0)
    buffer_releases.make()
    assert made == [(0, 7), (0, 8), (1, 7), (2, 7)]
    buffer_releases.make()
    assert len(made) == 4, "each once"


@pytest.mark.asyncio
async def test_the_time_of_a_round_that_was_given_back_gives_nothing_else_back() -> None:
    """It would take the next round's memory while ranks still copy."""
    buffer_releases, _ = room()
    buffer_releases.put_off(0, 7, copied_bytes=LONG)
    ((*_, due),) = buffer_releases._waiting
    buffer_releases.make(0)
    assert due.cancelled()


@pytest.mark.asyncio
async def test_nothing_goes_back_after_the_end() -> None:
    buffer_releases, made = room()
    buffer_releases.put_off(0, 7, copied_bytes=0)
    buffer_releases.close()
    after = asyncio.Event()
    asyncio.get_running_loop().call_later(0.0, after.set)
    await after.wait()
    assert made == []


@pytest.mark.asyncio
async def test_the_next_contribution_and_another_lineage_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers of rounds come again in a lineage: a release that is late would take theirs."""
    monkeypatch.setattr(releases_module, "COPIED_BYTES_PER_S", 1e-6)
    async with xor_node.open_round() as (alpha, _):
        driver, lineage = alpha.driver, alpha.driver.core.run_state.lineage
        await alpha.until(lambda: bool(driver.data_plane.own.encoded))
        (mine,) = driver.data_plane.own.encoded
        driver._do(c.Applied(8, e.Left(xor_node.BETA, "over"), lineage))
        driver._do(c.ReleaseRound(0, 77))
        for _ in range(10):
            await asyncio.sleep(0)
        assert list(driver.data_plane.own.encoded) == [mine], "the ranks copy"
        driver._do(c.Encode(0, 78))
        await alpha.until(lambda: list(driver.data_plane.own.encoded) == [(0, 78)])
        driver._do(c.ReleaseRound(0, 78))
        driver._do(c.Applied(9, e.Left(xor_node.BETA, "over"), lineage + 1))
        assert not driver._round_jobs._buffer_releases._waiting
