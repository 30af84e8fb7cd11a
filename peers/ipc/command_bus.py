"""The node's local bus for commands: a ZeroMQ ROUTER in the daemon, a DEALER in a client.

Ranks do not use it but have sockets of their own: a message takes two more hops between threads
here, each up to milliseconds on a busy machine. Questions are records
(`peers/ipc/msgpack_records.py`), answers JSON. Answering never blocks the daemon: if the queue is
full, the answer is dropped, and the caller told. Must NOT know what a message means.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from peers.ipc.msgpack_records import RECORD_BYTES_MAX, LinkError, decode, encode, kinds_of

QUEUE_MESSAGES_MAX = 1000  # In each direction and for each connection.


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """client -> daemon; answered by JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPeer:
    """client -> daemon: leave the run and end; answered by {"type": "stopping"}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """client -> daemon: revoke a peer's certificate, or a token. Repeated until the answer, JSON
    text, tells that it is done or refused."""

    what: str
    """The peer's id, or its name; or a token, or its number."""
    token: bool
    """`what` names a token."""
    why: str
    force: bool
    """Revoke even if no majority of the remaining voters can be reached."""
    again: bool
    """A repeated question: the outcome of the first one counts."""
    signature: str = ""
    """An operator's, in hex digits; `what`, `why` and `unix_s` are as it was made of them."""
    key: str = ""
    """The operator's public key; "": the root key."""
    unix_s: int = 0
    """When the person asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindSubject:
    """client -> daemon; answered by JSON text: what a Revoke of these would revoke, and the keys of
    the run's operators."""

    what: str
    token: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAct:
    """client -> daemon; answered by JSON text: the subject, value, number and lineage that the log
    would take next for an act that steers the run, and the keys of the run's operators."""

    what: str
    """"pause", "continue", "kick", "set", "add operator" or "remove operator"."""
    subject: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    """client -> daemon: steer the run, as PrepareAct told. Repeated until the answer, JSON text,
    tells that it is done or refused."""

    what: str
    subject: str
    value: str
    number: int
    lineage: str
    """64 bits, as 16 hex digits."""
    why: str
    force: bool
    again: bool
    """As in Revoke, like the following."""
    signature: str = ""
    key: str = ""
    unix_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTokens:
    """client -> daemon; answered by JSON text: the tokens that the log has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListActs:
    """client -> daemon; answered by JSON text: the acts of people that the log has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeCheckpoint:
    """client -> daemon: write a checkpoint of this node. Repeated until the answer, JSON text,
    tells that it is done or refused."""

    again: bool
    """A repeated question: the outcome of the first one counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueToken:
    """client -> daemon: have the run log a token that this node has signed. Repeated until the
    answer, JSON text, tells that it is done or refused."""

    word: str
    again: bool
    """A repeated question: the outcome of the first one counts."""


Asked = Revoke | FindSubject | Steer | PrepareAct | IssueToken
"""What `lowcomm/daemon/acts.py` answers."""
Question = Status | ListTokens | ListActs | MakeCheckpoint | Asked
_TO_DAEMON = kinds_of(
    *(Status, StopPeer, ListTokens, ListActs, MakeCheckpoint),
    *(Revoke, FindSubject, Steer, PrepareAct, IssueToken),
)


class Bus:
    """The daemon's end. One task receives; anything in the loop's thread may send."""

    def __init__(self, endpoint: str) -> None:
        """Bind at once, inside a running loop. Raises OSError when that fails."""
        self._loop = asyncio.get_running_loop()
        self._readable = asyncio.Event()
        self._context = zmq.Context(1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # A lost message is an error, not silence.
        self._socket.setsockopt(zmq.MAXMSGSIZE, RECORD_BYTES_MAX)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES_MAX)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES_MAX)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, f"cannot bind {endpoint}: {error.strerror}") from error
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._readable.set)

    async def receive(self) -> tuple[bytes, Question | StopPeer | LinkError]:
        """The next message and its sender; a LinkError says what is wrong with it."""
        # One turn of the loop for each message: a flood delays others, it does not stop them.
        await asyncio.sleep(0)
        while True:
            self._readable.clear()
            try:
                # The descriptor signals only while the socket's mailbox is not empty, and any
                # call on the socket empties it: so read until there is nothing, then wait.
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                await self._readable.wait()
                continue
            sender = frames[0]
            if len(frames) != 2:
                return sender, LinkError(f"{len(frames)} frames, a message has 2")
            try:
                return sender, decode(frames[1], _TO_DAEMON)
            except LinkError as error:
                return sender, error

    def answer(self, receiver: bytes, text: str) -> bool:
        """Send an answer (JSON text). False if the receiver is gone or its queue is full: it is
        dropped."""
        try:
            self._socket.send_multipart([receiver, text.encode()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in {zmq.EAGAIN, zmq.EHOSTUNREACH}:
                raise
            return False
        finally:
            # Sending may have consumed the signal of a message that arrived meanwhile.
            self._readable.set()
        return True

    def close(self) -> None:
        """Close and drop what was not sent; idempotent."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._context.destroy(linger=0)


async def serve(bus: Bus, answer: Callable[[Question], str], stop: Callable[[], None]) -> None:
    """Serve for ever: answer questions with JSON text, and obey Stop. Neither function may
    block."""
    while True:
        sender, message = await bus.receive()
        if isinstance(message, Question):
            bus.answer(sender, answer(message))
        elif isinstance(message, StopPeer):
            bus.answer(sender, json.dumps({"type": "stopping"}))
            stop()
        else:
            bus.answer(sender, json.dumps({"type": "refused", "why": str(message)}))


def ask_daemon(
    endpoint: str, question: Question | StopPeer, *, timeout_s: float
) -> dict[str, object]:
    """Ask a daemon on this machine (blocking; for `status`, `top` and `stop`).

    Raises LinkError if there is no answer in time, or it is no JSON object.
    """
    context = zmq.Context(1)
    try:
        client = context.socket(zmq.DEALER)
        client.connect(endpoint)
        client.send(encode(question))
        if not client.poll(round(1000 * timeout_s)):
            raise LinkError(f"no answer from {endpoint} within {timeout_s} s")
        answer: object = json.loads(client.recv())
    except zmq.ZMQError as error:
        raise LinkError(f"{endpoint} cannot be asked: {error}") from error
    except ValueError as error:
        raise LinkError(f"{endpoint} did not answer with JSON: {error}") from error
    finally:
        context.destroy(linger=0)
    if not isinstance(answer, dict):
        raise LinkError(f"{endpoint} did not answer with a JSON object")
    return answer  # pyright: ignore
