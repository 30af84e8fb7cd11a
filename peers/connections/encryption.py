"""Encrypts and decrypts the chunks of bulk connections with AES-256-GCM.

A frame (frames.py) travels as records, each encrypted by itself: the head, then the payload in
records of RECORD_BYTES. The two lengths before it are not encrypted, but authenticated with every
record of the frame. Records that are changed, missing or in another order do not decrypt. The keys
come from a secret that the control connection carries; Tickets has those that are not used yet.
Must NOT touch a socket, nor know the other side.
"""

import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from peers.connections.control import Link
from peers.connections.frames import PREFIX, STAGE_BYTES, Sink, decode_head, grown, unpack_prefix
from protocols.messages import Chunk
from protocols.types import SECRET_BYTES, TICKET_BYTES
from protocols.wire import WireError, codec

TAG_BYTES = 16
KEY_BYTES = 32
NONCE_BYTES = 12
RECORD_BYTES = 256 << 10
"""Bytes of a record: it stays in the L2 cache between the cipher and the kernel."""
RECORDS_PER_KEY = 1 << 16
"""Records until both sides change to the next key: 2^34 bytes; GCM allows 2^36 with one key."""
assert RECORDS_PER_KEY * RECORD_BYTES <= 1 << 34


@dataclass(frozen=True, slots=True)
class Keys:
    """The key material of one bulk connection, derived from the secret."""

    ticket: bytes
    """The first bytes of the connection, unencrypted: they name the secret, and are valid once."""
    dialling: bytes
    """Key material of the direction from the side that dialled; `accepting`: of the other one."""
    accepting: bytes

    @staticmethod
    def of(secret: bytes) -> "Keys":
        return Keys(
            _derived(secret, "ticket", TICKET_BYTES),
            _derived(secret, "dialling", KEY_BYTES),
            _derived(secret, "accepting", KEY_BYTES),
        )


class Tickets:
    """Secrets for peers that dialled this one, each for one bulk connection: at most one
    open secret for each control connection."""

    def __init__(self) -> None:
        self._given: dict[Link, tuple[bytes, Keys]] = {}
        self._whose: dict[bytes, Link] = {}

    def __len__(self) -> int:
        return len(self._given)

    def give(self, control: Link) -> bytes:
        """The secret for the next bulk connection; the same one until that connection is open."""
        if control not in self._given:
            secret = secrets.token_bytes(SECRET_BYTES)
            keys = Keys.of(secret)
            self._given[control] = secret, keys
            self._whose[keys.ticket] = control
        return self._given[control][0]

    def take(self, ticket: bytes) -> tuple[Link, Keys] | None:
        """The control connection and the keys of this ticket, once; None if it is unknown."""
        control = self._whose.pop(ticket, None)
        if control is None:
            return None
        _, keys = self._given.pop(control)
        return control, keys

    def void(self, control: Link) -> None:
        """The control connection has ended: drop its secret."""
        _, keys = self._given.pop(control, (b"", None))
        if keys is not None:
            del self._whose[keys.ticket]


class Seal:
    """The cipher of one direction of a connection: a key for so many records, and a nonce for each
    record."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_derived(secret, "key", KEY_BYTES))
        self._count = 0

    def seal(self, data: bytes | memoryview, beside: memoryview, out: memoryview) -> None:
        """Encrypt `data` into `out`, which is TAG_BYTES longer. `beside` is authenticated, not
        encrypted."""
        self._cipher.encrypt_into(self._nonce(), data, beside, out)

    def decrypt(self, sealed: memoryview, beside: memoryview, out: memoryview) -> None:
        """Decrypt `sealed` into `out`. Raises WireError if it is not authentic; `out` is undefined
        then."""
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, beside, out)
        except InvalidTag as error:
            raise WireError("a sealed record does not open: it is not what was sent") from error

    def _nonce(self) -> bytes:
        """The nonce of the next record. It goes on counting when the key changes, so it never
        repeats."""
        number = self._count
        self._count += 1
        if number and number % RECORDS_PER_KEY == 0:
            self._secret = _derived(self._secret, "next", KEY_BYTES)
            self._cipher = AESGCM(_derived(self._secret, "key", KEY_BYTES))
        return number.to_bytes(NONCE_BYTES, "big")


class SealedWriter:
    """Encrypts each record when the one before it is sent."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._buffer = memoryview(b"")
        self._start = self._stop = 0
        """The range of the buffer that is encrypted and not sent."""
        self._data = (0, 0)
        """The range of the buffer with the payload of the last record; its tag follows."""
        self._prefix = memoryview(b"")
        self._payload = memoryview(b"")
        """The payload that is not encrypted yet."""

    def begin_frame(self, chunk: Chunk, payload: memoryview) -> None:
        head = codec.encode(chunk)
        payload = payload.cast("B")
        self._prefix = memoryview(PREFIX.pack(len(head), payload.nbytes))
        body = PREFIX.size + len(head) + TAG_BYTES
        needed = body + min(payload.nbytes, RECORD_BYTES) + TAG_BYTES
        if len(self._buffer) < needed:
            self._buffer = memoryview(bytearray(needed))
        self._buffer[: PREFIX.size] = self._prefix
        self._seal.seal(head, self._prefix, self._buffer[PREFIX.size : body])
        self._payload = payload
        self._start = 0
        self._stop = self._seal_next(body)

    def pending(self) -> list[memoryview]:
        if self._start == self._stop:
            self._start, self._stop = 0, self._seal_next(0)
        return [self._buffer[self._start : self._stop]] if self._stop else []

    def mark_sent(self, count: int) -> int:
        before, self._start = self._start, self._start + count
        first, last = self._data
        return max(min(self._start, last) - max(before, first), 0)

    def _seal_next(self, start: int) -> int:
        """Encrypt the next record of the payload into the buffer; returns its end."""
        data, self._payload = self._payload[:RECORD_BYTES], self._payload[RECORD_BYTES:]
        if not self._payload:
            self._payload = memoryview(b"")  # An empty view of an array would keep it lent.
        if not data:
            return 0
        stop = start + len(data) + TAG_BYTES
        self._data = start, stop - TAG_BYTES
        self._seal.seal(data, self._prefix, self._buffer[start:stop])
        return stop


class SealedReader:
    """Decrypts each record into its place when all of it has arrived."""

    def __init__(self, sink: Sink, seal: Seal) -> None:
        self._sink = sink
        self._seal = seal
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._staged = 0
        self._prefix = memoryview(bytearray(PREFIX.size))
        self._chunk: Chunk | None = None
        self._place: memoryview | None = None
        self._record = memoryview(b"")
        """The memory for the present record and its tag."""
        self._filled = 0
        self._dropped = memoryview(b"")
        """A buffer into which unwanted records are decrypted."""
        self._missing = 0
        """Bytes of payload that are not decrypted yet; if there are any, the stage is empty."""

    def room(self) -> list[memoryview]:
        if not self._missing:
            return [self._stage[self._staged :]]
        rest = self._record[self._filled : self._record_bytes]
        return [rest] if self._missing > RECORD_BYTES else [rest, self._stage]

    def filled(self, count: int) -> None:
        if self._missing:
            taken = min(count, self._record_bytes - self._filled)
            self._filled += taken
            count -= taken
            self._take_record()
        self._staged += count
        used = 0
        while not self._missing and (head := self._take_head(used)):
            used += head
            taken = min(self._staged - used, self._record_bytes)
            self._record[:taken] = self._stage[used : used + taken]
            self._filled = taken
            used += taken
            self._take_record()
        left = self._staged - used
        if used and left:
            self._stage[:left] = bytes(self._stage[used : self._staged])
        self._staged = left

    @property
    def _record_bytes(self) -> int:
        """Bytes of the present record."""
        return min(self._missing, RECORD_BYTES) + TAG_BYTES

    def _take_head(self, start: int) -> int:
        """Decrypt the head of a frame; returns its number of bytes, 0 if more must come."""
        if self._staged - start < PREFIX.size:
            return 0
        head_bytes, payload_bytes = unpack_prefix(self._stage[start:])
        size = PREFIX.size + head_bytes + TAG_BYTES
        if size > len(self._stage):
            self._stage = grown(self._stage, self._staged, size)
        if start + size > self._staged:
            return 0
        self._prefix[:] = self._stage[start : start + PREFIX.size]
        head = memoryview(bytearray(head_bytes))
        self._seal.decrypt(self._stage[start + PREFIX.size : start + size], self._prefix, head)
        self._chunk = decode_head(head)
        self._missing, self._filled = payload_bytes, 0
        if len(self._record) < self._record_bytes:
            self._record = memoryview(bytearray(self._record_bytes))
        self._place = self._sink.began(self._chunk, payload_bytes)
        return size

    def _take_record(self) -> None:
        """Decrypt the present record, if all of it has arrived."""
        sealed = self._record[: self._record_bytes]
        if self._filled < len(sealed):
            return
        size = len(sealed) - TAG_BYTES
        if self._place is None:
            if len(self._dropped) < size:
                self._dropped = memoryview(bytearray(size))
            out = self._dropped[:size]
        else:
            start = len(self._place) - self._missing
            out = self._place[start : start + size]
        self._seal.decrypt(sealed, self._prefix, out)
        self._filled = 0
        self._missing -= size
        if not self._missing:
            assert self._chunk is not None
            self._sink.ended(self._chunk)
            self._chunk, self._place = None, None


def _derived(secret: bytes, what: str, size: int) -> bytes:
    info = b"lowcomm bulk 1 " + what.encode()
    return HKDF(hashes.SHA256(), size, salt=None, info=info).derive(secret)
