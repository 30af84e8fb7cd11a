"""The state that the log leads to: members, contributions that count, committed rounds.

A pure function of the log: two peers that applied the same entries hold equal objects. Must NOT
look at connections, time or payloads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocols.messages import log_entries as e
from protocols.messages.snapshot import Branch, ReturnedInView
from protocols.messages.step_progress import StepProgress
from protocols.raft.log import Voters
from protocols.state.gossip_pairs import pairs_of
from protocols.state.round_plan import RoundPlan
from protocols.state.sample_ledger import SampleLedger
from protocols.state.tokens import SpentTokens
from protocols.types.ids import FragmentParts, PeerId, PeerInfo, RoundKey, Stamp, Version
from protocols.types.limits import PEERS_MAX
from protocols.types.signatures import NO_SIGNATURES, Signatures

KEEP_COMMITS = 8
"""Commits of each fragment that are kept in memory: a peer that catches up needs no older one."""
STALENESS_ROUNDS_MAX = 4
"""Work that began more rounds ago is given up: its pseudo-gradient is of too old parameters."""


@dataclass(slots=True)
class RunState:
    """The replicated state, changed by `apply` and `become` of transitions.py only."""

    index: int = 0
    lineage: int = 0
    branches: list[Branch] = field(default_factory=list[Branch])
    """Earlier lineages, oldest first."""
    run: e.Run | None = None
    restored: e.Restore | None = None
    restored_index: int = 0
    voters: Voters = ()
    mandate: e.Mandate = field(default_factory=e.Mandate)
    """The proof of the last election (raft/mandate.py)."""
    members: dict[PeerId, PeerInfo] = field(default_factory=dict[PeerId, PeerInfo])
    joiners: dict[PeerId, PeerInfo] = field(default_factory=dict[PeerId, PeerInfo])
    """Peers with a Cut that are not members yet: they receive results, and do not contribute."""
    cuts: dict[PeerId, tuple[int, e.Cut]] = field(default_factory=dict[PeerId, tuple[int, e.Cut]])
    """The newest Cut of each receiver, with its log index."""
    views: list[e.View] = field(default_factory=list[e.View])
    """The newest view is the last one; an older one is kept while a round of it may be open."""
    attempts: dict[RoundKey, e.Attempt] = field(default_factory=dict[RoundKey, e.Attempt])
    commits: dict[int, list[e.Commit]] = field(default_factory=dict[int, list[e.Commit]])
    """By fragment, the newest commit last."""
    seats: dict[PeerId, PeerInfo] = field(default_factory=dict[PeerId, PeerInfo])
    """All peers that took part, gone or not, in the order in which they joined last."""
    witnesses: dict[PeerId, PeerInfo] = field(default_factory=dict[PeerId, PeerInfo])
    """Peers that read the log and may vote, and neither train nor receive results."""
    forks: tuple[int, ...] = ()
    """This branch of the log: the forks that led to it, oldest first; () if there was none."""
    rivals: dict[PeerId, PeerInfo] = field(default_factory=dict[PeerId, PeerInfo])
    """In the branch of a voter that went on alone: the voters that may have done the same."""
    returned: dict[PeerId, ReturnedInView] = field(default_factory=dict[PeerId, ReturnedInView])
    """By peer, the view that was the newest one when it (re)joined or was excluded. The peer does
    not count in that view or earlier ones."""
    losses: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """By peer, how often it was lost without a Leave."""
    inner_step: int = 0
    """Committed inner steps: the sum over anchor rounds of the longest contribution's steps."""
    tokens: int = 0
    """Committed tokens of the anchor fragment; batches in a stepwise run."""
    ledger: SampleLedger = field(default_factory=SampleLedger)
    """The samples that each peer holds."""
    step_progress: StepProgress = field(default_factory=StepProgress)
    """The committed steps of a stepwise run, which has no `commits`."""
    spendings: SpentTokens = field(default_factory=SpentTokens)
    """Spent join tokens, and revoked tokens and certificates."""
    signatures: Signatures = field(default=NO_SIGNATURES, compare=False)
    """Checks the signatures of entries."""
    _open: dict[int, RoundPlan | None] = field(
        default_factory=dict[int, RoundPlan | None], compare=False
    )
    """By fragment, the open plan as a cache. It follows from fields that only `apply` and `become`
    of transitions.py change, and both clear it."""

    @property
    def receivers(self) -> Mapping[PeerId, PeerInfo]:
        """Members and joiners. The caller must not keep this mapping."""
        return {**self.members, **self.joiners} if self.joiners else self.members

    @property
    def readers(self) -> Mapping[PeerId, PeerInfo]:
        """All peers that read the log. The caller must not keep this mapping."""
        return {**self.receivers, **self.witnesses} if self.witnesses else self.receivers

    @property
    def revoked(self) -> Mapping[PeerId, e.Revoked]:
        """By peer with a revoked certificate, the entry that revoked it. The caller must not keep
        this mapping."""
        return self.spendings.revoked

    @property
    def admitted(self) -> dict[PeerId, e.TokenSpent]:
        """By admitted peer, the entry that admitted it, in the order of the log. The caller must
        not keep this mapping."""
        return self.spendings.peers

    def key_of(self, peer: PeerId) -> str:
        """The public key of an admitted peer, 64 hex digits; "" if it is not admitted."""
        known = self.spendings.peers.get(peer)
        return known.key if known is not None else ""

    def is_member(self, peer: PeerId, incarnation: int) -> bool:
        """Is this incarnation of the peer a member?"""
        info = self.members.get(peer)
        return info is not None and info.incarnation == incarnation

    def cut_of(self, receiver: PeerId) -> tuple[int, e.Cut | None]:
        """The newest Cut of a receiver, with its log index; (0, None) if it has none."""
        return self.cuts.get(receiver, (0, None))

    def slot_of(self, peer: PeerId) -> int:
        """The peer's slot: the one that it had, or the next free one."""
        seat = self.seats.get(peer)
        if seat is not None:
            return seat.slot
        return max((info.slot for info in self.seats.values()), default=-1) + 1

    @property
    def fragments(self) -> int:
        return len(self.run.fragment_elements) if self.run else 0

    @property
    def stepwise(self) -> bool:
        """Is the run stepwise, i.e. do peers agree on each step in a fixed roster?"""
        return self.run is not None and self.run.commit_every_steps > 0

    @property
    def gossip(self) -> bool:
        """Do peers exchange in pairs, each with a state of its own?"""
        return self.run is not None and self.run.gossip

    @property
    def asks(self) -> bool:
        """Does the leader ask stragglers to contribute what they have?"""
        return self.run is not None and self.run.asks

    @property
    def progress_unit(self) -> str:
        """The unit of `tokens`, for people."""
        return "batches" if self.stepwise else "tokens"

    @property
    def is_over(self) -> bool:
        """Are all rounds, or steps, of the run committed?"""
        run, fragments = self.run, range(self.fragments)
        return run is not None and all(self.committed(f) >= run.outer_steps for f in fragments)

    def cut_round(self, fragment: int) -> int:
        """The round of the state that a joiner gets; in a stepwise run that of the kept copy, so
        that no donor has to stop."""
        return self.step_progress.base if self.stepwise else self.committed(fragment)

    @property
    def agreed_digest(self) -> str:
        """Digest of the state that a joiner gets if the log has it; "" if peers must report it."""
        return self.step_progress.base_digest if self.stepwise else ""

    def committed(self, fragment: int) -> int:
        """The last committed round (or step) of a fragment; 0 is the initial state."""
        commits = self.commits.get(fragment)
        if commits:  # The usual case; a stepwise run has none.
            return commits[-1].round
        if self.stepwise:
            return self.step_progress.step
        base = self.restored.versions if self.restored else ()
        return next((v.round for v in base if v.fragment == fragment), 0)

    def commit(self, fragment: int, round: int) -> e.Commit | None:  # noqa: A002
        return next((c for c in self.commits.get(fragment, ()) if c.round == round), None)

    def commits_after(self, round_: int) -> list[e.Commit]:
        """Remembered commits of the anchor fragment after this round."""
        return [commit for commit in self.commits.get(0, ()) if commit.round > round_]

    def counts(self, peer: PeerId, view: int) -> bool:
        """Does the peer count in this view? A peer that left and came back since may have sent
        other bytes to rounds of the view in its earlier incarnation, so it does not."""
        return peer in self.members and self.came(peer) < view

    def is_kept(self, lineage: int, versions: Sequence[Version]) -> bool:
        """Are these versions, of this lineage, a state of the run that no Restore took back? A
        round that was taken back may have the same number as a later one."""
        left = [branch.lineage for branch in self.branches]
        if lineage != self.lineage and lineage not in left:
            return False
        later = self.branches[left.index(lineage) :] if lineage in left else []
        return len(versions) == self.fragments and all(
            version.fragment == fragment
            and version.round <= min((b.rounds[fragment] for b in later), default=version.round)
            for fragment, version in enumerate(versions)
        )

    def plan(self, fragment: int, round: int) -> RoundPlan | None:  # noqa: A002
        """The plan of a round that is not committed, by its latest View and Attempt; None if no
        view covers it."""
        run, done = self.run, self.committed(fragment)
        if run is None or self.stepwise or not done < round <= run.outer_steps:
            return None
        view = next((v for v in reversed(self.views) if v.first_round[fragment] <= round), None)
        if view is None:
            return None
        attempt = self.attempts.get(RoundKey(fragment, round))
        if attempt is not None and attempt.view != view.view:
            attempt = None  # A later view covers the round.
        stamp = Stamp(
            run=run.run,
            lineage=self.lineage,
            view=view.view,
            fragment=fragment,
            round=round,
            attempt=attempt.attempt if attempt else 0,
        )
        roster, parts = (attempt or view).roster, view.parts[fragment]
        if attempt is not None:
            parts = FragmentParts(attempt.owners, parts.borders)
        counted = frozenset(peer for peer in roster if self.counts(peer, view.view))
        of = {"fragment": fragment, "round_": round}
        pairs = pairs_of(view.roster, roster, **of) if run.gossip else ()
        return RoundPlan(stamp, roster, parts, counted, pairs)

    def open_plan(self, fragment: int) -> RoundPlan | None:
        """The plan of the first round that is not committed."""
        if fragment not in self._open and fragment < self.fragments:
            self._open[fragment] = self.plan(fragment, self.committed(fragment) + 1)
        return self._open.get(fragment)

    def has_room(self, peer: PeerId) -> bool:
        """Is there room for this peer? A message can name only so many."""
        return len(self.receivers) < PEERS_MAX or peer in self.receivers

    def may_return(self, peer: PeerId, incarnation: int) -> bool:
        """May a former member become one again without a transfer, since its own checkpoint is the
        restored state? `incarnation`: the one that returns."""
        known = self.members.get(peer)
        newer = known is None or known.incarnation < incarnation
        return self.restored is not None and peer in self.seats and newer and self.has_room(peer)

    def forget_plans(self) -> None:
        """The state has changed: open plans are made anew when they are asked for."""
        self._open.clear()

    @property
    def newest_view(self) -> int:
        """The number of the newest view; 0 before the first one."""
        return self.views[-1].view if self.views else 0

    def came(self, peer: PeerId) -> int:
        """The view that was the newest one when the peer (re)joined; 0 if none was."""
        returned = self.returned.get(peer)
        return returned.view if returned is not None else 0
