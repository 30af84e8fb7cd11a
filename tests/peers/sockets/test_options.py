"""What the kernel says of real connections."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from peers.sockets.options import (
    ASK_AFTER_S,
    ASK_EVERY_S,
    UNSENT_BYTES,
    USER_TIMEOUT_MS,
    is_starting,
    known_congestion,
    round_trip_s,
    tune,
)
from protocols.types.errors import ConfigError


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


def test_what_does_not_say_that_it_is_starting_is_not() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert not is_starting(one)
    assert not is_starting(one)
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as local:
        tune(local, bulk=True, congestion="reno")
        local.sendall(bytes(1000))
        assert not is_starting(local)


def test_a_congestion_control_is_one_that_the_kernel_has() -> None:
    assert known_congestion("reno") == "reno"  # Always there.
    assert known_congestion("") == ""
    with pytest.raises(ConfigError, match=r"node\.congestion: this kernel does not permit 'x'"):
        known_congestion("x")


@pytest.mark.parametrize("bulk", [False, True])
def test_small_messages_leave_at_once_and_an_end_that_is_gone_is_noticed(bulk: bool) -> None:
    def told(connection: socket.socket) -> list[int]:
        of = [socket.TCP_NODELAY, socket.TCP_USER_TIMEOUT]
        of += [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL]
        values = [connection.getsockopt(socket.IPPROTO_TCP, option) for option in of]
        return [*values, connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]

    wanted = [1, USER_TIMEOUT_MS, ASK_AFTER_S, ASK_EVERY_S, 1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialled = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with dialled, accepted:
        for end in (dialled, accepted):
            assert all(a != b for a, b in zip(told(end), wanted, strict=True))
            tune(end, bulk=bulk)
            assert told(end) == wanted
        assert 1000 * (ASK_AFTER_S + ASK_EVERY_S) < USER_TIMEOUT_MS, "it is asked by then"


def test_bulk_to_elsewhere_keeps_its_rate_under_losses_where_the_kernel_lets_it() -> None:
    with socket.socket() as elsewhere:  # To nobody, so not to this machine.
        before = congestion_of(elsewhere)
        try:
            wanted = known_congestion("bbr")
        except ConfigError:
            wanted = before
        tune(elsewhere, bulk=False)
        assert congestion_of(elsewhere) == before
        tune(elsewhere, bulk=True)
        assert congestion_of(elsewhere) == wanted


def congestion_of(connection: socket.socket) -> str:
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return told.split(b"\0")[0].decode()


def test_bulk_goes_by_where_the_peer_is_unless_told_otherwise() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as local:
        tune(local, bulk=True)
        assert congestion_of(local) == "reno"
        assert local.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) != UNSENT_BYTES
    with socket.socket() as elsewhere:  # To nobody, so not to this machine.
        tune(elsewhere, bulk=True, congestion="reno")
        assert elsewhere.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES
        assert congestion_of(elsewhere) == "reno"
