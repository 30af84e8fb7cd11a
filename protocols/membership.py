"""What the log says, entry by entry: who is in, whose contributions count, what is committed.

A pure projection: two peers that applied the same entries hold equal objects. Must NOT look at
connections, time or payloads.
"""

from dataclasses import dataclass, field

from protocols import entries as e
from protocols.entry_rules import objection
from protocols.errors import LogError
from protocols.ids import FragmentParts, PeerId, PeerInfo, RoundKey, Stamp

KEEP_COMMITS = 8
"""Commits per fragment that stay in memory: catching up asks for no older one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt at one round: who contributes, who owns which part."""

    stamp: Stamp
    roster: tuple[PeerId, ...]
    parts: FragmentParts

    def owned_by(self, peer: PeerId) -> list[int]:
        return [i for i, owner in enumerate(self.parts.owners) if owner == peer]


@dataclass(slots=True)
class Membership:
    """The state that applying the log in order leads to."""

    index: int = 0
    lineage: int = 0
    run: e.Run | None = None
    restored: e.Restore | None = None
    members: dict[PeerId, PeerInfo] = field(default_factory=dict[PeerId, PeerInfo])
    joiners: dict[PeerId, PeerInfo] = field(default_factory=dict[PeerId, PeerInfo])
    """Registered by a Cut, not yet members: they receive, and do not contribute."""
    cuts: dict[PeerId, tuple[int, e.Cut]] = field(default_factory=dict[PeerId, tuple[int, e.Cut]])
    """The newest Cut of each receiver, with its log index."""
    views: list[e.View] = field(default_factory=list[e.View])
    """The newest last; older ones stay while a round of theirs may be open."""
    attempts: dict[RoundKey, e.Attempt] = field(default_factory=dict[RoundKey, e.Attempt])
    commits: dict[int, list[e.Commit]] = field(default_factory=dict[int, list[e.Commit]])
    """Newest last, by fragment."""
    seats: dict[PeerId, PeerInfo] = field(default_factory=dict[PeerId, PeerInfo])
    """Everybody who ever had a slot of the data, gone or not."""
    inner_step: int = 0
    """Committed global inner steps: those of the longest contribution of each anchor round."""
    tokens: int = 0
    """Committed tokens of the anchor fragment."""

    @property
    def receivers(self) -> dict[PeerId, PeerInfo]:
        return {**self.members, **self.joiners}

    def slot_of(self, peer: PeerId) -> int:
        """The peer's slot of the data: the one it had, or the next free one."""
        seat = self.seats.get(peer)
        if seat is not None:
            return seat.slot
        return max((info.slot for info in self.seats.values()), default=-1) + 1

    @property
    def fragments(self) -> int:
        return len(self.run.fragment_elements) if self.run else 0

    def committed(self, fragment: int) -> int:
        """The last committed round of a fragment; 0 is the initial state."""
        commits = self.commits.get(fragment)
        if commits:
            return commits[-1].round
        base = self.restored.versions if self.restored else ()
        return next((v.round for v in base if v.fragment == fragment), 0)

    def commit(self, fragment: int, round: int) -> e.Commit | None:  # noqa: A002
        return next((c for c in self.commits.get(fragment, ()) if c.round == round), None)

    def plan(self, fragment: int, round: int, group: int = 0) -> Plan | None:  # noqa: A002
        """The latest View and Attempt for a round that is not committed; None: none is open."""
        if round <= self.committed(fragment):
            return None
        view = next((v for v in reversed(self.views) if v.first_round[fragment] <= round), None)
        if view is None or self.run is None:
            return None
        attempt = self.attempts.get(RoundKey(fragment, group, round))
        if attempt is not None and attempt.view != view.view:
            attempt = None  # A later view took the round over.
        stamp = Stamp(
            run=self.run.run,
            lineage=self.lineage,
            view=view.view,
            fragment=fragment,
            group=group,
            round=round,
            attempt=attempt.attempt if attempt else 0,
        )
        parts = view.parts[fragment]
        if attempt is None:
            return Plan(stamp, view.roster, parts)
        return Plan(stamp, attempt.roster, FragmentParts(attempt.owners, parts.borders))

    def open_plan(self, fragment: int) -> Plan | None:
        """The plan of the first round that is not committed."""
        if fragment >= self.fragments:
            return None
        return self.plan(fragment, self.committed(fragment) + 1)

    def apply(self, entry: e.LogEntry, lineage: int) -> None:
        """Apply the next entry. Raises LogError, and changes nothing, if it makes no sense here."""
        assert entry.index == self.index + 1, "entries are applied in order"
        why = objection(self, entry.body)
        if why:
            raise LogError(f"entry {entry.index} of the log {why}")
        self.index = entry.index
        self.lineage = lineage
        match entry.body:
            case e.Run() as run:
                self.run = run
            case e.Restore() as restore:
                self._restore(restore)
            case e.Cut(info=info) as cut:
                self.seats[info.peer] = info
                self.cuts[info.peer] = (entry.index, cut)
                if info.peer not in self.members:
                    self.joiners[info.peer] = info
            case e.Member(info=info):
                self.seats[info.peer] = info
                self.joiners.pop(info.peer, None)
                self.members[info.peer] = info
            case e.Left(peer=peer) | e.Lost(peer=peer):
                for table in (self.members, self.joiners, self.cuts):
                    table.pop(peer, None)
            case e.View() as view:
                self._view(view)
            case e.Attempt() as attempt:
                key = RoundKey(attempt.fragment, attempt.group, attempt.round)
                self.attempts[key] = attempt
            case e.Commit() as commit:
                self._commit(commit)

    def _restore(self, restore: e.Restore) -> None:
        self.restored = restore
        self.inner_step, self.tokens = restore.inner_step, restore.tokens
        self.seats = {info.peer: info for info in restore.seats}

    def _view(self, view: e.View) -> None:
        # An earlier view stays only while it is the latest one for some open round.
        fragments = range(self.fragments)
        self.views = [
            old
            for old in self.views
            if any(
                old.first_round[f] < view.first_round[f] > self.committed(f) + 1 for f in fragments
            )
        ]
        self.views.append(view)

    def _commit(self, commit: e.Commit) -> None:
        commits = self.commits.setdefault(commit.fragment, [])
        commits.append(commit)
        del commits[:-KEEP_COMMITS]
        self.attempts.pop(RoundKey(commit.fragment, commit.group, commit.round), None)
        if commit.fragment == 0:  # The anchor fragment counts the run's progress.
            self.inner_step += max((c.steps for c in commit.contributors), default=0)
            self.tokens += sum(c.tokens for c in commit.contributors)
