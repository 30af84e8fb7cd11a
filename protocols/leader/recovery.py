"""The peers that can give the run's state, and the versions to which the run goes back if none can,
or none knows which state is right.

These versions are checkpoints of peers; or versions in memory, if only the result of a committed
round was lost with all its holders. Must NOT decide which peer gets in (joins.py), nor send
anything.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from protocols.leader.peer_accounts import keep_only
from protocols.leader.reports import Reports
from protocols.messages.log_entries import Restore
from protocols.messages.peer import Join, Kept
from protocols.state.checkpoint_progress import progress_at, remaining_at
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Version

COPIES_MAX = 2
"""Copies that a donor makes and hashes at a time."""
ACCUSERS = 2
"""So many peers that got a wrong state from a donor are believed; a single one may lie."""


@dataclass(slots=True)
class Donors:
    """The peers that can give the run's present state to others, by what peers report of it."""

    me: PeerId
    run_state: RunState
    reports: Reports
    asking: dict[PeerId, Join]
    """The open requests for a state; the leader's joins change them (joins.py)."""
    accused: dict[PeerId, set[PeerId]] = field(default_factory=dict[PeerId, set[PeerId]])
    """By donor that gave another state than it had reported, the peers that say so."""

    def accuse(self, donor: PeerId, peer: PeerId) -> None:
        """A peer accuses a donor. If ACCUSERS do, the donor counts as having no state."""
        if donor == peer:
            # The donor found the damage itself, and no longer reports that state.
            self.reports.forget_states(donor)
            return
        accusers = self.accused.setdefault(donor, set())
        if len(accusers) < ACCUSERS:
            accusers.add(peer)
        if self.run_state.is_over:
            return  # No peer can make this state again: all donors are tried again.
        receivers = self.run_state.receivers
        if len(accusers) == ACCUSERS or receivers.keys() <= {donor, peer}:
            self.reports.forget_states(donor)

    def acquit(self, donor: PeerId) -> None:
        """Forget the accusations of a donor."""
        self.accused.pop(donor, None)

    def acquit_all(self) -> None:
        """Forget all accusations: the run goes back to other states."""
        self.accused.clear()

    def keep(self, peers: Set[PeerId]) -> None:
        """Forget accusations of all other peers, and by them."""
        keep_only(peers, self.accused)
        for accusers in self.accused.values():
            if len(accusers) < ACCUSERS:  # With ACCUSERS accusers a donor counts as wrong for good.
                accusers.intersection_update(peers)

    def versions(self) -> tuple[Version, ...]:
        """The state that a joiner needs: each fragment's, after its last committed round."""
        rounds = [self.run_state.cut_round(f) for f in range(self.run_state.fragments)]
        agreed = self.run_state.agreed_digest
        return tuple(
            Version(f, r, agreed or self.reports.majority_digest(f, r))
            for f, r in enumerate(rounds)
        )

    def with_versions(self, joiner: PeerId, versions: tuple[Version, ...]) -> tuple[PeerId, ...]:
        """Live members that hold exactly these versions, confirmed by another member.

        The donor that failed the joiner last time comes last; the leader has no preference.
        """
        members = self.run_state.members
        donors = members.keys() - {joiner}
        # Nor is a donor waited for that ACCUSERS have found wrong: its report is not believed.
        wrong = {peer for peer, accusers in self.accused.items() if len(accusers) == ACCUSERS}
        silent = donors - self.asking.keys() - wrong
        for version in versions:
            states = self.reports.states(version.fragment, version.round)
            equal = {peer for peer, digest in states.items() if digest == version.state_digest}
            sure = equal - self.asking.keys()  # A peer that asks for a state has none.
            if not sure and len(equal) < 2:
                return ()  # There is one holder, and its own copy differs from the reported state.
            few = 2 * len(sure & silent) <= len(silent)
            if not self.run_state.agreed_digest and few and silent - states.keys():
                return ()  # Half of them may be wrong; the reports of the others are under way.
            donors = donors & equal
        order = sorted(donors, key=lambda peer: (peer == self.me, peer))
        _, last = self.run_state.cut_of(joiner)
        # In turn, starting after the donor that failed: several may be bad.
        failed = last.donors[0] if last is not None else None
        tried = order.index(failed) + 1 if failed is not None and failed in donors else 0
        return (*order[tried:], *order[:tried])

    def busy(self) -> set[PeerId]:
        """Donors that are making and hashing COPIES_MAX copies. A donor that has finished them only
        sends, as fast as a joiner's line allows."""
        joiners, cuts = self.run_state.joiners, self.run_state.cuts
        waiting = joiners.keys() - self.asking
        open_ = [cuts[peer][1] for peer in waiting if peer in cuts and not cuts[peer][1].roots]
        copies = Counter(donor for cut in open_ for donor in cut.donors)
        return {donor for donor, number in copies.items() if number >= COPIES_MAX}


@dataclass(slots=True)
class Rollback:
    """Whether the run must go back, and to which versions."""

    run_state: RunState
    reports: Reports
    donors: Donors
    asking: dict[PeerId, Join]
    """The open requests for a state; a rollback drops them."""
    kept: dict[PeerId, Kept] = field(default_factory=dict[PeerId, Kept])
    """By peer, its newest checkpoint."""
    hopeless_since: float = NEVER
    """Since when no peer can give a state, or none can tell which state is right."""

    def restore(self, now: float, *, patience_s: float) -> Restore | None:
        """A rollback to the kept versions with the most committed tokens, once no peer can give a
        state, or it cannot be told which state is right (of two peers that differ, for example).

        `patience_s`: a peer that has the state may be returning. If members differ, a returning
        peer cannot decide, since it would get its state from one of them.
        """
        split = self.is_split
        if not split and not self._nobody_has_state():
            self.hopeless_since = NEVER
            return None
        self.hopeless_since = min(self.hopeless_since, now)
        usable = self._usable()
        if not usable or not (split or now >= self.hopeless_since + patience_s):
            return None
        self.donors.acquit_all()
        # A peer that lacks these versions asks again when it has read the Restore.
        self.asking.clear()
        self.hopeless_since = NEVER
        return best(usable)

    def run_is_lost(self, now: float, *, patience_s: float) -> bool:
        """As `restore`, but there is no checkpoint, so the run is lost. Not while a witness keeps
        the log for peers that trained and are all out: they may return."""
        late = now >= self.hopeless_since + patience_s
        return late and bool(self.run_state.receivers) and not self._usable()

    @property
    def is_split(self) -> bool:
        """Have all members reported their states, without a majority for any?"""
        asking = self.asking.keys()
        return any(self.reports.is_split(f, asking) for f in range(self.run_state.fragments))

    def _usable(self) -> list[Restore]:
        return usable(self.run_state, self.reports, self.kept.values(), self.donors.versions())

    def _nobody_has_state(self) -> bool:
        """Does every member ask for a state, so that none can give one? Or does a witness lead,
        with all peers that trained out?"""
        accused = self.donors.accused
        if not (self.asking or accused):
            return False  # The usual case.
        receivers = self.run_state.receivers
        if not receivers.keys() <= self.asking.keys() | accused.keys():
            return False
        if any(map(self._makes_a_step, receivers.keys() - self.asking.keys())):
            return False  # Accused or not: no peer has had time to report a new round.
        versions, members = self.donors.versions(), self.run_state.members
        found = (self.reports.states(v.fragment, v.round) for v in versions)
        able = members.keys() - self.asking.keys()  # One that asks has not got all of its state.
        states = [reported.keys() & able for reported in found]
        if self.run_state.is_over and all(states):
            # A peer has the final state, and its ranks have ended: no round is repeated.
            return False
        return not any(self.donors.with_versions(peer, versions) for peer in receivers)

    def _makes_a_step(self, peer: PeerId) -> bool:
        """Is its last report believed, and not of the last committed round?"""
        said = self.reports.newest_of(peer)
        return any(v.state_digest and v.round < self.run_state.cut_round(v.fragment) for v in said)


def usable(
    run_state: RunState, reports: Reports, kept: Iterable[Kept], committed: tuple[Version, ...]
) -> list[Restore]:
    """All possible rollbacks; `committed`: the versions that cannot be had any more."""
    disks = [
        back_to(run_state, cut)
        for cut in kept
        if run_state.is_kept(cut.lineage, cut.versions)
        if all(_named(run_state, v) in ("", v.state_digest) for v in cut.versions)
    ]
    return _live(run_state, reports, committed) + disks


def best(cuts: Sequence[Restore]) -> Restore:
    """The rollback with the most committed tokens; ties are broken equally by every leader."""
    rest = {cut: [(v.round, v.state_digest) for v in cut.versions] for cut in cuts}
    return max(cuts, key=lambda cut: (cut.tokens, cut.live, rest[cut]))


def cut_at(run_state: RunState, versions: tuple[Version, ...]) -> Kept | None:
    """The run at these versions, which a peer holds; None if the samples until then are
    forgotten."""
    anchor = versions[0].round
    remaining = remaining_at(run_state, anchor)
    if remaining is None:
        return None
    return Kept(run_state.lineage, versions, *progress_at(run_state, anchor), remaining)


def back_to(run_state: RunState, kept: Kept) -> Restore:
    """The Restore entry for these versions."""
    return Restore(
        parent_lineage=run_state.lineage,
        versions=kept.versions,
        inner_step=kept.inner_step,
        tokens=kept.tokens,
        voters=(),
        fork=0,
        lonely=False,
        salt=run_state.index,
        remaining=kept.remaining,
    )


def _live(run_state: RunState, reports: Reports, committed: tuple[Version, ...]) -> list[Restore]:
    """Rollbacks to versions in members' memory that the run went through. Not in a stepwise run,
    where the ranks have the state."""
    if run_state.stepwise:
        return []
    known = dict.fromkeys(reports.newest_of(peer) for peer in run_state.members)
    agreed = [
        cut_at(run_state, versions)
        for versions in known
        if len(versions) == len(committed) and versions != committed
        if all(_is_agreed(run_state, reports, version) for version in versions)
    ]
    return [replace(back_to(run_state, cut), live=True) for cut in agreed if cut is not None]


def _is_agreed(run_state: RunState, reports: Reports, version: Version) -> bool:
    """Does the log name this state, or do most members have it?"""
    agreed = _named(run_state, version) or reports.sure_digest(version.fragment, version.round)
    return agreed == version.state_digest


def _named(run_state: RunState, version: Version) -> str:
    """The digest of the state after this round in the log; "" if it is not there."""
    following = run_state.commit(version.fragment, version.round + 1)
    return following.previous_state_digest if following is not None else ""
