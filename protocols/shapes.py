"""What each type looks like on the wire: its fields in order, each with its check.

Exact types: no coercion, no unknown or missing fields, no unbounded collection. Must NOT encode or
decode bytes (wire.py).
"""

import reprlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from protocols import entries as e
from protocols import ids
from protocols import image as i
from protocols import messages as m
from protocols.codes import ENTRIES, REPORTS
from protocols.limits import (
    DIMENSIONS_MAX,
    ENTRIES_MAX,
    FRAGMENTS_MAX,
    JSON_MAX,
    LIST_MAX,
    NAME_MAX,
    PEERS_MAX,
    SEATS_MAX,
    TENSORS_MAX,
    TEXT_MAX,
)

_SHORT = reprlib.Repr()  # A whole repr of nested lists would exceed Python's stack.
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxstring = 2, 3, 60

Check = Callable[[object], Any]


class WireError(ValueError):
    """The sender's bytes are no message of ours; the text says which field."""


def _integer(limit: int) -> Check:
    def check(raw: object) -> int:
        if type(raw) is not int or not 0 <= raw < limit:
            raise WireError(f"expected an integer in [0, {limit}), got {short(raw)}")
        return raw

    return check


def _text(limit: int, *, printable: bool = True) -> Check:
    """Most texts are shown to people: no line breaks, no escape sequences."""

    def check(raw: object) -> str:
        if type(raw) is not str or len(raw) > limit or (printable and not raw.isprintable()):
            raise WireError(f"expected a text of at most {limit} characters, got {short(raw)}")
        return raw

    return check


def _many(item: Check, limit: int) -> Check:
    def check(raw: object) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise WireError(f"expected a list, got {short(raw)}")
        items = cast(list[object], raw)
        if len(items) > limit:
            raise WireError(f"{len(items)} items, at most {limit} are allowed")
        return tuple(item(one) for one in items)

    return check


def struct(cls: type) -> Check:
    """The check of one type: raises WireError, or returns an instance."""

    def check(raw: object) -> Any:
        checks = SHAPES[cls]
        if not isinstance(raw, list):
            raise WireError(f"{cls.__name__}: expected fields, got {short(raw)}")
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
        raise WireError(f"unknown entry type {short(code)}")
    return struct(ENTRIES[code])(rest)


def _report(raw: object) -> Any:
    if not isinstance(raw, list) or not raw:
        raise WireError("expected a report")
    code, *rest = cast(list[object], raw)
    if type(code) is not int or code not in REPORTS:
        raise WireError(f"unknown report type {short(code)}")
    return struct(REPORTS[code])(rest)


def _only(cls: type) -> Check:
    """A log entry of one kind."""

    def check(raw: object) -> Any:
        made = _entry(raw)
        if type(made) is not cls:
            raise WireError(f"expected a {cls.__name__}")
        return made

    return check


def _peer_id(raw: object) -> ids.PeerId:
    if type(raw) is not str or not 1 <= len(raw) <= NAME_MAX or not raw.isprintable():
        raise WireError(f"expected a peer id, got {short(raw)}")
    return ids.PeerId(raw)


def _hex(digits: int) -> Check:
    def check(raw: object) -> str:
        if type(raw) is not str or len(raw) not in (0, digits) or raw.strip("0123456789abcdef"):
            raise WireError(f"expected a digest of {digits} hex digits or none, got {short(raw)}")
        return raw

    return check


def _flag(raw: object) -> bool:
    if type(raw) is not bool:
        raise WireError(f"expected true or false, got {short(raw)}")
    return raw


def _piece(raw: object) -> bytes:
    if type(raw) is not bytes or not raw:
        raise WireError(f"expected bytes, got {short(raw)}")
    return raw


def _optional(item: Check) -> Check:
    def check(raw: object) -> Any:
        return None if raw is None else item(raw)

    return check


def short(raw: object) -> str:
    """For an error's text."""
    return _SHORT.repr(raw)


_u16, _u32, _u63, _u64 = (_integer(1 << bits) for bits in (16, 32, 63, 64))
_name, _words = _text(NAME_MAX), _text(TEXT_MAX)
_json = _text(JSON_MAX, printable=False)
_digest, _sha256 = _hex(32), _hex(64)
_peers = _many(_peer_id, PEERS_MAX)
_stamp, _info, _contributor = struct(ids.Stamp), struct(ids.PeerInfo), struct(ids.Contributor)
_contributors = _many(_contributor, PEERS_MAX)
_versions = _many(struct(ids.Version), FRAGMENTS_MAX)
_forks = _many(_u64, LIST_MAX)
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
        "layout": _many(struct(ids.TensorSpec), TENSORS_MAX),
        "fragment_elements": _many(_u63, FRAGMENTS_MAX),
        "founder": _peer_id,
    },
    e.Elected: {"peer": _peer_id},
    e.Voter: {"peer": _peer_id, "votes": _flag, "why": _words},
    e.Restore: {
        "parent_lineage": _u64,
        "versions": _versions,
        "inner_step": _u63,
        "tokens": _u63,
        "voters": _peers,
        "fork": _u64,
        "lonely": _flag,
        "salt": _u64,
    },
    e.Cut: {"info": _info, "donor": _peer_id, "versions": _versions},
    e.Member: {"info": _info},
    e.Left: {"peer": _peer_id, "why": _words},
    e.Lost: {"peer": _peer_id, "why": _words},
    e.View: {
        "view": _u32,
        "roster": _peers,
        "parts": _many(struct(ids.FragmentParts), FRAGMENTS_MAX),
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
    e.Witness: {"info": _info},
    e.Dropped: {"peer": _peer_id, "forks": _forks, "tokens": _u63},
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
    m.Seek: {},
    m.Leads: {"address": _name},
    m.Vote: {
        "term": _u32,
        "last_index": _u63,
        "last_term": _u32,
        "pre": _flag,
        "urgent": _flag,
    },
    m.Voted: {"term": _u32, "granted": _flag, "pre": _flag},
    m.Append: {
        "run": _u64,
        "term": _u32,
        "previous_index": _u63,
        "previous_term": _u32,
        "entries": _many(struct(e.LogEntry), ENTRIES_MAX),
        "commit_index": _u63,
    },
    m.Appended: {"term": _u32, "matches": _flag, "index": _u63},
    m.Install: {
        "run": _u64,
        "term": _u32,
        "index": _u63,
        "index_term": _u32,
        **_extent,
        "piece": _piece,
    },
    m.HandOver: {"term": _u32},
    m.Told: {"term": _u32},
    m.Kept: {"lineage": _u64, "versions": _versions, "inner_step": _u63, "tokens": _u63},
    m.Durable: {"works": _flag, "why": _words},
    m.Join: {
        "name": _name,
        "incarnation": _u32,
        "address": _name,
        "why": _words,
        "against": _name,
    },
    m.CaughtUp: {"index": _u63, "name": _name, "incarnation": _u32, "address": _name},
    m.Able: {},
    m.Unable: {"why": _words},
    m.Ready: {"stamp": _stamp, "contributor": _contributor},
    m.Hold: {"stamp": _stamp, "result_digest": _digest},
    m.Have: {"lineage": _u64, "fragment": _u16, "round": _u32, "state_digest": _digest},
    m.Waiting: {"stamp": _stamp, "peers": _peers},
    m.Fetch: {"stamp": _stamp, "part": _u16},
    m.FetchState: {"index": _u63},
    m.NoState: {"index": _u63},
    m.Leave: {"why": _words},
    m.OnBranch: {
        "forks": _forks,
        "tokens": _u63,
        "leads": _flag,
        "final": _flag,
        "leader": _name,
    },
    m.Witnessing: {"name": _name, "incarnation": _u32, "address": _name},
    m.Here: {},
    m.Relay: {"term": _u32, "learners": _peers, "index": _u63},
    m.Via: {"term": _u32, "relay": _name},
    m.Relayed: {"append": struct(m.Append)},
    m.Report: {"peer": _peer_id, "incarnation": _u32, "message": _report},
    m.Passed: {"term": _u32, "reports": _many(struct(m.Report), LIST_MAX)},
    m.Hurry: {"stamp": _stamp},
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
    i.Granted: {"index": _u63, "cut": _only(e.Cut)},
    i.Losses: {"peer": _peer_id, "count": _u32},
    i.Returned: {"peer": _peer_id, "view": _u32},
    i.Branch: {"lineage": _u64, "rounds": _many(_u32, FRAGMENTS_MAX)},
    i.Image: {
        "index": _u63,
        "lineage": _u64,
        "branches": _many(struct(i.Branch), LIST_MAX),
        "run": _only(e.Run),
        "restored": _optional(_only(e.Restore)),
        "restored_index": _u63,
        "voters": _peers,
        "members": _many(_info, PEERS_MAX),
        "joiners": _many(_info, PEERS_MAX),
        "granted": _many(struct(i.Granted), PEERS_MAX),
        "views": _many(_only(e.View), ENTRIES_MAX),
        "attempts": _many(_only(e.Attempt), LIST_MAX),
        "commits": _many(_only(e.Commit), LIST_MAX),
        "seats": _many(_info, SEATS_MAX),
        "witnesses": _many(_info, SEATS_MAX),
        "forks": _forks,
        "rivals": _many(_info, SEATS_MAX),
        "returned": _many(struct(i.Returned), SEATS_MAX),
        "losses": _many(struct(i.Losses), SEATS_MAX),
        "inner_step": _u63,
        "tokens": _u63,
    },
}
"""Every type that may stand on the wire: its fields in order, each with its check."""
