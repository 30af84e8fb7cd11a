"""Sealed chunks: AES-256-GCM between two that have agreed on a secret elsewhere.

A frame (frames.py) travels as records, each one sealed by itself: the head, then its payload in
pieces of RECORD_BYTES. The two lengths before it are in the clear, and every record of the frame
seals them too. What is not exactly what was sent, in that order and all of it, does not open. Must
NOT touch a socket, nor know who the other side is.
"""

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from peers.connections.frames import PREFIX, STAGE_BYTES, Sink, decode_head, grown, unpack_prefix
from protocols.messages.peer import Chunk
from protocols.types.limits import TICKET_BYTES
from protocols.wire import codec
from protocols.wire.validators import WireError

TAG_BYTES = 16
KEY_BYTES = 32
NONCE_BYTES = 12
RECORD_BYTES = 256 << 10
"""Sealed at once: it stays in the L2 cache between the cipher and the kernel."""
RECORDS_PER_KEY = 1 << 16
"""Then both go on with the next key: after 2^34 bytes, and GCM takes 2^36 with one key."""
assert RECORDS_PER_KEY * RECORD_BYTES <= 1 << 34


@dataclass(frozen=True, slots=True)
class Keys:
    """Of one bulk connection."""

    ticket: bytes
    """What the connection begins with, in the clear: it names the secret, and is good for one."""
    dialling: bytes
    """What the key is made of with which the side seals that dialled."""
    accepting: bytes

    @staticmethod
    def of(secret: bytes) -> "Keys":
        return Keys(
            _derived(secret, "ticket", TICKET_BYTES),
            _derived(secret, "dialling", KEY_BYTES),
            _derived(secret, "accepting", KEY_BYTES),
        )


class Seal:
    """One direction of one connection: a key for so many records, and a number for each."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_derived(secret, "key", KEY_BYTES))
        self._count = 0

    def seal(self, data: bytes | memoryview, beside: memoryview, out: memoryview) -> None:
        """`out`: as long as the data and TAG_BYTES. `beside` is not in it, and sealed too."""
        self._cipher.encrypt_into(self._nonce(), data, beside, out)

    def open(self, sealed: memoryview, beside: memoryview, out: memoryview) -> None:
        """The inverse. Raises WireError; then `out` holds nobody knows what."""
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, beside, out)
        except InvalidTag as error:
            raise WireError("a sealed record does not open: it is not what was sent") from error

    def _nonce(self) -> bytes:
        """Of the next record. It goes on counting when the key changes: it never repeats."""
        number = self._count
        self._count += 1
        if number and number % RECORDS_PER_KEY == 0:
            self._secret = _derived(self._secret, "next", KEY_BYTES)
            self._cipher = AESGCM(_derived(self._secret, "key", KEY_BYTES))
        return number.to_bytes(NONCE_BYTES, "big")


class SealedWriter:
    """Seals a record when the one before it was sent."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._buffer = memoryview(b"")
        self._start = self._stop = 0
        """What of the buffer is sealed and not sent."""
        self._data = (0, 0)
        """Where in the buffer the payload of the last record is: its tag follows."""
        self._prefix = memoryview(b"")
        self._payload = memoryview(b"")
        """What is not sealed yet."""

    def begin(self, chunk: Chunk, payload: memoryview) -> None:
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

    def sent(self, count: int) -> int:
        before, self._start = self._start, self._start + count
        first, last = self._data
        return max(min(self._start, last) - max(before, first), 0)

    def _seal_next(self, start: int) -> int:
        """Seal the next record of the payload into the buffer; returns where it ends."""
        data, self._payload = self._payload[:RECORD_BYTES], self._payload[RECORD_BYTES:]
        if not self._payload:
            self._payload = memoryview(b"")  # An empty part of an array would keep it lent.
        if not data:
            return 0
        stop = start + len(data) + TAG_BYTES
        self._data = start, stop - TAG_BYTES
        self._seal.seal(data, self._prefix, self._buffer[start:stop])
        return stop


class SealedReader:
    """Opens a record into its place when all of it is here."""

    def __init__(self, sink: Sink, seal: Seal) -> None:
        self._sink = sink
        self._seal = seal
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._staged = 0
        self._prefix = memoryview(bytearray(PREFIX.size))
        self._chunk: Chunk | None = None
        self._place: memoryview | None = None
        self._record = memoryview(b"")
        """Where the record goes that is under way, with its tag."""
        self._filled = 0
        self._dropped = memoryview(b"")
        """Where what nobody wants is opened: a buffer of its own, for all of it."""
        self._missing = 0
        """Bytes of payload that are not opened yet; the stage is empty then."""

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
        """Of the record under way."""
        return min(self._missing, RECORD_BYTES) + TAG_BYTES

    def _take_head(self, start: int) -> int:
        """Open what stands before a payload; returns how many bytes, 0 when more must come."""
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
        self._seal.open(self._stage[start + PREFIX.size : start + size], self._prefix, head)
        self._chunk = decode_head(head)
        self._missing, self._filled = payload_bytes, 0
        if len(self._record) < self._record_bytes:
            self._record = memoryview(bytearray(self._record_bytes))
        self._place = self._sink.began(self._chunk, payload_bytes)
        return size

    def _take_record(self) -> None:
        """Open the record under way, if it is all here."""
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
        self._seal.open(sealed, self._prefix, out)
        self._filled = 0
        self._missing -= size
        if not self._missing:
            assert self._chunk is not None
            self._sink.ended(self._chunk)
            self._chunk, self._place = None, None


def _derived(secret: bytes, what: str, size: int) -> bytes:
    info = b"lowcomm bulk 1 " + what.encode()
    return HKDF(hashes.SHA256(), size, salt=None, info=info).derive(secret)
