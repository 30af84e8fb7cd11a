"""The schema of each type on the wire: its fields in order, each with its check.

Types are exact: no coercion, no unknown or missing field, no unbounded collection. Must NOT encode
or decode bytes (codec.py).
"""

from collections.abc import Mapping
from typing import Any, cast

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages import snapshot as i
from protocols.messages import transfer as t
from protocols.messages.raft import Acknowledgement
from protocols.messages.step_progress import StepProgress
from protocols.types import ids
from protocols.types import sample_ranges as s
from protocols.types.limits import (
    BALLOTS_MAX,
    CERTIFICATE_BYTES_MAX,
    CORPUS_MARKS_BYTES_MAX,
    DONORS_MAX,
    ENTRIES_MAX,
    FRAGMENTS_MAX,
    HELD_STEPS_MAX,
    JSON_MAX,
    LAYOUT_BYTES_MAX,
    LEAF_BYTES,
    LEAVES_MAX,
    LIST_MAX,
    MANDATE_MAX,
    NAME_MAX,
    PEERS_MAX,
    PIECE_BYTES_MAX,
    PROVIDERS_MAX,
    SAMPLE_BLOCKS_MAX,
    SAMPLE_PARTS_MAX,
    SEATS_MAX,
    SPANS_MAX,
    SPENT_MAX,
    STEERED_MAX,
    TEXT_MAX,
)
from protocols.wire.handshake_schemas import MEETING
from protocols.wire.type_codes import ENTRIES, REPORTS
from protocols.wire.validators import (
    Check,
    WireError,
    flag,
    hex_digits,
    integer,
    many,
    numbers,
    octets,
    optional,
    peer_id,
    piece,
    short,
    text,
)


def struct(cls: type) -> Check:
    """The check of one record type: it returns an instance or raises WireError."""

    def check(raw: object) -> Any:
        checks = SHAPES[cls]
        if not isinstance(raw, list):
            raise WireError(f"{cls.__name__}: expected fields, got {short(raw)}")
        values = cast(list[object], raw)
        if len(values) != len(checks):
            raise WireError(f"{cls.__name__} has {len(checks)} fields, got {len(values)}")
        made: list[object] = []
        try:
            for field_check, value in zip(checks.values(), values, strict=True):
                made.append(field_check(value))
        except WireError as error:
            name = list(checks)[len(made)]
            raise WireError(f"{cls.__name__}.{name}: {error}") from None
        return cls(*made)

    return check


def _coded(table: Mapping[int, type], what: str) -> Check:
    """The check of a field that holds one of several types, after its type code."""

    def check(raw: object) -> Any:
        code, *rest = cast(list[object], raw) if isinstance(raw, list) and raw else [None]
        if type(code) is not int or code not in table:
            raise WireError(f"unknown {what} type {short(code)}")
        return struct(table[code])(rest)

    return check


def _only(*kinds: type) -> Check:
    """The check of a field that holds a log entry of one of these kinds."""

    def check(raw: object) -> Any:
        made = _entry(raw)
        if type(made) not in kinds:
            raise WireError(f"expected a {' or '.join(cls.__name__ for cls in kinds)}")
        return made

    return check


_entry, _report = _coded(ENTRIES, "entry"), _coded(REPORTS, "report")
_u16, _u32, _u63, _u64 = (integer(1 << bits) for bits in (16, 32, 63, 64))
_name, _words = text(NAME_MAX), text(TEXT_MAX)
_json = text(JSON_MAX, printable=False)
_digest, _sha256 = hex_digits(32), hex_digits(64)
_peers = many(peer_id, PEERS_MAX)
_stamp, _info, _contributor = struct(ids.Stamp), struct(ids.PeerInfo), struct(ids.Contributor)
_contributors = many(_contributor, PEERS_MAX)
_versions = many(struct(ids.Version), FRAGMENTS_MAX)
_forks = many(_u64, LIST_MAX)
_certificate, _signature = octets(0, CERTIFICATE_BYTES_MAX), octets(0, 64)
_donors, _roots = many(peer_id, DONORS_MAX), many(_sha256, FRAGMENTS_MAX)
_leaves = {"index": _u63, "fragment": _u16, "first": _u32, "total": _u32}
_samples = many(struct(s.SampleRange), s.RANGES_MAX)
_all_samples = many(struct(s.SampleRange), s.REMAINING_MAX)
_remaining = struct(s.Remaining)
_round = {"fragment": _u16, "round": _u32, "attempt": _u16}
_extent = {"offset_bytes": _u63, "total_bytes": _u63}
_span = {"start": _u63, "elements": _u63}
_asked = {
    "by": peer_id,
    "why": _words,
    "signature": _signature,
    "key": hex_digits(64),
    "unix_s": _u63,
}

SHAPES: Mapping[type, Mapping[str, Check]] = {
    ids.Stamp: {"run": _u64, "lineage": _u64, "view": _u32, **_round},
    ids.PeerInfo: {
        "peer": peer_id,
        "name": _name,
        "incarnation": _u32,
        "address": _name,
        "slot": _u32,
    },
    ids.Contributor: {"peer": peer_id, "tokens": _u63, "steps": _u32, "manifest": _digest},
    ids.FragmentParts: {"owners": _peers, "borders": many(_u63, PEERS_MAX + 1)},
    ids.PartBlocks: {"part": _u16, "blocks": numbers(1 << 63, SAMPLE_BLOCKS_MAX)},
    ids.Version: {"fragment": _u16, "round": _u32, "state_digest": _digest},
    ids.StepPayloads: {"step": _u32, "peers": _peers},
    ids.Provider: {"step": _u32, "peer": peer_id, "holder": peer_id},
    e.LogEntry: {"index": _u63, "term": _u63, "body": _entry, "signature": _signature},
    e.Mandate: {"after": _u63, "entries": many(struct(e.LogEntry), MANDATE_MAX)},
    e.Ballot: {"voter": peer_id, "signature": _signature},
    e.Run: {
        "run": _u64,
        "run_json": _json,
        "corpus_digest": _sha256,
        "peers_min": _u32,
        "outer_steps": _u32,
        "grain": _u32,
        "layout": octets(0, LAYOUT_BYTES_MAX),
        "fragment_elements": many(_u63, FRAGMENTS_MAX),
        "founder": peer_id,
        "commit_every_steps": _u32,
        "snapshot_every_steps": _u32,
        "gossip": flag,
        "asks": flag,
        "root": _sha256,
        "voters_issue": flag,
        "voters_revoke": flag,
        "voters_steer": flag,
        "corpus_files": octets(0, CORPUS_MARKS_BYTES_MAX),
    },
    e.Elected: {"peer": peer_id, "ballots": many(struct(e.Ballot), BALLOTS_MAX)},
    e.Voter: {"peer": peer_id, "votes": flag, "why": _words, "key": _sha256},
    e.Restore: {
        "parent_lineage": _u64,
        "versions": _versions,
        "inner_step": _u63,
        "tokens": _u63,
        "voters": _peers,
        "fork": _u64,
        "lonely": flag,
        "salt": _u64,
        "remaining": _remaining,
        "live": flag,
    },
    e.Cut: {"info": _info, "donors": _donors, "versions": _versions, "roots": _roots},
    e.Roots: {"peer": peer_id, "index": _u63, "roots": _roots},
    e.Member: {"info": _info, "state": _digest},
    e.Left: {"peer": peer_id, "why": _words},
    e.Lost: {"peer": peer_id, "why": _words},
    e.View: {
        "view": _u32,
        "roster": _peers,
        "parts": many(struct(ids.FragmentParts), FRAGMENTS_MAX),
        "first_round": many(_u32, FRAGMENTS_MAX),
    },
    e.Attempt: {"view": _u32, **_round, "roster": _peers, "owners": _peers, "why": _words},
    e.Commit: {
        "view": _u32,
        **_round,
        "contributors": _contributors,
        "borders": many(_u63, PEERS_MAX + 1),
        "result_digest": _digest,
        "previous_state_digest": _digest,
        "samples": many(_samples, PEERS_MAX),
        "held_by_all": flag,
    },
    e.Witness: {"info": _info},
    e.BranchDropped: {"peer": peer_id, "forks": _forks, "tokens": _u63},
    e.Lease: {"grants": many(struct(s.Grant), PEERS_MAX)},
    e.StepCommit: {"view": _u32, "upto_step": _u32, "state_digest": _digest},
    e.Halt: {"view": _u32, "without": _peers, "why": _words},
    e.Close: {
        "view": _u32,
        "last_step": _u32,
        "providers": many(struct(ids.Provider), PROVIDERS_MAX),
    },
    e.TokenTerms: {
        "number": _digest,
        "key": _sha256,
        "uses": _u32,
        "expires": _u63,
        "witness": flag,
        "issuer": _name,
    },
    e.TokenSpent: {
        "terms": struct(e.TokenTerms),
        "peer": peer_id,
        "key": _sha256,
        "certificate": _certificate,
        "signature": _signature,
        "proof": _signature,
    },
    e.Revoked: {"peer": peer_id, **_asked},
    e.TokenRevoked: {"token": hex_digits(32), **_asked},
    e.Steered: {
        "what": _name,
        "subject": _name,
        "value": _name,
        "number": _u63,
        "lineage": _u64,
        **_asked,
    },
    e.TokenIssued: {"terms": struct(e.TokenTerms)},
    m.RequestAct: {
        "entry": _only(e.Revoked, e.TokenRevoked, e.TokenIssued, e.Steered),
        "force": flag,
    },
    m.ActRefused: {"subject": text(NAME_MAX + 32), "why": _words},
    m.Refused: {"why": _words, "revoked": flag},
    m.Heartbeat: {},
    m.ReadLog: {"index": _u63},
    m.FindLeader: {},
    m.LeaderAddress: {"address": _name},
    m.Vote: {
        "term": _u63,
        "last_index": _u63,
        "last_term": _u63,
        "pre": flag,
        "urgent": flag,
        "signature": _signature,
    },
    m.Voted: {"term": _u63, "granted": flag, "pre": flag, "signature": _signature},
    m.Leads: {"run": _u64, "term": _u63, "mandate": struct(e.Mandate)},
    m.Append: {
        "run": _u64,
        "term": _u63,
        "previous_index": _u63,
        "previous_term": _u63,
        "entries": many(struct(e.LogEntry), ENTRIES_MAX),
        "commit_index": _u63,
        "durable_index": _u63,
        "held": many(struct(Acknowledgement), BALLOTS_MAX),
    },
    Acknowledgement: {
        "voter": peer_id,
        "index": _u63,
        "log_hash": octets(32, 32),
        "signature": _signature,
    },
    m.Appended: {
        "term": _u63,
        "matches": flag,
        "index": _u63,
        "held": optional(struct(Acknowledgement)),
        "doubts": flag,
    },
    m.Install: {
        "run": _u64,
        "term": _u63,
        "index": _u63,
        "index_term": _u63,
        **_extent,
        "piece": piece,
    },
    m.HandOver: {"term": _u63, "signature": _signature},
    m.ReportsComplete: {"term": _u63},
    m.UnreachedMembers: {"peers": _peers},
    m.Kept: {
        "lineage": _u64,
        "versions": _versions,
        "inner_step": _u63,
        "tokens": _u63,
        "remaining": _remaining,
    },
    m.Durable: {"works": flag, "why": _words},
    m.Join: {
        "name": _name,
        "incarnation": _u32,
        "address": _name,
        "why": _words,
        "against": _name,
        "lineage": _u64,
    },
    m.CaughtUp: {
        "index": _u63,
        "name": _name,
        "incarnation": _u32,
        "address": _name,
        "lineage": _u64,
        "state": _digest,
    },
    m.ReadyToTrain: {"lineage": _u64},
    m.NotReadyToTrain: {"why": _words, "lineage": _u64},
    m.ContributionOffered: {
        "stamp": _stamp,
        "contributor": _contributor,
        "samples": _samples,
        "line": _u63,
    },
    m.Hold: {"stamp": _stamp, "result_digest": _digest},
    m.Have: {"lineage": _u64, "fragment": _u16, "round": _u32, "state_digest": _digest},
    m.WaitsForPeers: {"stamp": _stamp, "peers": _peers, "void": flag},
    m.BlocksWanted: {
        "stamp": _stamp,
        "contributor": peer_id,
        "sample": many(struct(ids.PartBlocks), SAMPLE_PARTS_MAX),
    },
    m.Blocks: {
        "stamp": _stamp,
        "contributor": peer_id,
        **_extent,
        "piece": octets(1, PIECE_BYTES_MAX),
    },
    m.WrongResult: {"stamp": _stamp, "part": _u16, "peers": _peers},
    m.Fetch: {"stamp": _stamp, "part": _u16},
    m.FetchState: {"index": _u63, "cells": many(struct(t.CellSpan), SPANS_MAX)},
    t.CellSpan: {"fragment": _u16, "first": _u32, "stop": _u32},
    m.FetchLeaves: {"index": _u63, "fragment": _u16, "first": _u32},
    m.Leaves: {**_leaves, "digests": octets(LEAF_BYTES, LEAVES_MAX * LEAF_BYTES)},
    m.CutRoots: {"peer": peer_id, "index": _u63, "roots": _roots},
    m.NoState: {"index": _u63},
    m.Leave: {"why": _words},
    m.OnBranch: {
        "forks": _forks,
        "tokens": _u63,
        "leads": flag,
        "final": flag,
        "leader": _name,
    },
    m.Witnessing: {"name": _name, "incarnation": _u32, "address": _name},
    m.HeartbeatReply: {},
    m.Relay: {"term": _u63, "learners": _peers, "index": _u63},
    m.Via: {"term": _u63, "relay": _name},
    m.Relayed: {"append": struct(m.Append)},
    m.Report: {"peer": peer_id, "incarnation": _u32, "message": _report},
    m.PassedReports: {"term": _u63, "reports": many(struct(m.Report), LIST_MAX)},
    m.ContributeNow: {"stamp": _stamp},
    m.WantSamples: {"ahead": _u32, "carried": _u32, "lineage": _u64},
    m.Stepped: {"stamp": _stamp, "state_digest": _digest},
    m.StepsHalted: {
        "stamp": _stamp,
        "halted": _u63,
        "held": many(struct(ids.StepPayloads), HELD_STEPS_MAX),
    },
    m.FetchSteps: {"lineage": _u64, "first": _u32, "last": _u32, "peers": _peers},
    **MEETING,
    m.Admit: {
        "protocol": _u32,
        "peer": peer_id,
        "key": octets(32, 32),
        "certificate": _certificate,
        "witness": flag,
        "terms": struct(e.TokenTerms),
        "signature": _signature,
        "proof": _signature,
        "earlier": _name,
    },
    m.HandOn: {"number": _u63, "admit": struct(m.Admit)},
    m.ContributionChunk: {
        "stamp": _stamp,
        "part": _u16,
        "contributor": _contributor,
        **_span,
    },
    m.ResultChunk: {
        "stamp": _stamp,
        "part": _u16,
        "contributors": _contributors,
        "digest": _digest,
        **_span,
        "layer": _u16,
        "layers": _u16,
        "left_out": flag,
    },
    m.StateChunk: {
        "run": _u64,
        "lineage": _u64,
        "cut_index": _u63,
        "fragment": _u16,
        "round": _u32,
        **_span,
    },
    m.StepChunk: {
        "stamp": _stamp,
        "whose": peer_id,
        "digest": _digest,
        "start_byte": _u63,
        "size_bytes": _u63,
    },
    m.Padding: {},
    i.NewestCut: {"index": _u63, "cut": _only(e.Cut)},
    i.LossCount: {"peer": peer_id, "count": _u32},
    i.ReturnedInView: {"peer": peer_id, "view": _u32, "halt": _u63},
    i.Branch: {"lineage": _u64, "rounds": many(_u32, FRAGMENTS_MAX)},
    i.RunStateSnapshot: {
        "index": _u63,
        "lineage": _u64,
        "branches": many(struct(i.Branch), LIST_MAX),
        "run": _only(e.Run),
        "restored": optional(_only(e.Restore)),
        "restored_index": _u63,
        "voters": _peers,
        "members": many(_info, PEERS_MAX),
        "joiners": many(_info, PEERS_MAX),
        "granted": many(struct(i.NewestCut), PEERS_MAX),
        "views": many(_only(e.View), LIST_MAX),
        "attempts": many(_only(e.Attempt), LIST_MAX),
        "commits": many(_only(e.Commit), LIST_MAX),
        "seats": many(_info, SEATS_MAX),
        "witnesses": many(_info, SEATS_MAX),
        "forks": _forks,
        "rivals": many(_info, SEATS_MAX),
        "returned": many(struct(i.ReturnedInView), SEATS_MAX),
        "losses": many(struct(i.LossCount), SEATS_MAX),
        "inner_step": _u63,
        "tokens": _u63,
        "books": struct(i.SampleLedgerSnapshot),
        "step_progress": struct(StepProgress),
        "spent": many(_only(e.TokenSpent), SPENT_MAX),
        "forgotten": _u63,
        "revoked": many(_only(e.Revoked), SPENT_MAX),
        "revoked_tokens": many(_only(e.TokenRevoked), SPENT_MAX),
        "issued": many(_only(e.TokenIssued), SPENT_MAX),
        "mandate": struct(e.Mandate),
        "act_indices": many(_u63, 3 * SPENT_MAX),
        "steered": many(_only(e.Steered), STEERED_MAX),
        "steered_indices": many(_u63, STEERED_MAX),
        "last_rounds": many(_u32, FRAGMENTS_MAX),
        "log_hash": octets(32, 32),
        "spent_indices": many(_u63, SPENT_MAX),
    },
    StepProgress: {
        "step": _u32,
        "digest": _digest,
        "view": _u32,
        "base": _u32,
        "base_digest": _digest,
        "halted": _u63,
        "close": optional(_only(e.Close)),
        "drawn": _u63,
    },
    i.SampleLedgerSnapshot: {
        "frontier": _u63,
        "free": _all_samples,
        "held": many(struct(i.HeldSamples), PEERS_MAX),
        "gone": many(struct(i.DepartedSamples), SEATS_MAX),
        "again": _u63,
    },
    i.HeldSamples: {"peer": peer_id, "incarnation": _u32, "came": _u32, "samples": _all_samples},
    i.DepartedSamples: {"held": struct(i.HeldSamples), "view": _u32, "until": _u32},
    s.SampleRange: {"start": _u63, "stop": _u63},
    s.Grant: {"peer": peer_id, "samples": _samples},
    s.Remaining: {"frontier": _u63, "samples": _all_samples},
}
"""By type: its fields in order, each with its check."""
