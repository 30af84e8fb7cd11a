"""What each type looks like on the wire: its fields in order, each with its check.

Exact types: no coercion, no unknown or missing fields, no unbounded collection. Must NOT encode or
decode bytes (wire.py).
"""

from collections.abc import Mapping
from typing import Any, cast

from protocols import entries as e
from protocols import ids
from protocols import image as i
from protocols import messages as m
from protocols.checks import Check, WireError, short
from protocols.checks import flag as _flag
from protocols.checks import hexadecimal as _hex
from protocols.checks import integer as _integer
from protocols.checks import many as _many
from protocols.checks import optional as _optional
from protocols.checks import peer_id as _peer_id
from protocols.checks import piece as _piece
from protocols.checks import words_of as _text
from protocols.course import Course
from protocols.limits import (
    DIMENSIONS_MAX,
    ENTRIES_MAX,
    FRAGMENTS_MAX,
    HELD_STEPS_MAX,
    JSON_MAX,
    LIST_MAX,
    NAME_MAX,
    PEERS_MAX,
    PROVIDERS_MAX,
    SEATS_MAX,
    TENSORS_MAX,
    TEXT_MAX,
)


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


def _only(cls: type) -> Check:
    """A log entry of one kind."""

    def check(raw: object) -> Any:
        made = _entry(raw)
        if type(made) is not cls:
            raise WireError(f"expected a {cls.__name__}")
        return made

    return check


_u16, _u32, _u63, _u64 = (_integer(1 << bits) for bits in (16, 32, 63, 64))
_name, _words = _text(NAME_MAX), _text(TEXT_MAX)
_json = _text(JSON_MAX, printable=False)
_digest, _sha256 = _hex(32), _hex(64)
_peers = _many(_peer_id, PEERS_MAX)
_stamp, _info, _contributor = struct(ids.Stamp), struct(ids.PeerInfo), struct(ids.Contributor)
_contributors = _many(_contributor, PEERS_MAX)
_versions = _many(struct(ids.Version), FRAGMENTS_MAX)
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
    ids.StepPayloads: {"step": _u32, "peers": _peers},
    ids.Provider: {"step": _u32, "peer": _peer_id, "holder": _peer_id},
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
        "commit_every_steps": _u32,
        "snapshot_every_steps": _u32,
    },
    e.Elected: {"peer": _peer_id},
    e.Voter: {"peer": _peer_id, "votes": _flag, "why": _words},
    e.Restore: {
        "parent_lineage": _u64,
        "versions": _versions,
        "inner_step": _u63,
        "tokens": _u63,
        "seats": _many(_info, SEATS_MAX),
        "voters": _peers,
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
    e.StepCommit: {"view": _u32, "upto_step": _u32, "state_digest": _digest},
    e.Halt: {"view": _u32, "without": _peers, "why": _words},
    e.Close: {
        "view": _u32,
        "last_step": _u32,
        "providers": _many(struct(ids.Provider), PROVIDERS_MAX),
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
    m.CaughtUp: {"index": _u63},
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
    m.Stepped: {"stamp": _stamp, "state_digest": _digest},
    m.Stopped: {
        "stamp": _stamp,
        "halted": _u63,
        "held": _many(struct(ids.StepPayloads), HELD_STEPS_MAX),
    },
    m.FetchSteps: {"lineage": _u64, "first": _u32, "last": _u32, "peers": _peers},
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
        "views": _many(_only(e.View), LIST_MAX),
        "attempts": _many(_only(e.Attempt), LIST_MAX),
        "commits": _many(_only(e.Commit), LIST_MAX),
        "seats": _many(_info, SEATS_MAX),
        "returned": _many(struct(i.Returned), SEATS_MAX),
        "losses": _many(struct(i.Losses), SEATS_MAX),
        "inner_step": _u63,
        "tokens": _u63,
        "course": struct(Course),
    },
    Course: {
        "step": _u32,
        "digest": _digest,
        "view": _u32,
        "base": _u32,
        "base_digest": _digest,
        "halted": _u63,
        "close": _optional(_only(e.Close)),
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
    19: m.Vote,
    20: m.Voted,
    21: m.Appended,
    22: m.Install,
    23: m.HandOver,
    24: m.Told,
    25: m.Kept,
    26: m.Durable,
    27: m.Seek,
    28: m.Leads,
    32: m.ContributionChunk,
    33: m.ResultChunk,
    34: m.StateChunk,
    40: m.Stepped,
    41: m.Stopped,
    42: m.FetchSteps,
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
    10: e.Elected,
    11: e.Voter,
    20: e.StepCommit,
    21: e.Halt,
    22: e.Close,
}
CODES: Mapping[type, int] = {cls: code for code, cls in MESSAGES.items()}
ENTRY_CODES: Mapping[type, int] = {cls: code for code, cls in ENTRIES.items()}
