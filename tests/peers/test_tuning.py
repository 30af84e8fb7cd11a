"""What the kernel says of real connections."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from peers.tuning import round_trip_s, tune


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_round_trip_of_a_connection_that_was_used(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def measure() -> float | None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            reader, writer = await asyncio.open_connection(*server.getsockname())
            other, _ = server.accept()
        other.sendall(b"there")
        assert await reader.readexactly(5) == b"there"
        connection = writer.get_extra_info("socket")
        tune(connection, bulk=True)
        told = round_trip_s(connection)
        writer.close()
        other.close()
        await writer.wait_closed()
        return told

    with asyncio.Runner(loop_factory=new_loop) as runner:
        told = runner.run(measure())
    assert told is not None
    assert 0 < told < 10


def test_what_is_no_tcp_connection_has_no_round_trip() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert round_trip_s(one) is None
    assert round_trip_s(one) is None
