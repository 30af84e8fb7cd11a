"""The figures of a run of four peers, by hand: gamma is killed in round 7, delta joins at 9."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lowcomm.reports.summary import (
    RoundFigures,
    allreduce_bytes,
    build_summary,
    key_figures,
    write_summary,
)

T0 = 1000.0
PARAMS = 3000
IDS = {"alpha": "alpha.1", "beta": "beta.2", "gamma": "gamma.3", "delta": "delta.4"}
RUN = {"name": "demo", "outer_steps": 10, "method": {"inner_steps": 10}}
Line = dict[str, Any]


def say(name: str, t: float, kind: str, **fields: Any) -> Line:
    return {"t": T0 + t, "peer": IDS[name], "name": name, "kind": kind, **fields}


def introductions() -> Iterator[Line]:
    for name, t in (("alpha", 0.0), ("beta", 0.5), ("gamma", 1.0), ("delta", 85.0)):
        params = PARAMS if name == "alpha" else 0
        yield say(name, t + 0.2, "start", pid=1, exec_t=T0 + t, ranks=1, params=params)
        yield say(name, t + 0.4, "listening", address="127.0.0.1:1", listen_cpu_s=0.25)
        member_t = 87.0 if name == "delta" else 2.0
        yield say(name, member_t, "member", member=IDS[name], member_name=name, index=1)
    gave = {"donors": [IDS["alpha"], IDS["beta"]], "donor_bytes": [20000, 4000]}
    yield say("delta", 86.5, "snapshot_received", **gave, seconds=0.5, connected_s=0.7)


def rounds() -> Iterator[Line]:
    """Ten steps of 100 tokens each a round: ready at 10 (r + 1), committed 0.5 s later."""
    delays = {"alpha": 0.0, "beta": 0.2, "gamma": 0.1, "delta": 0.1}
    for number in range(10):
        here = ["alpha", "beta"]
        here += ["gamma"] if number < 7 else []
        here += ["delta"] if number >= 9 else []
        for name in here:
            t = 10.0 * (number + 1) + delays[name]
            yield say(name, t, "ready", fragment=0, round=number, steps=10, tokens=1000)
        receivers = [*here, "delta"] if number == 8 else here  # A member, but not counted yet.
        for name in receivers:
            yield say(
                name,
                10.0 * (number + 1) + 0.5 + delays[name] / 10,
                "commit",
                fragment=0,
                round=number,
                attempt=1 if number == 7 else 0,
                roster=[IDS[each] for each in here],
                tokens=1000 * len(here),
                counted=name in here,
                state_digest=f"digest-{number}",
                inner_step=10 * (number + 1),
            )


def counters(name: str, t: float, *, tokens: int, sent: int, loss: float = 2.0) -> Line:
    return say(
        name,
        t,
        "metrics",
        step=tokens // 100,
        tokens=tokens,
        loss=loss,
        tokens_per_s=100.0,
        bytes_sent=sent,
        bytes_received=sent + 1,
    )


def endings() -> Iterator[Line]:
    yield counters("gamma", 74.0, tokens=7500, sent=30_000)  # 500 of them in no contribution.
    yield say("gamma", 75.0, "fault", what="SIGKILL")
    for name in ("alpha", "beta"):
        yield say(name, 75.3, "lost", member=IDS["gamma"], member_name="gamma", why="end of stream")
    yield say("alpha", 100.6, "checkpoint", path="a/9", round=9)
    yield say("beta", 50.6, "checkpoint", path="b/4", round=4)
    yield counters("alpha", 100.0, tokens=9900, sent=49_000, loss=1.5)
    for name, sent in (("alpha", 50_000), ("beta", 50_000), ("delta", 10_000)):
        yield say(name, 101.0, "evaluated", loss=1.25, windows=64, sample="def f():")
        yield say(
            name,
            102.0,
            "finished",
            outer_steps=10,
            bytes_sent=sent,
            bytes_received=sent + 1,
            state_digest="digest-9",
        )


def write(folder: Path, lines: list[Line]) -> Path:
    for name in IDS:
        own = sorted((line for line in lines if line["name"] == name), key=lambda line: line["t"])
        (folder / name).mkdir(parents=True)
        text = "".join(json.dumps(line) + "\n" for line in own)
        torn = '{"t": 1075, "peer": "gam' if name == "gamma" else ""
        (folder / name / "events.jsonl").write_text(text + torn)
    return folder


@pytest.fixture
def lines() -> list[Line]:
    return [*introductions(), *rounds(), *endings()]


def test_the_figures_of_the_run(tmp_path: Path, lines: list[Line]) -> None:
    summary = build_summary(write(tmp_path, lines), run=RUN)
    exact = {
        "schema_version": 1,
        "finished": True,
        "started_unix_s": T0,
        "wall_s": 102.0,
        "outer_steps": 10,
        "tokens": 7 * 3000 + 2 * 2000 + 3000,
        "params": PARAMS,
        "eval_loss": 1.25,
        "eval_windows": 64,
        "sample": "def f():",
        "digests_agree": True,
        "bytes_sent": 140_000,
        "checkpoint": "a/9",
        "checkpoint_round": 9,
        "config": RUN,
        "diverged": [],
        "problems": [],
        "faults": [{"t_s": 75.0, "name": "gamma", "what": "SIGKILL"}],
    }
    assert {key: asdict(summary)[key] for key in exact} == exact
    assert set(summary.versions) == {"python", "torch", "lowcomm"}
    assert set(summary.machine) == {"cores", "cpu", "memory_bytes"}


def test_a_kill_and_a_join_are_timed(tmp_path: Path, lines: list[Line]) -> None:
    summary = build_summary(write(tmp_path, lines), run=RUN)
    assert summary.kill_to_next_commit_s == pytest.approx(0.3)  # Beta was ready 0.2 s late.
    assert summary.kill_to_next_commit_wall_s == pytest.approx(5.5)
    assert [(kill.name, kill.round, kill.t_s) for kill in summary.kills] == [("gamma", 7, 75.0)]
    assert summary.join_to_member_s == pytest.approx(2.0)
    assert summary.join_to_contribution_s == pytest.approx(100.51 - 85.0)
    (join,) = summary.joins
    assert (join.name, join.state_bytes, join.state_s) == ("delta", 24000, 0.5)


def test_an_all_reduce_is_charged_to_the_members_of_that_time(
    tmp_path: Path, lines: list[Line]
) -> None:
    summary = build_summary(write(tmp_path, lines), run=RUN)
    three = 10 * 2 * 4 * PARAMS * 2 // 3  # Ten steps among three.
    two = 10 * 2 * 4 * PARAMS // 2
    # Round 7 has two. Rounds 8 and 9 have three: delta is a member from 87 s on.
    expected = {"alpha": 9 * three + two, "beta": 9 * three + two, "gamma": 7 * three}
    expected["delta"] = three
    found = {peer.name: peer.bytes_allreduce_equivalent for peer in summary.peers}
    assert found == expected
    assert summary.bytes_allreduce_equivalent == sum(expected.values())
    assert summary.allreduce_factor == sum(expected.values()) / 140_000


def test_each_peer_has_its_figures(tmp_path: Path, lines: list[Line]) -> None:
    peers = build_summary(write(tmp_path, lines), run=RUN).peers
    keys = ("name", "alive", "end", "inner_steps", "tokens", "rounds_counted", "bytes_sent", "loss")
    assert [tuple(getattr(peer, key) for key in keys) for peer in peers] == [
        ("alpha", True, "finished", 100, 10_000, 10, 50_000, 1.5),
        ("beta", True, "finished", 100, 10_000, 10, 50_000, None),
        ("gamma", False, "killed", 70, 7500, 7, 30_000, 2.0),
        ("delta", True, "finished", 10, 1000, 1, 10_000, None),
    ]
    assert [peer.state_digest for peer in peers] == ["digest-9"] * 2 + ["digest-6", "digest-9"]
    assert [peer.digests_agree for peer in peers] == [True] * 4
    assert peers[0].bytes_received == 50_001
    assert peers[0].listen_cpu_s == 0.25
    assert peers[0].ranks == 1


def test_rounds_are_listed_once_with_names(tmp_path: Path, lines: list[Line]) -> None:
    found = build_summary(write(tmp_path, lines), run=RUN).rounds
    assert [each.round for each in found] == list(range(10))
    assert found[7] == RoundFigures(
        fragment=0, round=7, attempt=1, roster=["alpha", "beta"], t_s=80.5, tokens=2000
    )
    assert found[9].roster == ["alpha", "beta", "delta"]


def test_a_peer_with_another_state_is_named(tmp_path: Path, lines: list[Line]) -> None:
    for line in lines:
        if line["name"] == "beta" and "state_digest" in line:
            line["state_digest"] = "another"
    lines.append(say("alpha", 100.9, "diverged", member=IDS["beta"], round=9))
    lines.append(say("delta", 100.9, "diverged", member=IDS["beta"], round=9))
    summary = build_summary(write(tmp_path, lines), run=RUN)
    assert {peer.name: peer.digests_agree for peer in summary.peers} == {
        "alpha": True,
        "beta": False,
        "gamma": True,
        "delta": True,
    }
    assert summary.digests_agree is False
    assert summary.diverged == ["beta in round 9"]


def test_rounds_that_were_made_anew_after_a_restore_have_other_states(
    tmp_path: Path, lines: list[Line]
) -> None:
    """Gamma, which alone has what was given up, never returns."""
    lines = [line for line in lines if line["name"] != "delta"]
    for line in lines:
        if "state_digest" in line:  # All died at 75 s; the newest checkpoint was that of round 4.
            line["lineage"] = "00aa"
    for name in ("alpha", "beta"):
        lines.append(say(name, 75.2, "restored", round=4, inner_step=50))
        for number in (5, 6):
            commit = {"fragment": 0, "round": number, "attempt": 0, "counted": True}
            commit |= {"roster": [IDS["alpha"], IDS["beta"]], "tokens": 2000, "inner_step": 60}
            other = {"state_digest": f"other-{number}", "lineage": "00bb"}
            lines.append(say(name, 71.0 + number, "commit", **commit, **other))
    for line in lines:
        if (line["kind"] == "commit" and line["round"] > 6) or line["kind"] == "finished":
            line["state_digest"], line["lineage"] = "later", "00bb"
    summary = build_summary(write(tmp_path, lines), run=RUN)
    assert summary.problems == []
    assert [peer.digests_agree for peer in summary.peers] == [True] * 3
    assert summary.digests_agree is True
    rosters = {each.round: each.roster for each in summary.rounds}
    assert list(rosters) == list(range(10))
    assert rosters[4] == ["alpha", "beta", "gamma"]
    assert rosters[5] == rosters[6] == ["alpha", "beta"]
    assert summary.tokens == 5 * 3000 + 4 * 2000 + 3000


def test_a_restarted_peer_adds_up_its_lives(tmp_path: Path) -> None:
    events = [
        say("alpha", 0.2, "start", pid=1, exec_t=T0, ranks=1, params=0),
        counters("alpha", 5.0, tokens=500, sent=70),
        say("alpha", 9.2, "start", pid=2, exec_t=T0 + 9, ranks=2, params=0),
        counters("alpha", 12.0, tokens=300, sent=40),
    ]
    (peer,) = build_summary(write(tmp_path, events), run={}).peers
    assert (peer.tokens, peer.bytes_sent, peer.bytes_received) == (800, 110, 112)
    assert peer.ranks == 2
    assert peer.alive is True


def test_a_contribution_that_was_encoded_again_counts_once(tmp_path: Path) -> None:
    ready = {"fragment": 0, "round": 0, "steps": 10, "tokens": 1000}
    events = [
        say("alpha", 0.2, "start", pid=1, exec_t=T0, ranks=1, params=PARAMS),
        say("alpha", 5.0, "ready", **ready),
        say("alpha", 6.0, "ready", **ready),
        say("alpha", 7.0, "ready", **(ready | {"fragment": 1})),
    ]
    (peer,) = build_summary(write(tmp_path, events), run={}).peers
    assert (peer.inner_steps, peer.tokens) == (10, 1000)
    assert peer.bytes_allreduce_equivalent == 0  # Alone, nothing is reduced.


def test_what_does_not_apply_is_none(tmp_path: Path) -> None:
    empty = build_summary(tmp_path, run={})
    for key in (
        *("wall_s", "started_unix_s", "params", "eval_loss", "sample", "digests_agree"),
        *("bytes_allreduce_equivalent", "allreduce_factor", "checkpoint"),
        *("kill_to_next_commit_s", "join_to_member_s", "join_to_contribution_s"),
    ):
        assert getattr(empty, key) is None, key
    assert empty.finished is False
    assert (empty.outer_steps, empty.bytes_sent, empty.peers) == (0, 0, [])


def test_the_file_is_plain_json_even_when_the_loss_diverged(
    tmp_path: Path, lines: list[Line]
) -> None:
    for line in lines:
        if "loss" in line:
            line["loss"] = math.nan
    summary = build_summary(write(tmp_path, lines), run=RUN)
    path = write_summary(tmp_path, summary)
    assert path == tmp_path / "summary.json"
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == asdict(summary)
    assert summary.eval_loss is None
    assert summary.peers[0].loss is None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*IDS, "summary.json"])


@pytest.mark.parametrize(("round_", "loss"), [(9, 3.5), (0, 3.5), (8, None), (4, None)])
def test_the_evaluation_of_an_earlier_state_is_none_of_the_run(
    round_: int, loss: float | None, tmp_path: Path, lines: list[Line]
) -> None:
    """The run has ten rounds, and ended without its last evaluation."""
    lines = [line for line in lines if line["kind"] != "evaluated"]
    evaluated = {"loss": 3.5, "windows": 64, "sample": "", "round": round_}
    lines.append(say("alpha", 101.0, "evaluated", **evaluated))
    summary = build_summary(write(tmp_path, lines), run={})
    assert summary.eval_loss == loss
    assert summary.eval_windows == (64 if loss else None)


def test_a_ring_all_reduce_by_the_formula() -> None:
    assert allreduce_bytes(1000, peers=1, steps=7) == 0
    assert allreduce_bytes(1000, peers=2, steps=1) == 4000
    assert allreduce_bytes(1000, peers=4, steps=10) == 60_000


def test_key_figures_show_what_applies(tmp_path: Path, lines: list[Line]) -> None:
    figures = key_figures(build_summary(write(tmp_path, lines), run=RUN))
    shown = {what: figure for what, figure, _ in figures}
    assert shown["evaluation loss"] == "1.2500"
    assert shown["peers alive"] == "3 of 4"
    assert shown["bytes sent"] == "31.4 x less"
    assert shown["kill to next commit"] == "0.3 s"
    assert shown["wall time"] == "1:42"
    empty = key_figures(build_summary(tmp_path / "none", run={}))
    assert [what for what, _, _ in empty] == ["outer steps", "peers alive", "bytes sent"]


@pytest.mark.parametrize(("method", "note"), [({}, "of 4 planned"), ({"qsr_alpha": 0.1}, "")])
def test_how_many_rounds_are_planned_is_shown_where_the_file_says_it(
    method: dict[str, float], note: str, tmp_path: Path
) -> None:
    """With longer rounds there are fewer than the file says."""
    figures = key_figures(build_summary(tmp_path, run={"outer_steps": 4, "method": method}))
    assert figures[0] == ("outer steps", "0", note)


def test_samples_are_shown_where_tokens_are(tmp_path: Path, lines: list[Line]) -> None:
    lines.append(say("beta", 60.0, "samples", committed=300, again=0))
    lines.append(say("alpha", 101.5, "samples", committed=2700, again=40))
    summary = build_summary(write(tmp_path, lines), run=RUN)
    assert (summary.samples, summary.samples_again) == (2700, 40)
    notes = {what: note for what, _, note in key_figures(summary)}
    assert notes["tokens counted"].endswith("per second; 2.7 k samples, 40 leased again")


def test_a_commit_of_a_per_step_method_takes_in_all_steps_before(
    tmp_path: Path, lines: list[Line]
) -> None:
    run = {**RUN, "method": {"name": "allreduce"}}
    summary = build_summary(write(tmp_path, lines), run=run)
    assert summary.outer_steps == max(each.round for each in summary.rounds) == 9
