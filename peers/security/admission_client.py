"""The joiner's side of admission: a node that the log does not know yet asks for admission.

It checks the other side's certificate first: otherwise it could be led into another run. Must NOT
keep anything on disk, nor take part in the run.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from peers.connections.control import HELLO_BYTES_MAX
from peers.connections.dialer import DIAL_TIMEOUT_S, FIRST_DIAL_S
from peers.connections.frames import PREFIX
from peers.security.certificates import untimely, unverified
from peers.sockets.address import parse_address
from peers.sockets.name_resolution import addresses_of
from protocols.messages import Admit, Admitted, Message, NotAdmitted
from protocols.types import ConfigError, RefusedError
from protocols.wire import WireError, codec

ANSWER_S = 20.0
"""Seconds for an answer: the run may have to elect a leader, and to commit the entry."""
AGAIN_S = 1.0
PATIENCE_S = 600.0
"""Seconds for which peers of the run may answer that it cannot be decided yet."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The peer that answered, and its answer."""

    address: str
    certificates: tuple[bytes, ...]
    """Its own certificate, and those of the voters (DER)."""


class _FailedError(OSError):
    """This try at this address has failed."""


class _ImpostorError(_FailedError):
    """The other side does not prove to be of the run."""


async def ask(
    addresses: Sequence[str],
    admit: Admit,
    *,
    is_ours: Callable[[bytes], bool],
    waits: Callable[[str], None] = lambda _: None,
) -> Admission:
    """Ask the addresses in turn until one admits this node. `is_ours(certificate)`: is
    this (DER) the certificate of a node of the run? `waits`: called with the reason if it takes
    longer, once for each reason.

    Raises RefusedError if the run refuses, or no peer of it answers.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    heard, told = False, ""
    while True:
        impostors, why = 0, ""
        for address in addresses:
            try:
                shown, answer = await _ask(address, admit, is_ours)
            except OSError as error:  # A TimeoutError is an OSError without a text.
                impostors += isinstance(error, _ImpostorError)
                reason = str(error) or "no answer in time"
                why = why or f"no peer of the run answers at {address}: {reason}"
                continue
            if isinstance(answer, Admitted):
                return Admission(address, (shown, *answer.certificates))
            if answer.final:
                raise RefusedError(f"refused by {address}: {answer.why}")
            heard, why = True, answer.why
        late = loop.time() - started > (PATIENCE_S if heard else FIRST_DIAL_S)
        if late or impostors == len(addresses):
            raise RefusedError(why)
        if why != told:
            waits(why)
        told = why
        await asyncio.sleep(AGAIN_S)


async def _ask(
    address: str, admit: Admit, is_ours: Callable[[bytes], bool]
) -> tuple[bytes, Admitted | NotAdmitted]:
    """One request on one connection; returns the certificate there too. Raises OSError."""
    reader, writer = await _connect(address)
    try:
        shown = cast(bytes | None, writer.get_extra_info("ssl_object").getpeercert(True))
        if not shown or not is_ours(shown):
            raise _ImpostorError("its certificate is not of the run that the token names")
        if why := untimely(shown):
            raise _ImpostorError(f"its certificate does not count here: {why}")
        head = codec.encode(admit)
        writer.write(PREFIX.pack(len(head), 0) + head)
        async with asyncio.timeout(ANSWER_S):
            answer = await _read(reader)
    finally:
        writer.transport.abort()
    if isinstance(answer, Admitted | NotAdmitted):
        return shown, answer
    raise _FailedError("it does not speak our protocol")


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with the first address of the name that answers. Raises OSError."""
    try:
        host, port = parse_address(address, key="address")
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            hosts = await addresses_of(host, port)
    except (ConfigError, UnicodeError) as error:
        raise _FailedError(str(error)) from error
    failure: OSError = _FailedError(f"{host} has no address")
    for each in hosts:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                return await asyncio.open_connection(each, port, ssl=unverified())
        except OSError as error:  # A TimeoutError is an OSError.
            failure = error
    raise failure


async def _read(reader: asyncio.StreamReader) -> Message:
    """Raises OSError."""
    try:
        head, payload = PREFIX.unpack(await reader.readexactly(PREFIX.size))
        if payload or head > HELLO_BYTES_MAX:
            raise _FailedError("it does not speak our protocol")
        return codec.decode(await reader.readexactly(head), size_max=HELLO_BYTES_MAX)
    except EOFError as error:
        raise _FailedError("it closed the connection") from error
    except WireError as error:
        raise _FailedError("it does not speak our protocol") from error
