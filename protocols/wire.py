"""Bytes to messages and back: size limit first, then msgpack with its limits, then exact types.

One table says what each type looks like. No coercion, no unknown or missing fields, no unbounded
collection. Whatever is wrong raises WireError: the sender's bytes, never our bug.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast

import msgpack

from protocols import entries as e
from protocols import ids
from protocols import messages as m

CONTROL_BYTES_MAX = 1 << 20
"""A control message. The Run entry of a model with 5,000 parameters takes a third of it."""
CHUNK_HEADER_BYTES_MAX = 64 << 10
"""A result's header names every contributor: about 100 bytes each, PEERS_MAX of them."""
CHUNK_BYTES_MAX = 1 << 20
"""Payload of one chunk."""
PEERS_MAX = 512
ENTRIES_MAX = 64
"""Log entries in one Append."""
SEATS_MAX = 4096
"""Peers that ever took part in a run."""
FRAGMENTS_MAX = 1024
TENSORS_MAX = 10_000
DIMENSIONS_MAX = 8
NAME_MAX = 128
TEXT_MAX = 1024
JSON_MAX = 64 << 10

LIST_MAX = max(PEERS_MAX + 1, ENTRIES_MAX, SEATS_MAX, FRAGMENTS_MAX, TENSORS_MAX)
UNPACK_LIMITS: Mapping[str, Any] = {
    "use_list": True,
    # msgpack makes room for as many items as a header claims, at every depth.
    "max_array_len": LIST_MAX,
    "max_map_len": 0,
    "max_bin_len": 0,
    "max_ext_len": 0,
}

_SHORT = reprlib.Repr()  # A whole repr of nested lists would exceed Python's stack.
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxstring = 2, 3, 60

Check = Callable[[object], Any]


class WireError(ValueError):
    """The sender's bytes are no message of ours; the text says which field."""


def encode(message: m.Message) -> bytes:
    """One message as msgpack: [type code, field, ...]."""
    packed = cast(bytes, msgpack.packb([CODES[type(message)], *_plain_fields(message)]))
    assert len(packed) <= CONTROL_BYTES_MAX, f"{type(message).__name__} is too long for the wire"
    return packed


def decode(payload: bytes | bytearray | memoryview, *, size_max: int) -> m.Message:
    """The inverse of `encode`. Raises WireError; reads at most `size_max` bytes."""
    raw = _unpack(payload, size_max)
    if not raw or type(raw[0]) is not int or raw[0] not in MESSAGES:
        raise WireError(f"unknown message type {_short(raw[:1])}")
    return _struct(MESSAGES[raw[0]])(raw[1:])


def encode_entry(entry: e.LogEntry) -> bytes:
    """One log entry, as it stands in an Append: what the hash of a lineage is taken of."""
    return cast(bytes, msgpack.packb(_plain(entry)))


def one_line(text: str) -> str:
    """What of a text may travel as a reason: one printable line of at most TEXT_MAX characters.

    Texts of exceptions and of users pass through here, or the receiver would blame us for them.
    """
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in line[:TEXT_MAX])


def _unpack(payload: bytes | bytearray | memoryview, size_max: int) -> list[object]:
    if len(payload) > size_max:
        raise WireError(f"{len(payload)} bytes, at most {size_max} are allowed")
    try:
        raw = cast(object, msgpack.unpackb(payload, **UNPACK_LIMITS))
    except (ValueError, RecursionError) as error:  # Both mean: the sender's bytes.
        raise WireError("not msgpack") from error
    if not isinstance(raw, list):
        raise WireError("not a message")
    return cast(list[object], raw)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in cast(tuple[object, ...], value)]
    if type(value) in ENTRY_CODES:
        return [ENTRY_CODES[type(value)], *_plain_fields(value)]
    if hasattr(value, "__dataclass_fields__"):
        return _plain_fields(value)
    return value


def _plain_fields(value: Any) -> list[object]:
    return [_plain(getattr(value, field.name)) for field in fields(value)]


def _integer(limit: int) -> Check:
    def check(raw: object) -> int:
        if type(raw) is not int or not 0 <= raw < limit:
            raise WireError(f"expected an integer in [0, {limit}), got {_short(raw)}")
        return raw

    return check


def _text(limit: int, *, printable: bool = True) -> Check:
    """Most texts are shown to people: no line breaks, no escape sequences."""

    def check(raw: object) -> str:
        if type(raw) is not str or len(raw) > limit or (printable and not raw.isprintable()):
            raise WireError(f"expected a text of at most {limit} characters, got {_short(raw)}")
        return raw

    return check


def _many(item: Check, limit: int) -> Check:
    def check(raw: object) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise WireError(f"expected a list, got {_short(raw)}")
        items = cast(list[object], raw)
        if len(items) > limit:
            raise WireError(f"{len(items)} items, at most {limit} are allowed")
        return tuple(item(one) for one in items)

    return check


def _struct(cls: type) -> Check:
    def check(raw: object) -> Any:
        checks = SHAPES[cls]
        if not isinstance(raw, list):
            raise WireError(f"{cls.__name__}: expected fields, got {_short(raw)}")
        values = cast(list[object], raw)
        if len(values) != len(checks):
            raise WireError(f"{cls.__name__} has {len(checks)} fields, got {len(values)}")
        made: list[object] = []
        for (name, field_check), value in zip(checks.items(), values, strict=True):
            try:
                made.append(field_check(value))
            except WireError as error:
                raise WireError(f"{cls.__name__}.{name}: {error}") from None
        return cls(*made)

    return check


def _entry(raw: object) -> Any:
    if not isinstance(raw, list) or not raw:
        raise WireError("expected a log entry")
    code, *rest = cast(list[object], raw)
    if type(code) is not int or code not in ENTRIES:
        raise WireError(f"unknown entry type {_short(code)}")
    return _struct(ENTRIES[code])(rest)


def _peer_id(raw: object) -> ids.PeerId:
    if type(raw) is not str or not 1 <= len(raw) <= NAME_MAX or not raw.isprintable():
        raise WireError(f"expected a peer id, got {_short(raw)}")
    return ids.PeerId(raw)


def _hex(digits: int) -> Check:
    def check(raw: object) -> str:
        if type(raw) is not str or len(raw) not in (0, digits) or raw.strip("0123456789abcdef"):
            raise WireError(f"expected a digest of {digits} hex digits or none, got {_short(raw)}")
        return raw

    return check


def _short(raw: object) -> str:
    return _SHORT.repr(raw)


_u16, _u32, _u63, _u64 = (_integer(1 << bits) for bits in (16, 32, 63, 64))
_name, _words = _text(NAME_MAX), _text(TEXT_MAX)
_json = _text(JSON_MAX, printable=False)
_digest, _sha256 = _hex(32), _hex(64)
_peers = _many(_peer_id, PEERS_MAX)
_stamp, _info, _contributor = _struct(ids.Stamp), _struct(ids.PeerInfo), _struct(ids.Contributor)
_contributors = _many(_contributor, PEERS_MAX)
_versions = _many(_struct(ids.Version), FRAGMENTS_MAX)
_round = {"fragment": _u16, "group": _u16, "round": _u32, "attempt": _u16}
_extent = {"offset_bytes": _u63, "total_bytes": _u63}

SHAPES: Mapping[type, Mapping[str, Check]] = {
    ids.Stamp: {"run": _u64, "lineage": _u64, "view": _u32, **_round},
    ids.PeerInfo: {
        "peer": _peer_id,
        "name": _name,
        "incarnation": _u32,
        "address": _name,
        "slot": _u32,
    },
    ids.Contributor: {"peer": _peer_id, "tokens": _u63, "steps": _u32, "manifest": _digest},
    ids.FragmentParts: {"owners": _peers, "borders": _many(_u63, PEERS_MAX + 1)},
    ids.Version: {"fragment": _u16, "round": _u32, "state_digest": _digest},
    ids.TensorSpec: {
        "fragment": _u16,
        "name": _name,
        "shape": _many(_u63, DIMENSIONS_MAX),
        "offset": _u63,
    },
    e.LogEntry: {"index": _u63, "term": _u32, "body": _entry},
    e.Run: {
        "run": _u64,
        "run_json": _json,
        "corpus_digest": _sha256,
        "peers_min": _u32,
        "outer_steps": _u32,
        "grain": _u32,
        "layout": _many(_struct(ids.TensorSpec), TENSORS_MAX),
        "fragment_elements": _many(_u63, FRAGMENTS_MAX),
    },
    e.Restore: {
        "parent_lineage": _u64,
        "versions": _versions,
        "inner_step": _u63,
        "tokens": _u63,
        "seats": _many(_info, SEATS_MAX),
        "salt": _u64,
    },
    e.Cut: {"info": _info, "donor": _peer_id, "versions": _versions},
    e.Member: {"info": _info},
    e.Left: {"peer": _peer_id, "why": _words},
    e.Lost: {"peer": _peer_id, "why": _words},
    e.View: {
        "view": _u32,
        "roster": _peers,
        "parts": _many(_struct(ids.FragmentParts), FRAGMENTS_MAX),
        "first_round": _many(_u32, FRAGMENTS_MAX),
    },
    e.Attempt: {"view": _u32, **_round, "roster": _peers, "owners": _peers, "why": _words},
    e.Commit: {
        "view": _u32,
        **_round,
        "contributors": _contributors,
        "borders": _many(_u63, PEERS_MAX + 1),
        "result_digest": _digest,
        "previous_state_digest": _digest,
    },
    m.Hello: {
        "protocol": _u32,
        "run": _u64,
        "peer": _peer_id,
        "name": _name,
        "incarnation": _u32,
        "address": _name,
        "leader": _name,
    },
    m.BulkHello: {"protocol": _u32, "run": _u64, "peer": _peer_id, "incarnation": _u32},
    m.Refused: {"why": _words},
    m.Heartbeat: {"index": _u63},
    m.ReadLog: {"index": _u63},
    m.Append: {"run": _u64, "entries": _many(_struct(e.LogEntry), ENTRIES_MAX)},
    m.Join: {"name": _name, "incarnation": _u32, "address": _name, "why": _words},
    m.CaughtUp: {"index": _u63},
    m.Able: {},
    m.Unable: {"why": _words},
    m.Ready: {"stamp": _stamp, "contributor": _contributor},
    m.Hold: {"stamp": _stamp, "result_digest": _digest},
    m.Have: {"fragment": _u16, "round": _u32, "state_digest": _digest},
    m.Waiting: {"stamp": _stamp, "peers": _peers},
    m.Fetch: {"stamp": _stamp, "part": _u16},
    m.FetchState: {"index": _u63},
    m.NoState: {"index": _u63},
    m.Leave: {"why": _words},
    m.ContributionChunk: {
        "stamp": _stamp,
        "part": _u16,
        "contributor": _contributor,
        **_extent,
    },
    m.ResultChunk: {
        "stamp": _stamp,
        "part": _u16,
        "contributors": _contributors,
        "digest": _digest,
        **_extent,
    },
    m.StateChunk: {
        "run": _u64,
        "lineage": _u64,
        "cut_index": _u63,
        "fragment": _u16,
        "round": _u32,
        **_extent,
    },
}
"""Every type that may stand on the wire: its fields in order, each with its check."""

MESSAGES: Mapping[int, type] = {
    1: m.Hello,
    2: m.BulkHello,
    3: m.Refused,
    4: m.Heartbeat,
    5: m.ReadLog,
    6: m.Append,
    7: m.Join,
    8: m.CaughtUp,
    9: m.Able,
    10: m.Unable,
    11: m.Ready,
    12: m.Hold,
    13: m.Have,
    14: m.Waiting,
    15: m.Fetch,
    16: m.Leave,
    17: m.FetchState,
    18: m.NoState,
    32: m.ContributionChunk,
    33: m.ResultChunk,
    34: m.StateChunk,
}
ENTRIES: Mapping[int, type] = {
    1: e.Run,
    2: e.Restore,
    3: e.Cut,
    4: e.Member,
    5: e.Left,
    6: e.Lost,
    7: e.View,
    8: e.Attempt,
    9: e.Commit,
}
CODES: Mapping[type, int] = {cls: code for code, cls in MESSAGES.items()}
ENTRY_CODES: Mapping[type, int] = {cls: code for code, cls in ENTRIES.items()}
