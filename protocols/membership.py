"""What the log says, entry by entry: who is in, whose contributions count, what is committed.

A pure projection: two peers that applied the same entries hold equal objects. Must NOT look at
connections, time or payloads.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocols import entries as e
from protocols.entry_rules import objection
from protocols.errors import LogError
from protocols.ids import FragmentParts, PeerId, PeerInfo, RoundKey, Stamp, Version
from protocols.image import Branch, Granted, Image, Losses, Returned
from protocols.log import Voters, voters_after
from protocols.wire import encode_entry

FORGIVE_ROUNDS = 8
"""A peer that is counted again after so many rounds has one loss less to its name."""
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
    branches: list[Branch] = field(default_factory=list[Branch])
    """The lineages before, oldest first."""
    run: e.Run | None = None
    restored: e.Restore | None = None
    restored_index: int = 0
    voters: Voters = ()
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
    returned: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """The newest view when each came (back) as a joiner: in that one it counts no more."""
    losses: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """How often each went away without a word."""
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

    def counts(self, peer: PeerId, view: int) -> bool:
        """Is this the member that the view meant? Who left it and came back since may have sent
        other bytes to its rounds in an earlier life."""
        return peer in self.members and self.returned.get(peer, 0) < view

    def is_kept(self, lineage: int, versions: Sequence[Version]) -> bool:
        """Is this cut, made in this lineage, a state that the run went through and still stands
        on? Not what a Restore took back, though its round may have the same number."""
        left = [branch.lineage for branch in self.branches]
        if lineage != self.lineage and lineage not in left:
            return False
        later = self.branches[left.index(lineage) :] if lineage in left else []
        return len(versions) == self.fragments and all(
            version.fragment == fragment
            and version.round <= min((b.rounds[fragment] for b in later), default=version.round)
            for fragment, version in enumerate(versions)
        )

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

    def apply(self, entry: e.LogEntry) -> None:
        """Apply the next entry. Raises LogError, and changes nothing, if it makes no sense here."""
        assert entry.index == self.index + 1, "entries are applied in order"
        why = objection(self, entry.body)
        if why:
            raise LogError(f"entry {entry.index} of the log {why}")
        self.index = entry.index
        self.voters = voters_after(self.voters, entry.body)
        if isinstance(entry.body, e.Run | e.Restore):
            # The parent's lineage is hashed in: two branches of a fork never share one.
            seed = self.lineage.to_bytes(8, "big") + encode_entry(entry)
            if isinstance(entry.body, e.Restore):
                rounds = tuple(version.round for version in entry.body.versions)
                self.branches.append(Branch(self.lineage, rounds))
            self.lineage = int.from_bytes(hashlib.sha256(seed).digest()[:8], "big")
        match entry.body:
            case e.Run() as run:
                self.run = run
            case e.Elected() | e.Voter():
                pass
            case e.Restore() as restore:
                self._restore(entry.index, restore)
            case e.Cut() as cut:
                self._cut(entry.index, cut)
            case e.Member(info=info):
                self.seats[info.peer] = info
                self.joiners.pop(info.peer, None)
                self.members[info.peer] = info
                # Also without a cut, from its own checkpoint: an earlier life may have contributed.
                self.returned[info.peer] = self.views[-1].view if self.views else 0
            case e.Left(peer=peer) | e.Lost(peer=peer):
                if isinstance(entry.body, e.Lost):
                    self.losses[peer] = self.losses.get(peer, 0) + 1
                for table in (self.members, self.joiners, self.cuts):
                    table.pop(peer, None)
            case e.View() as view:
                self._view(view)
            case e.Attempt() as attempt:
                key = RoundKey(attempt.fragment, attempt.group, attempt.round)
                self.attempts[key] = attempt
            case e.Commit() as commit:
                self._commit(commit)

    def image(self) -> Image:
        """Everything, as plain data."""
        assert self.run is not None, "there is nothing before the Run"
        return Image(
            index=self.index,
            lineage=self.lineage,
            branches=tuple(self.branches),
            run=self.run,
            restored=self.restored,
            restored_index=self.restored_index,
            voters=self.voters,
            members=tuple(self.members.values()),
            joiners=tuple(self.joiners.values()),
            granted=tuple(Granted(index, cut) for index, cut in self.cuts.values()),
            views=tuple(self.views),
            attempts=tuple(self.attempts.values()),
            commits=tuple(c for f in sorted(self.commits) for c in self.commits[f]),
            seats=tuple(self.seats.values()),
            returned=tuple(Returned(peer, view) for peer, view in self.returned.items()),
            losses=tuple(Losses(peer, count) for peer, count in self.losses.items()),
            inner_step=self.inner_step,
            tokens=self.tokens,
        )

    def become(self, image: Image) -> None:
        """Hold what the image says, in place: others keep a reference to this object."""
        self.index, self.run, self.voters = image.index, image.run, image.voters
        self.lineage, self.branches = image.lineage, list(image.branches)
        self.restored, self.restored_index = image.restored, image.restored_index
        self.members = {info.peer: info for info in image.members}
        self.joiners = {info.peer: info for info in image.joiners}
        self.cuts = {g.cut.info.peer: (g.index, g.cut) for g in image.granted}
        self.views = list(image.views)
        self.attempts = {RoundKey(a.fragment, a.group, a.round): a for a in image.attempts}
        self.commits = {}
        for commit in image.commits:
            self.commits.setdefault(commit.fragment, []).append(commit)
        self.seats = {info.peer: info for info in image.seats}
        self.returned = {x.peer: x.view for x in image.returned}
        self.losses = {loss.peer: loss.count for loss in image.losses}
        self.inner_step, self.tokens = image.inner_step, image.tokens

    def copy(self) -> "Membership":
        """One that can go ahead of this one (the leader's)."""
        other = Membership()
        if self.run is not None:
            other.become(self.image())
        return other

    def _restore(self, index: int, restore: e.Restore) -> None:
        """Who is in stays in; whatever was under way belongs to the old lineage."""
        self.restored, self.restored_index = restore, index
        self.inner_step, self.tokens = restore.inner_step, restore.tokens
        for info in restore.seats:
            self.seats.setdefault(info.peer, info)
        self.commits, self.attempts, self.views, self.cuts = {}, {}, [], {}
        self.returned = {}

    def _cut(self, index: int, cut: e.Cut) -> None:
        info, known = cut.info, self.members.get(cut.info.peer)
        self.seats[info.peer] = info
        self.cuts[info.peer] = (index, cut)
        if known is not None and known.incarnation == info.incarnation:
            return  # A member whose state is wrong; what it contributes is its own still.
        # A restarted member holds nothing: until its state is here it only receives. Its vote is
        # on its disk and goes on.
        self.members.pop(info.peer, None)
        self.joiners[info.peer] = info
        self.returned[info.peer] = self.views[-1].view if self.views else 0

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
            if commit.round % FORGIVE_ROUNDS == 0:
                counted = {c.peer for c in commit.contributors}
                self.losses = {
                    peer: count - (peer in counted)
                    for peer, count in self.losses.items()
                    if count > (peer in counted)
                }
