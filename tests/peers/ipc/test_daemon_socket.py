"""The Unix socket between a daemon and its ranks: what passes, and what is refused and why."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from asyncio.subprocess import Process

import msgpack
import pytest

import peers.ipc.daemon_socket
from peers.ipc.daemon_socket import (
    MESSAGES_IN_A_ROW_MAX,
    READ_BYTES,
    UNREAD_MESSAGES_MAX,
    Closed,
    DaemonSocketServer,
)
from peers.ipc.messages import Answer, Configured, RankEvaluated, RankMessage, RankRefused
from peers.ipc.msgpack_records import RECORD_BYTES_MAX, LinkError, encode
from peers.ipc.rank_socket import RankSocket
from tests.peers.lifeline_room import (
    BOUNDARY,
    CONTRIBUTED,
    HELLO,
    LAYOUT,
    REPORTS,
    RESULT,
    frame,
    heard,
    ignored,
    linked,
    receive,
    serving,
    words,
)

SAY_HELLO = """
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    client.sendall(bytes.fromhex(sys.argv[2]))
    sys.stdin.read()
"""
SAY_AND_END = """
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(bytes.fromhex(sys.argv[2]))
os._exit(0)
"""
# Its child holds the connection open, while it ends itself.
LEAVE_A_CHILD = """
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(bytes.fromhex(sys.argv[2]))
if os.fork() == 0:
    os.read(int(sys.argv[3]), 1)
"""


async def start(program: str, *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdin=subprocess.PIPE
    )


def speak(rank: RankSocket, *messages: RankMessage) -> None:
    """All that it ever says."""
    for message in messages:
        rank.send(message)
    rank.close()


@pytest.mark.asyncio
async def test_messages_pass_in_both_directions() -> None:
    with serving() as (server, path), linked(path) as rank:
        rank.send(HELLO)
        link, message = await heard(server)
        assert message == HELLO
        assert link.pid == os.getpid()
        for message in (LAYOUT, BOUNDARY, *REPORTS):
            rank.send(message)
            assert await heard(server) == (link, message)
        for answer in (Answer(fragment=1), RESULT, Configured(run="{}", node="", corpus="")):
            link.send(answer)
            assert receive(rank) == answer


@pytest.mark.asyncio
async def test_a_message_in_pieces_and_two_in_one_piece() -> None:
    with serving() as (server, path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        bytes_of_two = frame(encode(HELLO)) + frame(encode(LAYOUT))
        for piece in (bytes_of_two[:2], bytes_of_two[2:9], bytes_of_two[9:]):
            client.sendall(piece)
            await asyncio.sleep(0.01)
        assert (await heard(server))[1] == HELLO
        assert (await heard(server))[1] == LAYOUT


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (frame(b"\xc1"), "undecodable"),
        (frame(b""), "undecodable"),
        (struct.pack("<I", RECORD_BYTES_MAX + 1), "at most"),
        (b"\xff\xff\xff\xff", "at most"),
        (frame(encode(Answer(fragment=1))), "unexpected type 'answer'"),
        (frame(encode(HELLO).replace(b"attempt\x03", b"attempt\xc3")), "field attempt"),
        (frame(encode(HELLO).replace(b"attempt", b"attemqt")), "attemqt"),
        (frame(encode(LAYOUT).replace(b"elements\x07", b"elements\xc2")), "field elements"),
    ],
)
async def test_bad_bytes_are_refused_with_the_reason(bad: bytes, why: str) -> None:
    with serving() as (server, path), linked(path) as rank:
        rank._socket.sendall(bad)
        refused = await asyncio.to_thread(receive, rank)
        assert isinstance(refused, RankRefused)
        assert why in refused.why
        rank.send(HELLO)
        rank.close()
        _, message = await heard(server)
        assert message == Closed(refused.why, ended=True), "a refused link's hello is not heard"
        assert server.inbox.empty()


@pytest.mark.asyncio
async def test_a_rank_that_says_too_much_holds_up_itself_and_nobody_else() -> None:
    count = 3000  # More than the socket has room for.
    with serving() as (server, path), linked(path) as rank, linked(path) as other:

        def chat() -> None:
            for step in range(count):
                rank.send(words(step))

        chatting = asyncio.create_task(asyncio.to_thread(chat))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(chatting), 0.2)
        assert server.inbox.qsize() == UNREAD_MESSAGES_MAX
        other.send(HELLO)
        heard_first = [(await heard(server))[1] for _ in range(UNREAD_MESSAGES_MAX + 2)]
        assert HELLO in heard_first
        heard_first.remove(HELLO)
        rest = count - len(heard_first)
        assert [*heard_first, *[(await heard(server))[1] for _ in range(rest)]] == [
            words(step) for step in range(count)
        ]
        await chatting


@pytest.mark.asyncio
async def test_a_flood_delays_other_tasks_and_does_not_stop_them() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with serving() as (server, path), linked(path) as rank:
        rank._socket.sendall(b"".join(frame(encode(words(step))) for step in range(200)))
        await heard(server)
        taking = asyncio.create_task(take_turns())
        for _ in range(199):
            await server.receive()
        taking.cancel()
        assert turns >= 199 // MESSAGES_IN_A_ROW_MAX


@pytest.mark.asyncio
async def test_who_is_refused_in_a_flood_is_not_heard_further() -> None:
    with serving() as (server, path), linked(path) as rank:
        for step in range(3 * UNREAD_MESSAGES_MAX):
            rank.send(words(step))
        link, _ = await heard(server)
        link.refuse("too much")
        assert receive(rank) == RankRefused(why="too much")
        rank.close()
        for step in range(1, UNREAD_MESSAGES_MAX + 1):
            assert await heard(server) == (link, words(step))
        assert await heard(server) == (link, Closed("too much", ended=True))


@pytest.mark.asyncio
async def test_what_a_rank_says_last_is_heard_before_its_end() -> None:
    """Although it has not read the daemon's last word, which resets the stream."""
    large = RankEvaluated(loss=1.0, windows=2, sample="x" * (2 * READ_BYTES))
    with serving() as (server, path), linked(path) as rank:
        rank.send(HELLO)
        link, _ = await heard(server)
        link.send(Answer(fragment=1))
        speaking = asyncio.create_task(asyncio.to_thread(speak, rank, large, words(1)))
        assert await heard(server) == (link, large)
        assert await heard(server) == (link, words(1))
        assert await heard(server) == (link, Closed("it closed its connection", ended=True))
        await speaking


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [2, 3 * UNREAD_MESSAGES_MAX])
async def test_what_a_process_says_as_it_ends_is_heard_before_its_end(count: int) -> None:
    last = [*(words(step) for step in range(count)), CONTRIBUTED]
    with serving() as (server, path):
        process = await start(SAY_AND_END, path, b"".join(frame(encode(m)) for m in last).hex())
        await asyncio.wait_for(process.wait(), 10)
        for message in last:
            assert (await heard(server))[1] == message
        _, message = await heard(server)
        assert isinstance(message, Closed)
        assert message.ended


@pytest.mark.asyncio
async def test_messages_of_a_process_that_ended_before_it_was_accepted_are_received() -> None:
    """On a busy machine the daemon accepts a connection after its process has ended."""
    last = [words(0), CONTRIBUTED]
    with serving() as (server, path):
        sent = b"".join(frame(encode(message)) for message in last).hex()
        # It blocks the event loop, so the process is reaped before its connection is accepted.
        command = [sys.executable, "-c", SAY_AND_END, path, sent]
        subprocess.run(command, timeout=10, check=True)  # noqa: ASYNC221
        for message in last:
            assert (await heard(server))[1] == message
        link, closed = await heard(server)
        assert closed == Closed("its process has ended", ended=True)
        link.end()
        assert not server.links


@pytest.mark.asyncio
async def test_what_a_rank_said_before_it_left_is_heard_although_we_cannot_send() -> None:
    with serving() as (server, path), linked(path) as rank:
        rank.send(HELLO)
        link, _ = await heard(server)
        rank.send(CONTRIBUTED)
        rank.close()
        link.send(Answer(fragment=1))
        link.send(Answer(fragment=2))
        assert await heard(server) == (link, CONTRIBUTED)
        closed = Closed("it closed its connection", ended=True)
        assert await heard(server) == (link, closed)


@pytest.mark.asyncio
async def test_the_end_of_the_stream_is_told_once() -> None:
    with serving() as (server, path):
        with linked(path) as rank:
            rank.send(HELLO)
            link, _ = await heard(server)
        assert await heard(server) == (link, Closed("it closed its connection", ended=True))
        link.close("again")
        link.send(Answer(fragment=1))
        assert server.inbox.empty()
        assert not server.links


@pytest.mark.usefixtures("pidfds")
@pytest.mark.asyncio
async def test_the_end_of_the_process_counts_although_its_child_holds_the_socket() -> None:
    waits, ends = os.pipe()  # The child ends with the test.
    with serving() as (server, path):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", LEAVE_A_CHILD, path, frame(encode(HELLO)).hex(), str(waits)),
            pass_fds=(waits,),
        )
        assert (await heard(server))[1] == HELLO
        _, message = await heard(server)
        assert message == Closed("its process has ended", ended=True)
        await process.wait()
    os.close(ends)
    os.close(waits)


@pytest.mark.usefixtures("pidfds")
@pytest.mark.asyncio
async def test_an_accepted_rank_is_killed_at_the_end() -> None:
    with serving() as (server, path):
        process = await start(SAY_HELLO, path, frame(encode(HELLO)).hex())
        link, message = await heard(server)
        assert message == HELLO
        assert link.pid == process.pid
        link.accept()
        server.end_links()
        assert await asyncio.wait_for(process.wait(), 10) == -signal.SIGKILL


@pytest.mark.asyncio
async def test_only_so_many_links_at_a_time() -> None:
    with serving(links_max=1) as (server, path), linked(path) as first:
        first.send(HELLO)
        await heard(server)
        with linked(path) as second:
            await asyncio.sleep(0.05)
            with pytest.raises((LinkError, OSError)):
                receive(second)
        first.close()
        await heard(server)
        with linked(path) as third:
            third.send(HELLO)
            assert (await heard(server))[1] == HELLO


@pytest.mark.asyncio
async def test_who_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.ipc.daemon_socket, "HELLO_TIMEOUT_S", 0.05)
    with serving() as (server, path), linked(path) as rank:
        assert (await heard(server))[1] == Closed("it sent no hello", ended=False)
        with pytest.raises(LinkError, match="closed"):
            receive(rank)


@pytest.mark.asyncio
async def test_who_is_refused_before_it_is_greeted_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its hello and what is wrong came together."""
    monkeypatch.setattr(peers.ipc.daemon_socket, "REFUSED_LINGER_S", 0.05)
    with serving() as (server, path):
        said = frame(encode(HELLO)) + frame(b"\xc1")
        process = await start(SAY_HELLO, path, said.hex())
        link, message = await heard(server)
        assert message == HELLO
        link.accept()
        _, closed = await heard(server)
        assert isinstance(closed, Closed)
        assert "undecodable" in closed.why
        server.end_links()
        await asyncio.wait_for(process.wait(), 10)


@pytest.mark.asyncio
async def test_who_is_refused_and_stays_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.ipc.daemon_socket, "REFUSED_LINGER_S", 0.05)
    with serving() as (server, path), linked(path) as rank:
        rank.send(HELLO)
        link, _ = await heard(server)
        link.refuse("wrong model")
        assert receive(rank) == RankRefused(why="wrong model")
        assert (await heard(server))[1] == Closed("wrong model", ended=False)
        with pytest.raises(LinkError, match="closed"):
            receive(rank)


@pytest.mark.asyncio
async def test_who_does_not_read_is_closed() -> None:
    large = Configured(run="x" * 900_000, node="", corpus="")
    with serving() as (server, path), linked(path) as rank:
        rank.send(HELLO)
        link, _ = await heard(server)
        for _ in range(10):
            link.send(large)
        _, message = await heard(server)
        assert isinstance(message, Closed)
        assert "unread" in message.why


@pytest.mark.asyncio
async def test_another_user_is_not_heard() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can connect as another user")
    with serving() as (server, path), linked(path) as ours:
        os.chmod(os.path.dirname(path), 0o755)
        os.chmod(path, 0o777)
        os.seteuid(65534)
        try:
            theirs = RankSocket(path, timeout_s=5)
        finally:
            os.seteuid(0)
        with pytest.raises((LinkError, OSError)):
            await asyncio.to_thread(receive, theirs)
        theirs.close()
        assert server.inbox.empty()
        ours.send(HELLO)
        assert (await heard(server))[1] == HELLO


@pytest.mark.asyncio
async def test_a_taken_path_is_an_error() -> None:
    with serving() as (_, path), pytest.raises(OSError, match="in use"):
        DaemonSocketServer(path, links_max=1, obeyed=ignored)
    with pytest.raises(OSError, match="No such file"):
        RankSocket("/nonexistent/lifeline", timeout_s=1)


def test_frames_are_what_they_say() -> None:
    record = {"type": "answer", "fragment": 1}
    assert msgpack.unpackb(encode(Answer(fragment=1))) == record
