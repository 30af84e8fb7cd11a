"""Finds the lifetimes of processes, the kills and the joins of a run in its events.

Pure functions of a list of events. Must NOT read files (lowcomm.reports.timeline does).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowcomm.reports.events import (
    Commit,
    Event,
    Fault,
    Finished,
    Left,
    Lost,
    Member,
    Ready,
    SnapshotReceived,
    Start,
    Stopped,
)

AFTERGLOW_S = 1.0
"""A peer that other peers call lost is alive if it writes events more than so many seconds
later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillFigures:
    """A killed peer, and the time until the surviving peers committed the next round.

    `round`: the first round committed after the kill. `kill_to_next_commit_s` counts from the kill,
    or from the moment when the last surviving peer of the roster was ready for that round, if that
    was later: until then the survivors were training, not waiting. `kill_to_next_commit_wall_s`
    counts from the kill itself.
    """

    peer: str
    name: str
    t_s: float
    round: int | None
    kill_to_next_commit_s: float | None
    kill_to_next_commit_wall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFigures:
    """A process that started after the first commit. Its times count from its exec, except `t_s`,
    which counts from the run's first process start."""

    peer: str
    name: str
    t_s: float
    join_to_member_s: float | None  # To the event in its own file that it is a member.
    join_to_contribution_s: float | None  # To the first commit that counted its contribution.
    state_bytes: int | None
    state_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLifetime:
    """One process of a peer, from its start event to its end."""

    peer: str
    begin_t: float
    """The process start (`exec_t`), in unix seconds; without a Start event, the time of its first
    event."""
    member_t: float | None
    end_t: float | None
    end: str
    """The same values as PeerFigures.end."""
    events: tuple[Event, ...]
    """Events that the process wrote, by time."""

    def lives_at(self, t: float) -> bool:
        """True if the process was a member at `t` (unix seconds) and had not ended."""
        return (
            self.member_t is not None
            and self.member_t <= t
            and (self.end_t is None or t < self.end_t)
        )


def find_lives(events: Sequence[Event]) -> list[ProcessLifetime]:
    """Return the processes of all peers, ordered by their begin. `events` must be ordered by
    time."""
    own: dict[str, list[list[Event]]] = {}
    for event in events:
        if isinstance(event, Fault):
            continue  # Its writer is the program that injects it.
        spans = own.setdefault(event.peer, [])
        if isinstance(event, Start) or not spans:
            spans.append([])
        spans[-1].append(event)
    lives: list[ProcessLifetime] = []
    known = {word for spans in own.values() for word in (spans[0][0].peer, spans[0][0].name)}
    for spans in own.values():
        for span, later in zip(spans, [*spans[1:], None], strict=True):
            lives.append(_lifetime(span, later[0].t if later else math.inf, events, known))
    return sorted(lives, key=lambda lifetime: lifetime.begin_t)


def first_commits(events: Sequence[Event]) -> list[Commit]:
    """Return the earliest commit event of every (fragment, round), ordered by time. If a round was
    committed in several lineages, the valid one counts: the newest lineage, or else the predecessor
    that led to it."""
    commits = [event for event in events if isinstance(event, Commit)]
    before = _predecessors(commits)
    first: dict[tuple[int, int], Commit] = {}
    begins: dict[int, int] = {}
    """By fragment: the first round of all later lineages. Older lineages end before that round."""
    lineage = commits[-1].lineage if commits else None
    while lineage is not None:
        own = [
            commit
            for commit in commits
            if commit.lineage == lineage
            and commit.round < begins.get(commit.fragment, commit.round + 1)
        ]
        for commit in own:
            first.setdefault((commit.fragment, commit.round), commit)
        for commit in own:
            at = begins.get(commit.fragment, commit.round)
            begins[commit.fragment] = min(at, commit.round)
        lineage = before.get(lineage)
    return sorted(first.values(), key=lambda commit: commit.t)


def run_begin(lives: Sequence[ProcessLifetime]) -> float:
    """Return the unix seconds of the first process start; 0.0 if there is no process."""
    return min((lifetime.begin_t for lifetime in lives), default=0.0)


def find_kills(
    events: Sequence[Event], lives: Sequence[ProcessLifetime], names: Mapping[str, str]
) -> list[KillFigures]:
    """Return the figures of all kills, ordered by time. `events` must be ordered by time."""
    kills = [lifetime for lifetime in lives if lifetime.end == "killed"]
    figures = [_kill(lifetime, events, lives, names) for lifetime in kills]
    return sorted(figures, key=lambda kill: kill.t_s)


def find_joins(
    lives: Sequence[ProcessLifetime], anchors: Sequence[Commit], names: Mapping[str, str]
) -> list[JoinFigures]:
    """Return the figures of all joins, ordered by begin. `anchors`: the first commits of the anchor
    fragment, ordered by time."""
    joins: list[JoinFigures] = []
    for lifetime in lives:
        if not anchors or lifetime.begin_t <= anchors[0].t:
            continue
        begin, own = lifetime.begin_t, lifetime.events
        member = [e.t for e in own if isinstance(e, Member) and e.member == lifetime.peer]
        counted = [e.t for e in own if isinstance(e, Commit) and e.counted]
        state = next((e for e in own if isinstance(e, SnapshotReceived)), None)
        joins.append(
            JoinFigures(
                peer=lifetime.peer,
                name=names.get(lifetime.peer, lifetime.peer),
                t_s=begin - run_begin(lives),
                join_to_member_s=member[0] - begin if member else None,
                join_to_contribution_s=counted[0] - begin if counted else None,
                state_bytes=sum(state.donor_bytes) if state else None,
                state_s=state.seconds if state else None,
            )
        )
    return joins


def _predecessors(commits: Sequence[Commit]) -> dict[str, str]:
    """Return the predecessor of each lineage: the lineage of which its peers wrote commits before.
    If there are several, the latest one, since a peer that was away may have missed some. The
    branch of a fork that was given up is never a predecessor: its nodes return as other peers."""
    began: dict[str, int] = {}
    for commit in commits:
        began.setdefault(commit.lineage, len(began))
    before: dict[str, str] = {}
    last: dict[str, str] = {}
    for commit in commits:
        here, was = commit.lineage, last.get(commit.peer, commit.lineage)
        # If a clock was set back, the order may be reversed: avoid an endless loop of predecessors.
        if began[before.get(here, was)] <= began[was] < began[here]:
            before[here] = was
        last[commit.peer] = here
    return before


def _lifetime(
    own: list[Event], until: float, events: Sequence[Event], known: set[str]
) -> ProcessLifetime:
    """Make one ProcessLifetime from the events of its process, `own`. `until`: the
    begin of the peer's next process, in unix seconds."""
    first, peer = own[0], own[0].peer
    begin = first.exec_t if isinstance(first, Start) else first.t
    members = [e.t for e in own if isinstance(e, Member) and e.member == peer]
    ends = [(e.t, "finished") for e in own if isinstance(e, Finished)]
    ends += [(e.t, "stopped") for e in own if isinstance(e, Stopped) and not ends]
    for event in events if not ends else ():
        if not first.t <= event.t < until or own[-1].t > event.t + AFTERGLOW_S:
            continue
        if isinstance(event, Fault) and _kills_peer(event, first, known):
            ends.append((event.t, "killed"))
        elif isinstance(event, Lost | Left) and event.member == peer:
            ends.append((event.t, "lost" if isinstance(event, Lost) else "left"))
    if not ends and until < math.inf:
        ends.append((own[-1].t, "lost"))  # Started again before a peer noticed the loss.
    end_t, end = min(ends, default=(None, ""))
    # A founder may have no event of its admission: it was a member from its first round on.
    evidence = [e.t for e in own if isinstance(e, Ready | Commit)]
    member_t = min([*members, *evidence], default=None)
    return ProcessLifetime(
        peer=peer, begin_t=begin, member_t=member_t, end_t=end_t, end=end, events=(*own,)
    )


def _kill(
    victim: ProcessLifetime,
    events: Sequence[Event],
    lives: Sequence[ProcessLifetime],
    names: Mapping[str, str],
) -> KillFigures:
    kill_t = victim.end_t
    assert kill_t is not None  # A killed process has an end.
    commits = [event for event in events if isinstance(event, Commit)]
    done = {(e.fragment, e.round, e.lineage) for e in commits if e.t <= kill_t}
    others = [event for event in commits if event.t > kill_t and event.peer != victim.peer]
    # Peers apply a round at slightly different times: the next one is new to all of them.
    commit = next((e for e in others if (e.fragment, e.round, e.lineage) not in done), None)
    ready_t = kill_t
    if commit is not None:
        alive = {lifetime.peer for lifetime in lives if lifetime.lives_at(commit.t)} - {victim.peer}
        readies = [
            event.t
            for event in events
            if isinstance(event, Ready)
            and (event.fragment, event.round) == (commit.fragment, commit.round)
            and event.peer in alive.intersection(commit.roster)
            and event.t <= commit.t
        ]
        ready_t = max([kill_t, *readies])
    return KillFigures(
        peer=victim.peer,
        name=names.get(victim.peer, victim.peer),
        t_s=kill_t - run_begin(lives),
        round=commit.round if commit else None,
        kill_to_next_commit_s=commit.t - ready_t if commit else None,
        kill_to_next_commit_wall_s=commit.t - kill_t if commit else None,
    )


def _kills_peer(fault: Fault, peer: Event, known: set[str]) -> bool:
    """True if the fault is a kill of this peer: it names the peer or, if it names none, the peer
    wrote it."""
    if "kill" not in fault.what.lower():
        return False
    named = known.intersection(re.findall(r"[\w.-]+", fault.what))
    return bool(named & {peer.peer, peer.name}) if named else fault.peer == peer.peer
