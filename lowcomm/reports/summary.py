"""Computes the figures of a run from its timeline, and writes them to summary.json.

Every figure follows from the event files alone; None means that it does not apply to this run.
Times named `t_s` are seconds since the start of the first process. Clocks of different machines are
compared without correction. Must NOT ask a daemon and must NOT import torch.
"""

import json
import math
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from lowcomm.methods import PER_STEP_METHODS
from lowcomm.reports.events import (
    Checkpoint,
    Commit,
    Diverged,
    Evaluated,
    Event,
    Fault,
    Finished,
    Layout,
    Listening,
    Metrics,
    Ready,
    Samples,
    Start,
)
from lowcomm.reports.figure_texts import bytes_text, count_text, factor_text, seconds_text
from lowcomm.reports.process_lifetimes import (
    JoinFigures,
    KillFigures,
    ProcessLifetime,
    find_joins,
    find_kills,
    find_lives,
    first_commits,
)
from lowcomm.reports.timeline import Timeline, peer_names, read_timeline
from lowcomm.reports.traffic import TrafficFigures, traffic_figures, traffic_text
from lowcomm.training.round_schedule import ANCHOR

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigures:
    """The figures of one peer id, summed over all its processes."""

    peer: str
    name: str
    alive: bool  # Finished, or no event tells of its end.
    end: str  # "finished", "killed", "lost", "left", "stopped", or "" while it runs.
    ranks: int
    inner_steps: int  # Of its contributions, counted or not.
    tokens: int  # Trained by its ranks, counted or not.
    rounds_counted: int
    loss: float | None  # Training loss in its last Metrics event.
    state_digest: str | None
    digests_agree: bool | None  # In its last round that others have too, most have its digest.
    bytes_sent: int
    bytes_received: int
    bytes_allreduce_equivalent: int | None  # See allreduce_bytes.
    listen_cpu_s: float | None  # CPU seconds until it listened; latest process.


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFigures:
    """One committed round of one fragment, from its first commit event."""

    fragment: int
    round: int
    attempt: int
    roster: list[str]  # Names.
    t_s: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFigures:
    t_s: float
    name: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of summary.json: figures of the whole run, and lists of figures of its parts. If
    there are several kills or joins, the slowest one gives the figure of the run."""

    schema_version: int
    finished: bool  # A peer reached the last outer step.
    started_unix_s: float | None
    wall_s: float | None  # From the first process start to the last event.
    outer_steps: int  # Committed rounds of fragment 0, or steps of a per-step method.
    tokens: int  # Of the contributions that these rounds counted.
    samples: int  # Committed samples, by the newest Samples event.
    samples_again: int  # Leased a second time: the peer that held them was lost.
    params: int | None
    eval_loss: float | None
    eval_windows: int | None
    sample: str | None
    digests_agree: bool | None
    bytes_sent: int
    bytes_allreduce_equivalent: int | None
    allreduce_factor: float | None  # Equivalent / sent.
    kill_to_next_commit_s: float | None
    kill_to_next_commit_wall_s: float | None
    join_to_member_s: float | None
    join_to_contribution_s: float | None
    peers: list[PeerFigures]
    rounds: list[RoundFigures]
    kills: list[KillFigures]
    joins: list[JoinFigures]
    faults: list[FaultFigures]
    traffic: list[TrafficFigures]
    diverged: list[str]  # Texts "<name> in round <n>".
    checkpoint: str | None  # Path of the newest checkpoint.
    checkpoint_round: int | None
    config: dict[str, Any]  # The agreed [run].
    versions: dict[str, str | None]
    machine: dict[str, Any]  # cores, cpu, memory_bytes of the machine that made this summary.
    problems: list[str]  # Lines of event files that could not be read.


def build_summary(run_dir: Path, *, run: Mapping[str, Any]) -> Summary:
    """Return the Summary of a run directory. `run`: the agreed [run] as plain data. Raises
    OSError."""
    return summarize(read_timeline(run_dir), run=run)


def _last_evaluation(events: Sequence[Event], anchors: Sequence[Commit]) -> Evaluated | None:
    """The evaluation of the run's last state. Earlier ones are of other states, and with methods
    that overlap rounds of one node's own parameters."""
    last = (0, anchors[-1].round if anchors else 0)  # 0 in a stepwise run.
    found = (e for e in reversed(events) if isinstance(e, Evaluated))
    return next((e for e in found if e.round in last), None)


def write_summary(run_dir: Path, summary: Summary) -> Path:
    """Write summary.json completely or not at all, and return its path. Raises OSError."""
    path = run_dir / "summary.json"
    torn = path.with_suffix(".json.new")
    torn.write_text(json.dumps(asdict(summary), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    torn.replace(path)
    return path


def summarize(timeline: Timeline, *, run: Mapping[str, Any]) -> Summary:
    """Compute all figures from the events, and add this machine's description and versions."""
    events, lives = timeline.events, find_lives(timeline.events)
    names = peer_names(events)
    begin = min((lifetime.begin_t for lifetime in lives), default=None)
    commits = first_commits(events)
    anchors = [commit for commit in commits if commit.fragment == ANCHOR]
    params = max((x.params for x in events if isinstance(x, Start | Layout)), default=0)
    peers = _peers(events, lives, names, params)
    kills, joins = find_kills(events, lives, names), find_joins(lives, anchors, names)
    evaluated = _last_evaluation(events, anchors)
    checkpoints = [event for event in events if isinstance(event, Checkpoint)]
    newest = max(checkpoints, key=lambda event: (event.round, event.t), default=None)
    samples = [event for event in events if isinstance(event, Samples)]
    sent = sum(peer.bytes_sent for peer in peers)
    equivalent = sum(peer.bytes_allreduce_equivalent or 0 for peer in peers)
    agree = [peer.digests_agree for peer in peers if peer.digests_agree is not None]
    return Summary(
        schema_version=SCHEMA_VERSION,
        finished=any(isinstance(event, Finished) for event in events),
        started_unix_s=begin,
        wall_s=None if begin is None else events[-1].t - begin,
        outer_steps=_num_steps(anchors, run),
        tokens=sum(commit.tokens for commit in anchors),
        samples=samples[-1].committed if samples else 0,
        samples_again=samples[-1].again if samples else 0,
        params=params or None,
        eval_loss=_finite(evaluated.loss) if evaluated else None,
        eval_windows=evaluated.windows if evaluated else None,
        sample=(evaluated.sample or None) if evaluated else None,
        digests_agree=all(agree) if agree else None,
        bytes_sent=sent,
        bytes_allreduce_equivalent=equivalent if params else None,
        allreduce_factor=equivalent / sent if equivalent and sent else None,
        kill_to_next_commit_s=_slowest(kill.kill_to_next_commit_s for kill in kills),
        kill_to_next_commit_wall_s=_slowest(k.kill_to_next_commit_wall_s for k in kills),
        join_to_member_s=_slowest(join.join_to_member_s for join in joins),
        join_to_contribution_s=_slowest(join.join_to_contribution_s for join in joins),
        peers=peers,
        rounds=[_round(commit, names, begin or 0.0) for commit in commits],
        kills=kills,
        joins=joins,
        faults=_faults(events, names, begin or 0.0),
        traffic=traffic_figures(lives, names),
        diverged=_diverged(events, names),
        checkpoint=newest.path if newest else None,
        checkpoint_round=newest.round if newest else None,
        config=dict(run),
        versions=_versions(),
        machine=_machine(),
        problems=list(timeline.problems),
    )


def allreduce_bytes(params: int, *, peers: int, steps: int) -> int:
    """Bytes that one of `peers` sends in `steps` ring all-reduces of fp32 gradients: 2(M-1)/M x 4N
    for each step, with M = `peers` and N = `params`."""
    return steps * 2 * 4 * params * (peers - 1) // peers


def key_figures(summary: Summary) -> list[tuple[str, str, str]]:
    """Return texts (title, figure, note) of the figures that apply to this run, the most important
    one first."""
    tiles: list[tuple[str, str, str]] = []
    peers = summary.peers
    longer = summary.config.get("method", {}).get("qsr_alpha")  # Fewer rounds than outer_steps.
    planned = None if longer else summary.config.get("outer_steps")
    if summary.eval_loss is not None:
        note = f"over {summary.eval_windows} held-out windows"
        tiles.append(("evaluation loss", f"{summary.eval_loss:.4f}", note))
    note = f"of {planned} planned" if planned else ""
    tiles.append(("outer steps", str(summary.outer_steps), note))
    alive = sum(peer.alive for peer in peers)
    gone = [f"{peer.name} {peer.end}" for peer in peers if not peer.alive]
    tiles.append(("peers alive", f"{alive} of {len(peers)}", ", ".join(gone[:4])))
    equivalent = summary.bytes_allreduce_equivalent
    if summary.allreduce_factor is not None and equivalent is not None:
        note = (
            f"{bytes_text(summary.bytes_sent)}; all-reduce at every step would have sent "
            f"{bytes_text(equivalent)}"
        )
        tiles.append(("bytes sent", factor_text(summary.allreduce_factor), note))
    else:
        tiles.append(("bytes sent", bytes_text(summary.bytes_sent), ""))
    payload, note = traffic_text(summary.traffic)
    if payload:
        tiles.append(("bytes sent by purpose", payload, note))
    wall_s = summary.kill_to_next_commit_wall_s
    if summary.kill_to_next_commit_s is not None and wall_s is not None:
        note = f"{seconds_text(wall_s)} after the kill itself"
        tiles.append(("kill to next commit", seconds_text(summary.kill_to_next_commit_s), note))
    if summary.join_to_contribution_s is not None:
        member = summary.join_to_member_s
        note = "" if member is None else f"a member after {seconds_text(member)}"
        tiles.append(
            ("joiner start to contribution", seconds_text(summary.join_to_contribution_s), note)
        )
    if summary.wall_s:
        rate = count_text(summary.tokens / summary.wall_s)
        note = f"{rate} per second"
        if summary.samples:
            note += f"; {count_text(summary.samples)} samples"
        if summary.samples_again:
            note += f", {count_text(summary.samples_again)} leased again"
        tiles.append(("tokens counted", count_text(summary.tokens), note))
        tiles.append(("wall time", seconds_text(summary.wall_s), "first start to last event"))
    return tiles


def _num_steps(anchors: Sequence[Commit], run: Mapping[str, Any]) -> int:
    """Number of committed outer steps. Of a per-step method, a commit contains all earlier
    steps."""
    if run.get("method", {}).get("name") in PER_STEP_METHODS:
        return max((commit.round for commit in anchors), default=0)
    return len(anchors)


def _peers(
    events: Sequence[Event], lives: Sequence[ProcessLifetime], names: Mapping[str, str], params: int
) -> list[PeerFigures]:
    agreement = _agreement(events)
    figures: list[PeerFigures] = []
    for peer in dict.fromkeys(lifetime.peer for lifetime in lives):
        mine = [lifetime for lifetime in lives if lifetime.peer == peer]
        own = [event for lifetime in mine for event in lifetime.events]
        steps = [event for lifetime in mine for event in _contributions(lifetime)]
        metrics = [event for event in own if isinstance(event, Metrics)]
        commits = [event for event in own if isinstance(event, Commit)]
        digests = [e.state_digest for e in own if isinstance(e, Commit | Finished)]
        counted = {e.round for e in commits if e.counted and e.fragment == ANCHOR}
        cpu = [event.listen_cpu_s for event in own if isinstance(event, Listening)]
        equivalent = sum(
            allreduce_bytes(params, peers=_members_at(ready, lives), steps=ready.steps)
            for ready in steps
        )
        figures.append(
            PeerFigures(
                peer=peer,
                name=names.get(peer, peer),
                alive=mine[-1].end in ("", "finished"),
                end=mine[-1].end,
                ranks=next((e.ranks for e in reversed(own) if isinstance(e, Start)), 0),
                inner_steps=sum(ready.steps for ready in steps),
                tokens=sum(_tokens(lifetime) for lifetime in mine),
                rounds_counted=len(counted),
                loss=_finite(metrics[-1].loss) if metrics else None,
                state_digest=digests[-1] if digests else None,
                digests_agree=agreement.get(peer),
                bytes_sent=sum(_counter(lifetime, "bytes_sent") for lifetime in mine),
                bytes_received=sum(_counter(lifetime, "bytes_received") for lifetime in mine),
                bytes_allreduce_equivalent=equivalent if params else None,
                listen_cpu_s=cpu[-1] if cpu else None,
            )
        )
    return figures


def _contributions(lifetime: ProcessLifetime) -> list[Ready]:
    """Return the last Ready event of each round: a contribution may be encoded twice, but it is
    trained once."""
    by_round = {
        e.round: e for e in lifetime.events if isinstance(e, Ready) and e.fragment == ANCHOR
    }
    return list(by_round.values())


def _tokens(lifetime: ProcessLifetime) -> int:
    """Tokens that a process trained: the larger of two counts. Metrics include unfinished rounds,
    and contributions include the last second."""
    counters = [event.tokens for event in lifetime.events if isinstance(event, Metrics)]
    return max([*counters, sum(ready.tokens for ready in _contributions(lifetime))])


def _counter(lifetime: ProcessLifetime, name: str) -> int:
    return max(
        (getattr(e, name) for e in lifetime.events if isinstance(e, Metrics | Finished)), default=0
    )


def _members_at(ready: Ready, lives: Sequence[ProcessLifetime]) -> int:
    """Number of peers that an all-reduce at that time would have had."""
    return len({lifetime.peer for lifetime in lives if lifetime.lives_at(ready.t)} | {ready.peer})


def _agreement(events: Sequence[Event]) -> dict[str, bool]:
    """By peer: True if, in the last round that it shares with another peer, its state digest is
    that of most peers. Digests of different lineages are not compared: their states may differ."""
    digests: dict[tuple[int, int, str], dict[str, str]] = {}
    lineages: dict[str, str] = {}
    for event in events:
        if isinstance(event, Commit):
            lineages[event.peer] = event.lineage
            key = (event.fragment, event.round, event.lineage)
        elif isinstance(event, Finished):
            key = (-1, event.outer_steps, lineages.get(event.peer, ""))
        else:
            continue
        digests.setdefault(key, {})[event.peer] = event.state_digest
    agreement: dict[str, bool] = {}
    for by_peer in digests.values():
        if len(by_peer) > 1:
            ((most, _),) = Counter(by_peer.values()).most_common(1)
            agreement |= {peer: digest == most for peer, digest in by_peer.items()}
    return agreement


def _round(commit: Commit, names: Mapping[str, str], t0: float) -> RoundFigures:
    return RoundFigures(
        fragment=commit.fragment,
        round=commit.round,
        attempt=commit.attempt,
        roster=[names.get(peer, peer) for peer in commit.roster],
        t_s=commit.t - t0,
        tokens=commit.tokens,
    )


def _faults(events: Sequence[Event], names: Mapping[str, str], t0: float) -> list[FaultFigures]:
    return [
        FaultFigures(t_s=event.t - t0, name=names.get(event.peer, event.name), what=event.what)
        for event in events
        if isinstance(event, Fault)
    ]


def _diverged(events: Sequence[Event], names: Mapping[str, str]) -> list[str]:
    found = [event for event in events if isinstance(event, Diverged)]
    return sorted({f"{names.get(e.member, e.member)} in round {e.round}" for e in found})


def _slowest(seconds: Iterable[float | None]) -> float | None:
    return max((each for each in seconds if each is not None), default=None)


def _finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, which JSON lacks."""
    return value if math.isfinite(value) else None


def _versions() -> dict[str, str | None]:
    """Return versions by package, from the packages' metadata: to import torch takes seconds."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("torch", "lowcomm"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _machine() -> dict[str, Any]:
    """Return the machine's cores, CPU and memory, but not its name: people pass reports on."""
    cpu = None
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        cpu = next(
            (
                line.partition(":")[2].strip()
                for line in info.splitlines()
                if line.startswith("model name")
            ),
            None,
        )
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        memory = None  # Not Linux.
    return {"cores": os.cpu_count(), "cpu": cpu or platform.machine(), "memory_bytes": memory}
