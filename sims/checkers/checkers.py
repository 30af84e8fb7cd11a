"""All checkers as one observer of a world: which report goes to which checker.

The checkers share one list of violations. Must NOT check anything itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import PeerId, Stamp
from sims.checkers.accounting import Accounting
from sims.checkers.admission_checks import AdmissionChecks
from sims.checkers.agreement import Agreement
from sims.checkers.containment import Containment
from sims.checkers.decisions import Decisions
from sims.checkers.disks import Disks
from sims.checkers.durability import DurabilityChecks
from sims.checkers.elections import Elections
from sims.checkers.fencing import Fencing
from sims.checkers.hold_down import HoldDown
from sims.checkers.pairs import Pairs
from sims.checkers.progress import ProgressChecks
from sims.checkers.result_checks import Owners
from sims.checkers.revocation_checks import Revocation
from sims.checkers.rollback import RollbackChecks
from sims.checkers.sample_checks import SampleChecks
from sims.checkers.staleness import Staleness
from sims.checkers.transfer_checks import TransferChecks
from sims.checkers.waits import Waits
from sims.node.node import Node
from sims.node.toy_model import ToyContribution
from sims.node.world_view import WorldView

SUMMED = (v.SliceBegun, v.SliceReceived, v.ResultReceived)
REPLICATED = (m.Append, m.Appended, m.HandOver)
VOTES = (m.Vote, m.Voted)
TOLD = (m.Have, m.Hold, m.ReportsComplete)


class Checkers:
    """All checkers, which add to one list of violations."""

    def __init__(self, violations: list[str] | None = None) -> None:
        """`violations`: the list that the checkers add to; None: a new list."""
        self.violations: list[str] = [] if violations is None else violations
        found = self.found
        self.agreement = Agreement(found)
        self.accounting = Accounting(found, self.agreement)
        self.admission = AdmissionChecks(found)
        self.revocation = Revocation(found)
        self.fencing = Fencing(found)
        self.progress = ProgressChecks(found, self.agreement)
        self.durability = DurabilityChecks(found)
        self.elections = Elections(found)
        self.decisions = Decisions(found)
        self.disks = Disks(found)
        self.hold_down = HoldDown(found)
        self.containment = Containment(found)
        self.transfers = TransferChecks(found)
        self.rollback = RollbackChecks(found, self.agreement, self.containment, self.transfers)
        self.staleness = Staleness(found, self.accounting)
        self.samples = SampleChecks(self.violations)
        self.pairs = Pairs(found)
        self.waits = Waits(found)
        self.owners = Owners(found)

    def found(self, text: str) -> None:
        self.violations.append(text)

    # Results and settings -------------------------------------------------------------------

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

    @property
    def rollbacks(self) -> int:
        """The number of times that the run went back to a checkpoint."""
        return self.agreement.rollbacks

    @property
    def corrupted(self) -> bool:
        """A fault has changed the state of some peer: notes about diverged states are expected."""
        return self.containment.corrupted

    @corrupted.setter
    def corrupted(self, value: bool) -> None:
        self.containment.corrupted = value

    @property
    def tainted(self) -> bool:
        """A peer with the true state may have died before the log named that state: no peer can
        know the true state now."""
        return self.agreement.tainted

    @tainted.setter
    def tainted(self, value: bool) -> None:
        self.agreement.tainted = value

    def true_state_lost(self) -> None:
        """A peer that held a state has gone while another state is corrupt."""
        self.tainted = True

    # Events of the run ----------------------------------------------------------------------

    def woke(self, node: Node) -> None:
        """An incarnation of a peer begins, with the content of its disk."""
        self.durability.woke(node)

    def handled(self, node: Node, event: v.Event, commands: Sequence[c.Command]) -> None:
        """A core handled an event; its commands are not carried out yet."""
        if isinstance(event, SUMMED):
            self.fencing.check_payload(node, event, commands)
        elif isinstance(event, v.MessageReceived):
            if isinstance(event.message, REPLICATED):
                self.elections.note_message(node, event)
            elif isinstance(event.message, m.Have):
                self.decisions.hears_state(node, event.peer, event.message)
            elif isinstance(event.message, m.Fetch):
                self.decisions.asked(node, event.peer, event.message, commands)
        elif isinstance(event, v.Persisted):
            self.durability.claims(node)
        elif isinstance(event, v.PeerConnected):
            self.decisions.reconnected(node, event)
        elif isinstance(event, v.DeadlineReached):
            self.waits.looks(node)
        elif isinstance(event, v.Encoded):
            given = node.core.rounds[event.fragment].work.given
            # A contribution that was being encoded when a Restore came is dropped.
            if given is not None and given.manifest == event.manifest:
                self.accounting.contributed(node, event.fragment, event.round)
        if node.certificates.secure:
            self.admission.check_event(node, event, commands)
            self.revocation.check_event(node, event)
        self.transfers.check_event(node, event, commands)
        self.disks.check_event(node)
        self.hold_down.check_event(node, event)
        self.rollback.check_event(node, event)
        for command in commands:
            if isinstance(command, c.ReleaseRound):
                self.decisions.released(node, command)
            elif isinstance(command, c.SendResult):
                self.decisions.shared(node, command, commands)
            elif isinstance(command, c.Applied) and isinstance(command.entry, e.Member):
                self.decisions.let_in(node, command.entry, commands)
        if node.peer in self.elections.reigns or node.raft.leads:
            reign = self.elections.led(node, event, self.agreement.log)
            if reign is not None:
                self.decisions.made(node, reign)
                self.transfers.made(node, reign)

    def sent(self, node: Node, to: PeerId, message: m.Control) -> None:
        """A peer sends a message."""
        if isinstance(message, m.Appended):
            self.durability.acknowledged(node, to, message, self.elections.leaders)
        elif isinstance(message, VOTES):
            self.durability.voted(node, to, message)
            self.elections.asked_or_voted(node, to, message)
        elif isinstance(message, m.CutRoots):
            self.transfers.rooted(node, to, message)
        elif isinstance(message, TOLD):
            self.decisions.heard(node, to, message)
        elif isinstance(message, m.WrongResult):
            self.owners.complained(node, message)
        elif isinstance(message, m.Ready):
            self.accounting.offered(node, message.stamp)
            self.decisions.offered(node, to, message.stamp)

    def survives(self, node: Node, index: int, entry: e.Entry) -> None:
        """A peer is about to apply an entry, which must survive any crash."""
        self.durability.check_entry(node, index, entry)
        if index not in self.log and isinstance(entry, e.Commit):
            members = len(node.run_state.members)
            self.progress.named(node.world, entry, members=members)

    def entry_applied(self, peer: PeerId, lineage: int, index: int, entry: e.Entry) -> None:
        """A peer applies an entry of the log."""
        if not self.agreement.check_entry(peer, lineage, index, entry):
            return
        self.samples.check_entry(lineage, entry)
        self.pairs.check_entry(lineage, entry)
        self.revocation.check_entry(index, entry)
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

    def encoded(self, manifest: str, made: ToyContribution) -> None:
        """A peer encoded a contribution of its ranks."""
        self.accounting.encoded(manifest, made)

    def samples_of(self, node: Node, manifest: str, round_: int, samples: Sequence[int]) -> None:
        """A peer encoded a contribution; its inner steps saw these samples."""
        self.samples.encoded(node, manifest, round_, samples)

    def share(self, other: Checkers) -> None:
        """Share the contributions, states and counted steps of another branch's checkers, now and
        later: a branch may begin with a state that its log does not reach."""
        self.accounting.contributions = other.accounting.contributions
        self.accounting.counted_at = other.accounting.counted_at
        self.agreement.states = other.agreement.states
        self.samples.made = other.samples.made
        self.samples.spent_at = other.samples.spent_at

    def means(self, peer: PeerId, stamp: Stamp, means: set[int]) -> None:
        """A peer makes the outer step of a round from these means of its parts."""
        commit = self.commits[stamp.lineage, stamp.fragment, stamp.round]
        terms = self.pairs.terms(stamp.lineage, commit, peer)
        self.accounting.means(stamp, terms, means)

    def state(self, peer: PeerId, lineage: int, fragment: int, round_: int, digest: str) -> None:
        """A peer reached the state after a round, with this digest."""
        self.agreement.state(peer, lineage, fragment, round_, digest)

    def is_corrupt(self, lineage: int, fragment: int, round_: int, digest: str) -> bool:
        """True if this is not the digest of the true state. While half of the members are corrupt,
        two equal reports may name a wrong state."""
        known = self.agreement.digest_of(lineage, fragment, round_)
        return self.corrupted and known not in (None, digest)

    def dropped(self, peer: PeerId, fragment: int, steps: tuple[int, int], lineage: int) -> None:
        """Ranks go on from the outer state, without their inner steps [first, last)."""
        self.accounting.dropped(peer, fragment, steps, lineage)

    def kept(self, peer: PeerId, *, base_round: int, round_: int) -> None:
        """Ranks go on from the state after `round_` with work from the state after `base_round`."""
        self.staleness.kept(peer, base_round=base_round, round_=round_)

    def skipped(self, node: Node, stamp: Stamp) -> None:
        """A peer keeps its state in a committed round."""
        self.pairs.skipped(node, stamp)

    def falsified(self, node: Node, stamp: Stamp | None) -> None:
        """A peer falsifies a whole result of this attempt, or (None) other bytes."""
        self.owners.falsified(node, stamp)

    def lies(self, joiner: PeerId, cell: v.CellReceived) -> None:
        """A donor is about to send a cell that differs from the cut."""
        self.transfers.lies(joiner, cell)

    def memory(self, node: Node) -> None:
        """A peer applied a round: check the sizes of its collections."""
        self.containment.memory(node)

    def note(self, kind: str, text: str) -> None:
        """A core issued a note for the user."""
        self.containment.note(kind, text)

    def healed(self, world: WorldView[Node]) -> None:
        """No fault happens from now on."""
        self.progress.healed(world)

    def run_ended(self, world: WorldView[Node]) -> None:
        """The run is over, finished or not."""
        self.progress.run_ended(world)
        self.revocation.run_ended(world)
        self.samples.at_the_end(world.nodes.values())
