"""Who lived when, and how the others fared: lives, kills and joins, found in the events.

Pure functions of a list of events. Must NOT read files (lowcomm.reports.timeline does).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

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
"""A peer that others call lost and that writes on for longer than this is not dead."""


class KillFigures(TypedDict):
    """A killed peer, and how soon the others committed what it interrupted.

    `kill_to_next_commit_s` counts from the later of the kill and the moment when the last
    surviving roster peer was ready for that round (until then the survivors were training, not
    waiting); `_wall_s` from the kill itself. The round: the first to commit after the kill.
    """

    peer: str
    name: str
    t_s: float
    round: int | None
    kill_to_next_commit_s: float | None
    kill_to_next_commit_wall_s: float | None


class JoinFigures(TypedDict):
    """A process that started after the first commit; times count from its exec."""

    peer: str
    name: str
    t_s: float
    join_to_member_s: float | None  # To its own `member` event in its own log.
    join_to_contribution_s: float | None  # To its first commit that counted it.
    state_bytes: int | None
    state_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process of a peer, from its start event to what ended it."""

    peer: str
    begin_t: float
    """Its exec_t, unix seconds."""
    member_t: float | None
    end_t: float | None
    end: str
    """As PeerFigures.end."""
    events: tuple[Event, ...]
    """Its own, by time."""

    def lives_at(self, t: float) -> bool:
        """A member, and not yet at its end."""
        return (
            self.member_t is not None
            and self.member_t <= t
            and (self.end_t is None or t < self.end_t)
        )


def find_lives(events: Sequence[Event]) -> list[Life]:
    """The lives of all peers, by their begin. `events` by time."""
    own: dict[str, list[list[Event]]] = {}
    for event in events:
        if isinstance(event, Fault):
            continue  # Said about a peer by whoever injects it.
        spans = own.setdefault(event.peer, [])
        if isinstance(event, Start) or not spans:
            spans.append([])
        spans[-1].append(event)
    lives: list[Life] = []
    known = {word for spans in own.values() for word in (spans[0][0].peer, spans[0][0].name)}
    for spans in own.values():
        for span, later in zip(spans, [*spans[1:], None], strict=True):
            lives.append(_life(span, later[0].t if later else math.inf, events, known))
    return sorted(lives, key=lambda life: life.begin_t)


def first_commits(events: Sequence[Event]) -> list[Commit]:
    """Of every (fragment, round) the earliest commit event, by time; of one that was committed in
    several lineages, in that which stands: the run's, or a predecessor that led to it."""
    commits = [event for event in events if isinstance(event, Commit)]
    before = _predecessors(commits)
    first: dict[tuple[int, int], Commit] = {}
    begins: dict[int, int] = {}
    """By fragment: the first round of the lineages that came later. Older ones end before it."""
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


def run_begin(lives: Sequence[Life]) -> float:
    """Unix seconds of the first process start; 0 without a life."""
    return min((life.begin_t for life in lives), default=0.0)


def find_kills(
    events: Sequence[Event], lives: Sequence[Life], names: Mapping[str, str]
) -> list[KillFigures]:
    """By time of the kill. `events` by time."""
    kills = [life for life in lives if life.end == "killed"]
    figures = [_kill(life, events, lives, names) for life in kills]
    return sorted(figures, key=lambda kill: kill["t_s"])


def find_joins(
    lives: Sequence[Life], anchors: Sequence[Commit], names: Mapping[str, str]
) -> list[JoinFigures]:
    """By begin. `anchors`: the first commits of the anchor fragment, by time."""
    joins: list[JoinFigures] = []
    for life in lives:
        if not anchors or life.begin_t <= anchors[0].t:
            continue
        begin, own = life.begin_t, life.events
        member = [e.t for e in own if isinstance(e, Member) and e.member == life.peer]
        counted = [e.t for e in own if isinstance(e, Commit) and e.counted]
        state = next((e for e in own if isinstance(e, SnapshotReceived)), None)
        joins.append(
            {
                "peer": life.peer,
                "name": names.get(life.peer, life.peer),
                "t_s": begin - run_begin(lives),
                "join_to_member_s": member[0] - begin if member else None,
                "join_to_contribution_s": counted[0] - begin if counted else None,
                "state_bytes": sum(state.donor_bytes) if state else None,
                "state_s": state.seconds if state else None,
            }
        )
    return joins


def _predecessors(commits: Sequence[Commit]) -> dict[str, str]:
    """By lineage: the one before it. That is where its peers were before; of several the latest, as
    who was away for long may have missed some. Never the branch of a fork that was given up: its
    nodes return as other peers."""
    began: dict[str, int] = {}
    for commit in commits:
        began.setdefault(commit.lineage, len(began))
    before: dict[str, str] = {}
    last: dict[str, str] = {}
    for commit in commits:
        here, was = commit.lineage, last.get(commit.peer, commit.lineage)
        # Clocks that were set back could tell it the other way round: that would have no end.
        if began[before.get(here, was)] <= began[was] < began[here]:
            before[here] = was
        last[commit.peer] = here
    return before


def _life(own: list[Event], until: float, events: Sequence[Event], known: set[str]) -> Life:
    """One life from its own events; it ended before `until`, when the next one began."""
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
        ends.append((own[-1].t, "lost"))  # Started again before anyone missed it.
    end_t, end = min(ends, default=(None, ""))
    # A founder's log may begin with itself inside: then it was a member from its first round on.
    evidence = [e.t for e in own if isinstance(e, Ready | Commit)]
    member_t = min([*members, *evidence], default=None)
    return Life(peer=peer, begin_t=begin, member_t=member_t, end_t=end_t, end=end, events=(*own,))


def _kill(
    victim: Life, events: Sequence[Event], lives: Sequence[Life], names: Mapping[str, str]
) -> KillFigures:
    kill_t = victim.end_t
    assert kill_t is not None  # A killed life has its end.
    commits = [event for event in events if isinstance(event, Commit)]
    done = {(e.fragment, e.round, e.lineage) for e in commits if e.t <= kill_t}
    others = [event for event in commits if event.t > kill_t and event.peer != victim.peer]
    # Peers apply one round at slightly different times: a round that one had is not the next.
    commit = next((e for e in others if (e.fragment, e.round, e.lineage) not in done), None)
    ready_t = kill_t
    if commit is not None:
        alive = {life.peer for life in lives if life.lives_at(commit.t)} - {victim.peer}
        readies = [
            event.t
            for event in events
            if isinstance(event, Ready)
            and (event.fragment, event.round) == (commit.fragment, commit.round)
            and event.peer in alive.intersection(commit.roster)
            and event.t <= commit.t
        ]
        ready_t = max([kill_t, *readies])
    return {
        "peer": victim.peer,
        "name": names.get(victim.peer, victim.peer),
        "t_s": kill_t - run_begin(lives),
        "round": commit.round if commit else None,
        "kill_to_next_commit_s": commit.t - ready_t if commit else None,
        "kill_to_next_commit_wall_s": commit.t - kill_t if commit else None,
    }


def _kills_peer(fault: Fault, peer: Event, known: set[str]) -> bool:
    """A fault hits whom it names, or else the peer in whose log it is."""
    if "kill" not in fault.what.lower():
        return False
    named = known.intersection(re.findall(r"[\w.-]+", fault.what))
    return bool(named & {peer.peer, peer.name}) if named else fault.peer == peer.peer
