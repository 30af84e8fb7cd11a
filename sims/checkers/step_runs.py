"""The checkers of stepwise runs (protocol.md section 5).

The counterpart of checkers.py, which is for rounds; a violation is a line of text. Must NOT change
a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.messages import StepsHalted
from protocols.messages import log_entries as e
from protocols.state import RunState, drawn_at, transitions
from protocols.types import PeerId, Stamp
from sims.checkers.checkers import Checkers
from sims.checkers.history import HistoryCheckers
from sims.node.node import Node
from sims.node.toy_model import PRIME, ToySignatures, Value, state_digest
from sims.node.world_view import WorldView
from sims.simulator.step_world import FACTOR, BareStepWorld, StepNode, Terms


@dataclass(slots=True)
class MadeStep:
    """One step of one view, as its peers made it."""

    terms: Terms
    """The payloads that were added first, by a corrupt peer too."""
    sound: tuple[Terms, Value] | None = None
    """The payloads that the first sound peer added, and the resulting state; None: there is no such
    peer yet."""
    completed: set[PeerId] = field(default_factory=set[PeerId])
    """The sound peers that made the step."""
    misled: set[PeerId] = field(default_factory=set[PeerId])
    """The corrupt peers that made the step. Their ranks may have another state by now, but their
    reports count."""


class StepCheckers(Checkers):
    """The checkers of a stepwise world."""

    def run_ended(self, world: WorldView[Node]) -> None:
        """Nothing is left to check: each step was checked when it was made."""


class StepHistory(HistoryCheckers):
    """The checkers of the steps of a world; `step_commits` takes the place of `commits`."""

    def __init__(self, world: BareStepWorld) -> None:
        super().__init__()
        self._world = world
        self.step_commits: dict[tuple[int, int], str] = {}
        """State digests by (lineage, step), the beginning of a lineage included."""
        self._run_state = RunState(signatures=ToySignatures())
        """The run state of the log, up to the last entry that any peer has applied."""
        self._begins: dict[int, int] = {}
        """By lineage: the step after which it begins."""
        self._views: dict[int, list[e.View]] = {}
        self._ends: dict[tuple[int, int], int] = {}
        """By (lineage, view): the last step of a closed view."""
        self._payloads: dict[str, tuple[Value, int]] = {}
        """The payloads, by digest: (value, the batch from which it was made)."""
        self._trained: dict[int, list[int]] = {}
        """The batches of each committed step."""
        self._steps: dict[tuple[int, int, int], MadeStep] = {}
        """The steps that any peer made, by (lineage, view, step)."""

    @property
    def num_commits(self) -> int:
        return len(self.step_commits)

    def found(self, text: str) -> None:
        self.violations.append(text)

    # The log --------------------------------------------------------------------------------

    def entry_applied(self, peer: PeerId, lineage: int, index: int, entry: e.Entry) -> None:
        """Check that all peers have one log (I1), and that its entries fit the steps of the
        peers."""
        if index in self.log:
            if self.log[index] != entry:
                first = self.log[index]
                self.found(f"{peer} has another entry {index}: {entry!r}, not {first!r}")
            return
        self.log[index] = entry
        transitions.apply(self._run_state, e.LogEntry(index, 1, entry))
        self._run_state.lineage = lineage  # The hash is of the entry with its term.
        self.steering.check_entry(lineage, entry)
        match entry:
            case e.Run():
                self._begins[lineage], self._views[lineage] = 0, []
            case e.Restore():
                self._went_back(lineage, entry)
            case e.View():
                self._views[lineage].append(entry)
            case e.Close():
                self._closed(lineage, entry)
            case e.StepCommit():
                self._agreed(lineage, entry)
            case _:
                pass

    def _went_back(self, lineage: int, restore: e.Restore) -> None:
        (version,) = restore.versions
        states = {
            digest for (_, step), digest in self.step_commits.items() if step == version.round
        }
        if version.state_digest not in states and not self.agreement.tainted:
            self.found(f"restored to a state of step {version.round} that was never committed")
        self._begins[lineage], self._views[lineage] = version.round, []
        self.step_commits[lineage, version.round] = version.state_digest
        self._trained = {s: made for s, made in self._trained.items() if s <= version.round}
        self._account(lineage, version.round)

    def _closed(self, lineage: int, close: e.Close) -> None:
        """Check that a view does not end before a committed step, or one that a participant
        completed."""
        committed = max(step for branch, step in self.step_commits if branch == lineage)
        if close.last_step < committed:
            self.found(
                f"view {close.view} ends with step {close.last_step}, and {committed} is committed"
            )
        self._ends[lineage, close.view] = close.last_step
        for node in self._who_makes(lineage, close.view):
            branch, view, step = node.completed
            if (branch, view) == (lineage, close.view) and step > close.last_step:
                self.found(f"view {view} ends with step {close.last_step}, {node.peer} made {step}")

    def _agreed(self, lineage: int, commit: e.StepCommit) -> None:
        """Check that all live peers of the roster made a committed step, with the committed
        state."""
        step = commit.upto_step
        self.step_commits[lineage, step] = commit.state_digest
        view, nodes = self._view_of(lineage, step), self._who_makes(lineage, commit.view)
        known = self._steps.get((lineage, view, step)) or MadeStep(())
        misled, made = known.misled, known.sound
        only_misled = bool(misled) and made is None  # The misled peers may be dead now.
        if (nodes or only_misled) and all(
            node.states.corrupt or node.peer in misled for node in nodes
        ):
            self.agreement.tainted = True  # No peer is left that knows the true state.
        if made is None and not self.agreement.tainted:
            self.found(f"step {step} is committed, and no peer made it")
        if made and state_digest(made[1]) != commit.state_digest and not self.agreement.tainted:
            self.found(f"step {step} is committed with another state than it led to")
        missing = {node.peer for node in nodes if not node.states.corrupt}
        missing -= known.completed | misled
        if missing:
            self.found(f"step {step} is committed without {', '.join(sorted(missing))}")
        self._account(lineage, step)

    def _account(self, lineage: int, step: int) -> None:
        """Check that each batch is committed once, and none is left out (I10)."""
        for one in range(len(self._trained) + 1, step + 1):
            made = self._steps.get((lineage, self._view_of(lineage, one), one))
            terms = made.terms if made is not None else ()
            self._trained[one] = [self._payloads[digest][1] for _, digest in terms]
        trained = sorted(batch for batches in self._trained.values() for batch in batches)
        if trained != list(range(drawn_at(self._run_state, step))) and not self.agreement.tainted:
            self.found(f"up to step {step} the run was trained on the batches {trained}")

    def _who_makes(self, lineage: int, view: int) -> list[StepNode]:
        """The live nodes that take part in a view, by the log so far."""
        newest = self._run_state.views[-1] if self._run_state.views else None
        if newest is None or newest.view != view:
            return []
        nodes = [self._world.step_node(peer) for peer in newest.roster]
        return [
            node
            for node in nodes
            if node.running
            and node.run_state.lineage == lineage
            and self._run_state.counts(node.peer, view)
            and self._run_state.members[node.peer].incarnation == node.me.incarnation
        ]

    def _view_of(self, lineage: int, step: int) -> int:
        """The view that a step belongs to, by the log so far; 0: the lineage begins after it."""
        if step <= self._begins[lineage]:
            return 0
        views = reversed(self._views[lineage])
        return next((view.view for view in views if view.first_round[0] <= step), 0)

    # Peers ----------------------------------------------------------------------------------

    def made(self, digest: str, value: Value, batch: int) -> None:
        """A peer made a payload of this batch; `step_made` checks that others add the same
        value."""
        self._payloads[digest] = value, batch

    def step_made(
        self, node: StepNode, stamp: Stamp, terms: Terms, before: Value, after: Value
    ) -> None:
        """Check a step that a node made: all nodes add the same payloads, to the state after the
        step before."""
        lineage, view, step = key = (stamp.lineage, stamp.view, stamp.round)
        end = self._ends.get((lineage, view))
        mine = node in self._who_makes(lineage, view)
        if mine and end is not None and step > end:
            self.found(f"{node.peer} makes step {step} of view {view}, which ended with {end}")
        if mine and (end := self._stopped_at(node)) is not None and step > end:
            self.found(f"{node.peer} makes step {step} though it stopped at {end}")
        made = self._steps.setdefault(key, MadeStep(terms))
        if node.states.corrupt:
            made.misled.add(node.peer)
            return
        roster = next(v.roster for v in self._views[lineage] if v.view == view)
        if tuple(peer for peer, _ in terms) != roster:
            self.found(f"{node.peer} makes step {step} with {terms}, the roster is {roster}")
        made.sound = made.sound or (terms, after)
        if made.sound != (terms, after) and not self.agreement.tainted:
            self.found(f"{node.peer} makes step {step} of view {view} with other terms or state")
        total = sum(self._payloads[digest][0] for _, digest in terms)
        if after != (before * FACTOR + total) % PRIME:
            self.found(f"{node.peer} adds up step {step} wrongly")
        if not self._stands(lineage, view, step - 1, before) and not self.agreement.tainted:
            self.found(f"{node.peer} makes step {step} from another state than its view has")
        made.completed.add(node.peer)

    def _stands(self, lineage: int, view: int, step: int, state: Value) -> bool:
        """True if this is the state after a step from which the view goes on."""
        older = [v for v in self._views[lineage] if v.view <= view and v.first_round[0] <= step]
        if step <= self._begins[lineage]:
            return state_digest(state) == self.step_commits[lineage, step]
        made = self._steps.get((lineage, older[-1].view, step))
        return made is not None and made.sound is not None and made.sound[1] == state

    def state(self, peer: PeerId, lineage: int, fragment: int, round_: int, digest: str) -> None:
        """Check that a state copy that a peer keeps is the committed state (I1)."""
        first = self.step_commits.setdefault((lineage, round_), digest)
        if first != digest and not self.agreement.tainted:
            self.found(f"step {round_}: {peer} keeps {digest}, {first} was committed")

    def stopped(self, node: StepNode, report: StepsHalted) -> None:
        """A node reports that it stopped: it must make no further step until the log lets it go
        on."""
        node.promised = (node.run_state.index, report.stamp.round)

    def _stopped_at(self, node: StepNode) -> int | None:
        """The last step that the report of a node allows; None if the log lets it go on, also if
        the node learned that from a snapshot."""
        if node.promised is None:
            return None
        index, step = node.promised
        read = range(index + 1, node.run_state.index + 1)
        if any(isinstance(self.log.get(x), e.Close | e.View | e.Restore) for x in read):
            return None
        progress = node.run_state.step_progress
        return max(step, progress.step)

    def names(self, node: StepNode) -> None:
        """Check that no collection of a node grows with the length of the run."""
        part, run = node.core.part, node.run_state.run
        steps = part.steps
        assert steps is not None
        assert run is not None
        most = 2 * run.snapshot_every_steps + 8 * run.commit_every_steps
        kept = {
            "payloads": len(steps.payloads.held),
            "digests": len(steps.copy.digests),
            "values": len(node.values) // 16,
            "copies": len(node.copies),
            "views": len(node.run_state.views),
        }
        for what, size in kept.items():
            if size > most + 8:
                self.found(f"{node.peer} keeps {size} {what}")
