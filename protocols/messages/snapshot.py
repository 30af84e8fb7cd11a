"""The state that the log led to, as plain records, which RunState writes and reads."""

from __future__ import annotations

from protocols.messages.log_entries import (
    Attempt,
    Commit,
    Cut,
    Mandate,
    Restore,
    Revoked,
    Run,
    Steered,
    TokenIssued,
    TokenRevoked,
    TokenSpent,
    View,
)
from protocols.messages.step_progress import StepProgress
from protocols.types.frozen import record
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.sample_ranges import Samples


@record
class NewestCut:
    """The newest Cut of a receiver, with its log index."""

    index: int
    cut: Cut


@record
class LossCount:
    """How often a peer was lost without a Leave."""

    peer: PeerId
    count: int


@record
class ReturnedInView:
    """The view that was the newest one when a peer (re)joined or was excluded: it does not count
    there."""

    peer: PeerId
    view: int
    halt: int = 0
    """Log index of the Halt that excluded it; 0: it joined since."""


@record
class Branch:
    """A lineage that a Restore ended."""

    lineage: int
    rounds: tuple[int, ...]
    """By fragment, the last round that stands: later rounds of the lineage are void."""


@record
class HeldSamples:
    """Samples that one incarnation of a peer holds."""

    peer: PeerId
    incarnation: int
    came: int
    """The newest view when it joined: it counts in later views only."""
    samples: Samples

    def having(self, samples: Samples) -> HeldSamples:
        return HeldSamples(self.peer, self.incarnation, self.came, samples)


@record
class DepartedSamples:
    """Samples that an incarnation held when it went away."""

    held: HeldSamples
    view: int
    """The newest view at that time: the incarnation is in no later one."""
    until: int
    """The round that must be committed before another peer gets these samples."""


@record
class SampleLedgerSnapshot:
    """The fields of SampleLedger (state/sample_ledger.py)."""

    frontier: int
    free: Samples
    held: tuple[HeldSamples, ...]
    gone: tuple[DepartedSamples, ...]
    again: int


@record
class RunStateSnapshot:
    """The fields of RunState (state/run_state.py). The order in tuples matters."""

    index: int
    lineage: int
    branches: tuple[Branch, ...]
    run: Run
    restored: Restore | None
    restored_index: int
    voters: tuple[PeerId, ...]
    members: tuple[PeerInfo, ...]
    """The member that joined first comes first."""
    joiners: tuple[PeerInfo, ...]
    granted: tuple[NewestCut, ...]
    views: tuple[View, ...]
    attempts: tuple[Attempt, ...]
    commits: tuple[Commit, ...]
    seats: tuple[PeerInfo, ...]
    witnesses: tuple[PeerInfo, ...]
    forks: tuple[int, ...]
    rivals: tuple[PeerInfo, ...]
    returned: tuple[ReturnedInView, ...]
    losses: tuple[LossCount, ...]
    inner_step: int
    tokens: int
    books: SampleLedgerSnapshot
    step_progress: StepProgress
    """Progress of a stepwise run."""
    spent: tuple[TokenSpent, ...] = ()
    forgotten: int = 0
    """Unix seconds: tokens that expire until then can be spent no more."""
    revoked: tuple[Revoked, ...] = ()
    revoked_tokens: tuple[TokenRevoked, ...] = ()
    issued: tuple[TokenIssued, ...] = ()
    """Tokens that count without the vote of their issuer."""
    mandate: Mandate = Mandate()
    """The elections and changes of the voters that a peer with an older state has to check."""
    act_indices: tuple[int, ...] = ()
    """Log indices of `revoked`, `revoked_tokens` and `issued`, in this order."""
    steered: tuple[Steered, ...] = ()
    """In the order of their numbers."""
    steered_indices: tuple[int, ...] = ()
    """Their log indices."""
    last_rounds: tuple[int, ...] = ()
    """While the run is paused: by fragment, the last round that may be made."""
    log_hash: bytes = bytes(32)
    """Of the whole log up to `index` (raft/log.py). The state itself does not have it."""
    spent_indices: tuple[int, ...] = ()
    """Log indices of `spent`: they tell which operators there were."""
