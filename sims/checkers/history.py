"""The checkers of one history: the log of a run, and its states and contributions.

A run that forks has one for each branch. The checkers share one list of violations. Must NOT look
at events or messages of a peer (checkers.py), nor check anything itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.messages import log_entries as e
from protocols.types import PeerId, Stamp
from sims.checkers.accounting import Accounting
from sims.checkers.admission_checks import AdmissionChecks
from sims.checkers.agreement import Agreement
from sims.checkers.pairs import Pairs
from sims.checkers.result_checks import Owners
from sims.checkers.revocation_checks import Revocation
from sims.checkers.sample_checks import SampleChecks
from sims.checkers.staleness import Staleness
from sims.checkers.steering_checks import SteeringChecks
from sims.node.node import Node
from sims.node.toy_model import ToyContribution


class HistoryCheckers:
    """Reports each entry, state and contribution to the checkers that need it."""

    def __init__(self, violations: list[str] | None = None) -> None:
        """`violations`: the list that the checkers add to; None: a new list."""
        self.violations: list[str] = [] if violations is None else violations
        found = self.violations.append
        self.agreement = Agreement(found)
        self.accounting = Accounting(found, self.agreement)
        self.admission = AdmissionChecks(found)
        self.revocation = Revocation(found)
        self.steering = SteeringChecks(found)
        self.staleness = Staleness(found, self.accounting)
        self.samples = SampleChecks(self.violations)
        self.pairs = Pairs(found)
        self.owners = Owners(found)

    # Results --------------------------------------------------------------------------------

    @property
    def log(self) -> dict[int, e.Entry]:
        """The entries that any peer has applied, by log index."""
        return self.agreement.log

    @property
    def commits(self) -> dict[tuple[int, int, int], e.Commit]:
        """All commits, by (lineage, fragment, round)."""
        return self.accounting.commits

    @property
    def num_commits(self) -> int:
        return len(self.commits)

    def share(self, other: HistoryCheckers) -> None:
        """Share the contributions, states and counted steps of another branch's checkers, now and
        later: a branch may begin with a state that its log does not reach."""
        self.accounting.contributions = other.accounting.contributions
        self.accounting.counted_at = other.accounting.counted_at
        self.agreement.states = other.agreement.states
        self.samples.made = other.samples.made
        self.samples.spent_at = other.samples.spent_at

    # The log --------------------------------------------------------------------------------

    def entry_applied(self, peer: PeerId, lineage: int, index: int, entry: e.Entry) -> None:
        """A peer applies an entry of the log."""
        if not self.agreement.check_entry(peer, lineage, index, entry):
            return
        self.samples.check_entry(lineage, entry)
        self.pairs.check_entry(lineage, entry)
        self.revocation.check_entry(index, entry)
        self.steering.check_entry(lineage, entry)
        self.admission.check_entry(entry)
        if isinstance(entry, e.Run):
            self.samples.began(lineage)
        elif isinstance(entry, e.Restore):
            self.samples.restored(self.agreement.origin_of(lineage, 0), lineage, entry)
        if isinstance(entry, e.Run | e.Restore):
            self.accounting.began(lineage, entry)
        elif isinstance(entry, e.Commit):
            self.accounting.committed(lineage, entry)
            self.staleness.committed(entry)
            self.owners.committed(lineage, entry)
        elif isinstance(entry, e.Lost):
            self.owners.struck(entry)

    # States and contributions ---------------------------------------------------------------

    def state(self, peer: PeerId, lineage: int, fragment: int, round_: int, digest: str) -> None:
        """A peer reached the state after a round, with this digest."""
        self.agreement.state(peer, lineage, fragment, round_, digest)

    def is_corrupt(self, lineage: int, fragment: int, round_: int, digest: str) -> bool:
        """True if this is not the digest of the true state."""
        return self.agreement.is_corrupt(lineage, fragment, round_, digest)

    def encoded(self, manifest: str, made: ToyContribution) -> None:
        """A peer encoded a contribution of its ranks."""
        self.accounting.encoded(manifest, made)

    def samples_of(self, node: Node, manifest: str, round_: int, samples: Sequence[int]) -> None:
        """A peer encoded a contribution; its inner steps saw these samples."""
        self.samples.encoded(node, manifest, round_, samples)

    def means(self, peer: PeerId, stamp: Stamp, means: set[int]) -> None:
        """A peer makes the outer step of a round from these means of its parts."""
        commit = self.commits[stamp.lineage, stamp.fragment, stamp.round]
        terms = self.pairs.terms(stamp.lineage, commit, peer)
        self.accounting.means(stamp, terms, means)

    def skipped(self, node: Node, stamp: Stamp) -> None:
        """A peer keeps its state in a committed round."""
        self.pairs.skipped(node, stamp)

    def dropped(self, peer: PeerId, fragment: int, steps: tuple[int, int], lineage: int) -> None:
        """Ranks go on from the outer state, without their inner steps [first, last)."""
        self.accounting.dropped(peer, fragment, steps, lineage)

    def kept(self, peer: PeerId, *, base_round: int, round_: int) -> None:
        """Ranks go on from the state after `round_` with work from the state after `base_round`."""
        self.staleness.kept(peer, base_round=base_round, round_=round_)
