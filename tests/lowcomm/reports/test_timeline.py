"""Reading event files: exact records, torn and damaged lines, and the stories for people."""

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest

from lowcomm.reports import timeline
from lowcomm.reports.events import Commit, Listening, Member, Metrics, Start
from lowcomm.reports.timeline import EventError, Follower, decode, peer_names, read_timeline, story

NAMES = {"alpha.1": "alpha", "beta.2": "beta", "gamma.3": "gamma", "delta.4": "delta"}

FIELDS: dict[str, dict[str, Any]] = {
    "start": {"pid": 7, "exec_t": 99.5, "ranks": 2, "params": 1000},
    "listening": {"address": "127.0.0.1:4711", "listen_cpu_s": 0.3},
    "metrics_listening": {"address": "127.0.0.1:9090"},
    "waiting": {"reason": "for beta.2"},
    "member": {"member": "beta.2", "member_name": "beta"},
    "lost": {"member": "gamma.3", "member_name": "gamma", "why": "end of stream"},
    "left": {"member": "gamma.3", "member_name": "gamma", "why": "asked to stop"},
    "elected": {"leader": "beta.2", "leader_name": "beta", "index": 31},
    "restored": {"round": 6, "inner_step": 120},
    "forked": {
        "round": 6,
        "inner_step": 120,
        "voter": "beta.2",
        "voter_name": "beta",
        "lonely": True,
    },
    "dropped": {"member": "beta.2", "member_name": "beta", "tokens": 500},
    "gave_up": {"why": "the other had more", "contact": "127.0.0.1:9", "kept": "x/y"},
    "witness": {"member": "beta.2", "member_name": "beta"},
    "view": {"view": 2, "roster": ["alpha.1", "delta.4"], "owners": ["alpha.1"], "first_round": 9},
    "attempt": {
        "fragment": 0,
        "round": 7,
        "attempt": 1,
        "roster": ["alpha.1", "beta.2"],
        "why": "gamma.3 lost (end of stream)",
    },
    "ready": {"fragment": 0, "round": 7, "steps": 20, "tokens": 800},
    "commit": {
        "fragment": 0,
        "round": 8,
        "attempt": 0,
        "roster": ["alpha.1", "beta.2", "delta.4"],
        "tokens": 2400,
        "counted": True,
        "state_digest": "ab",
        "inner_step": 160,
        "lineage": "00000000000000ab",
    },
    "metrics": {
        "step": 5,
        "tokens": 200,
        "loss": 2.5,
        "tokens_per_s": 40,
        "bytes_sent": 1,
        "bytes_received": 2,
    },
    "fault": {"what": "SIGKILL"},
    "reduced": {"fragment": 0, "round": 8, "seconds": 0.05},
    "ranks_ready": {"attempt": 0},
    "ranks_lost": {"attempt": 0, "why": "rank 1 exited with -9"},
    "ranks_stalled": {"why": "rank 1 has made no step for 1.0 s"},
    "ranks_moving": {},
    "snapshot_served": {"to": "delta.4", "size_bytes": 6_920_601},
    "snapshot_received": {
        "donors": ["alpha.1", "beta.2"],
        "donor_bytes": [6_000_000, 920_601],
        "seconds": 0.21,
        "connected_s": 0.35,
    },
    "checkpoint": {"path": "x/y", "round": 10},
    "evaluated": {"loss": 1.25, "windows": 256, "sample": "def f():\n\tpass"},
    "finished": {"outer_steps": 30, "bytes_sent": 5, "bytes_received": 6, "state_digest": "cd"},
    "stopped": {"why": "asked to"},
    "diverged": {"member": "beta.2", "round": 12},
    "layout": {"params": 1000},
    "note": {"topic": "straggler", "text": "round 7 goes on without beta.2"},
    "samples": {"committed": 4096, "again": 64},
    "traffic": {
        "peers": ["", "beta.2"],
        **{key: [1, 2] for key in ("payload_sent_bytes", "payload_received_bytes")},
        **{key: [3, 4] for key in ("transfer_sent_bytes", "transfer_received_bytes")},
        **{key: [5, 6] for key in ("control_sent_bytes", "control_received_bytes")},
        **{key: [0, 0] for key in ("relay_sent_bytes", "relay_received_bytes")},
        "refused_bytes": [0, 7],
        "stalls": [0, 1],
        "stalled_s": [0, 0.25],
        "round_trip_s": [0.0, 0.1],
        "sent_bytes_per_s": 10.0,
        "received_bytes_per_s": 20.0,
        "lag_p50_s": 0.0001,
        "lag_p99_s": 0.002,
        "lag_max_s": 0.01,
    },
}
STORIES = {
    "start": None,
    "listening": "alpha listens on 127.0.0.1:4711",
    "metrics_listening": "alpha serves its metrics at http://127.0.0.1:9090/metrics",
    "waiting": "alpha waits: for beta",
    "member": "beta is a member",
    "lost": "gamma lost (end of stream)",
    "left": "gamma left (asked to stop)",
    "elected": "beta leads",
    "restored": "rolled back to round 6: no live node holds a newer state",
    "forked": "beta lost the other voter and goes on alone from round 6 on",
    "dropped": "the branch of beta (500 tokens) is given up",
    "gave_up": "alpha joins again at 127.0.0.1:9: the other had more; old files: x/y",
    "witness": "beta is a witness",
    "view": "roster from round 9 on: alpha, delta",
    "attempt": "gamma lost (end of stream): round 7 goes on with alpha, beta",
    "ready": None,
    "commit": "round 8 committed by alpha, beta, delta (step 160)",
    "metrics": None,
    "fault": "fault at alpha: SIGKILL",
    "reduced": None,
    "ranks_ready": "alpha trains",
    "ranks_lost": "the ranks of alpha are lost (rank 1 exited with -9)",
    "ranks_stalled": "the ranks of alpha stall (rank 1 has made no step for 1.0 s)",
    "ranks_moving": "the ranks of alpha make steps again",
    "snapshot_served": None,
    "snapshot_received": "alpha received its state from alpha, beta (6.6 MiB in 0.2 s)",
    "checkpoint": "alpha wrote its checkpoint of round 10",
    "evaluated": "alpha evaluated the model: loss 1.2500 over 256 windows",
    "finished": "alpha finished after 30 outer steps",
    "stopped": "alpha stopped (asked to)",
    "diverged": "the state of beta differs from the others' in round 12",
    "layout": None,
    "note": "straggler: round 7 goes on without beta",
    "samples": None,
    "traffic": None,
}


def line(kind: str, *, t: float = 100.0, **changed: Any) -> bytes:
    fields = {"t": t, "peer": "alpha.1", "name": "alpha", "kind": kind, **FIELDS.get(kind, {})}
    return json.dumps({**fields, **changed}).encode()


@pytest.mark.parametrize("kind", FIELDS)
def test_every_kind_becomes_its_record_and_its_story(kind: str) -> None:
    event = decode(line(kind, something_new=1))
    assert event is not None
    assert (event.t, event.peer, event.name) == (100.0, "alpha.1", "alpha")
    assert type(event).__name__.lower() == kind.replace("_", "")
    for name, value in FIELDS[kind].items():
        found: object = getattr(event, name)
        assert found == (tuple(cast(list[str], value)) if isinstance(value, list) else value)
    assert story(event, NAMES) == STORIES[kind]


def test_there_is_no_kind_that_these_tests_do_not_know() -> None:
    assert set(timeline.KINDS) == set(FIELDS) == set(STORIES)


def test_a_kind_of_a_newer_version_is_no_event_and_no_error() -> None:
    assert decode(line("teleported")) is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"t": 1', "not JSON"),
        (b"[1]", "not an object"),
        (b"[" * 100_000, "not JSON"),
        (line("ready", tokens="800"), "ready.tokens"),
        (line("ready", tokens=True), "ready.tokens"),
        (line("ready", steps=1.0), "ready.steps"),
        (line("commit", counted=1), "commit.counted"),
        (line("commit", roster=["a", 1]), "commit.roster"),
        (line("traffic", stalls=[1, 2.5]), "traffic.stalls"),
        (line("traffic", stalls=[True]), "traffic.stalls"),
        (line("traffic", stalled_s=[math.nan]), "traffic.stalled_s"),
        (line("traffic", peers=1), "traffic.peers"),
        (line("ready", t=math.inf), "ready.t"),
        (line("listening", listen_cpu_s=10**400), "listening.listen_cpu_s"),
        (json.dumps({"kind": "fault", "t": 1, "peer": "a", "name": "a"}).encode(), "without what"),
    ],
)
def test_a_damaged_line_is_an_error_that_says_where(raw: bytes, says: str) -> None:
    with pytest.raises(EventError, match=says):
        decode(raw)


def test_what_an_older_file_does_not_have_is_no_damage() -> None:
    raw = json.loads(line("commit"))
    del raw["lineage"]
    event = decode(json.dumps(raw).encode())
    assert isinstance(event, Commit)
    assert (event.round, event.lineage) == (8, "")


def test_a_diverged_loss_is_read() -> None:
    event = decode(line("metrics", loss=math.nan))
    assert isinstance(event, Metrics)
    assert math.isnan(event.loss)
    assert event.tokens_per_s == 40.0


def test_escape_codes_and_direction_marks_are_taken_out_of_all_text() -> None:
    event = decode(line("lost", member_name="\x1b[31mx", why="a\u202eb\nc"))
    assert event is not None
    assert story(event, {}) == "gamma lost (a?b?c)"
    sample = decode(line("evaluated", sample="a\n\tb\x1b]0;x\x07"))
    assert getattr(sample, "sample", None) == "a\n\tb?]0;x?"


def test_a_torn_last_line_is_skipped_and_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "alpha" / "events.jsonl"
    path.parent.mkdir()
    whole, torn = line("fault") + b"\n", line("stopped", t=101.0) + b"\n"
    path.write_bytes(whole + torn[:30])
    follower = Follower(tmp_path)
    assert [event.t for event in follower.read()] == [100.0]
    assert follower.read() == []
    path.write_bytes(whole + torn)
    assert [event.t for event in follower.read()] == [101.0]
    assert follower.problems == []


def test_nodes_may_appear_later_and_events_come_by_time(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "run")
    assert follower.read() == []
    for name, times in (("beta", (3.0, 5.0)), ("alpha", (4.0,))):
        folder = tmp_path / "run" / name
        folder.mkdir(parents=True)
        folder.joinpath("events.jsonl").write_bytes(
            b"".join(line("fault", t=t, name=name) + b"\n" for t in times)
        )
    launcher = tmp_path / "run" / "events.jsonl"
    launcher.write_bytes(line("fault", t=3.5, name="launcher") + b"\n")
    assert [event.name for event in follower.read()] == ["beta", "launcher", "alpha", "beta"]
    assert follower.read() == []


def test_damaged_lines_are_named_and_cost_only_themselves(tmp_path: Path) -> None:
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha" / "events.jsonl").write_bytes(
        line("fault") + b"\ngarbage\n\n" + line("ready", steps="x") + b"\n" + line("fault") + b"\n"
    )
    found = read_timeline(tmp_path)
    assert len(found.events) == 2
    assert found.problems == (
        "alpha/events.jsonl:2: not JSON",
        "alpha/events.jsonl:4: ready.steps is not <class 'int'>",
    )


def test_problems_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha" / "events.jsonl").write_bytes(b"x\n" * 1000)
    assert len(read_timeline(tmp_path).problems) == timeline.PROBLEMS_MAX


def test_a_long_history_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = line("fault") + b"\n"
    monkeypatch.setattr(timeline, "READ_BYTES_MAX", 2 * len(one) + 5)
    (tmp_path / "alpha").mkdir()
    path = tmp_path / "alpha" / "events.jsonl"
    path.write_bytes(one * 5 + b"x" * 10 * len(one) + b"\n" + one)
    follower = Follower(tmp_path)
    assert len(follower.read()) == 2
    assert len(follower.read()) == 2
    assert len(follower.read_all()) == 2  # Past a line that is longer than a piece.
    assert len(read_timeline(tmp_path).events) == 6


def test_names_come_from_starts_and_members_and_stay_apart() -> None:
    events = [
        Start(t=1, peer="g.aaaa11", name="gamma", pid=1, exec_t=1, ranks=1, params=0),
        Member(t=2, peer="g.aaaa11", name="gamma", member="g.bbbb22", member_name="gamma"),
        Member(t=2, peer="g.aaaa11", name="gamma", member="a.1", member_name="alpha"),
        Listening(t=3, peer="unknown.1", name="never", address="", listen_cpu_s=0),
    ]
    assert peer_names(events) == {
        "g.aaaa11": "gamma.aaaa",
        "g.bbbb22": "gamma.bbbb",
        "a.1": "alpha",
    }


def test_a_large_roster_is_counted_not_listed() -> None:
    commit = decode(line("commit", roster=[f"p{number}.x" for number in range(30)]))
    assert isinstance(commit, Commit)
    told = story(commit, {})
    assert told == ("round 8 committed by p0, p1, p2, p3, p4, p5, p6, p7 and 22 more (step 160)")


def test_a_story_is_bounded_whatever_a_peer_gives_as_its_reason() -> None:
    event = decode(line("stopped", why="x" * 100_000))
    assert event is not None
    assert len(story(event, {}) or "") == timeline.STORY_CHARS_MAX
