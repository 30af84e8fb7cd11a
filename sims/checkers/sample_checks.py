"""Every sample is committed once, and none is lost for good (I10, protocol.md section 9).

Tracks by itself which samples each step saw, and which rounds may still count them, and compares
the ledger of protocols/ with that. A violation is a line of text. Must NOT take expected values
from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protocols.messages import log_entries as e
from protocols.types import PeerId
from protocols.types import sample_ranges as s
from sims.node.node import Node

ALIVE = 1 << 40
"""A view number that is newer than any view."""


@dataclass(slots=True)
class Made:
    """The samples of one contribution."""

    peer: PeerId
    incarnation: int
    round: int
    samples: frozenset[int]
    repeats: bool
    """Two of its steps saw the same sample."""
    last_view: int = ALIVE
    """The newest view when its peer left or began another incarnation: no later view counts it."""


class SampleChecks:
    """Checks the samples of a run. It gets each entry of the log once, in order, and appends to
    `violations`."""

    def __init__(self, violations: list[str]) -> None:
        self._violations = violations
        self.made: dict[str, Made] = {}
        """The samples of all contributions, by manifest."""
        self._open: list[Made] = []
        """Contributions to rounds that are not committed."""
        self._spent: set[int] = set()
        self.spent_at: dict[tuple[int, int], frozenset[int]] = {}
        """The committed samples after each round, by (lineage, round)."""
        self._committed = self._lineage = 0
        self._views: list[e.View] = []
        self._attempt: e.Attempt | None = None
        self._named: dict[int, tuple[PeerId, ...]] = {}
        """By lineage that a Restore ended: the roster at its end."""

    def encoded(self, node: Node, manifest: str, round_: int, samples: Sequence[int]) -> None:
        """A node made a contribution to this round. `samples`: those of its steps since the last
        counted one."""
        me = node.me
        saw = frozenset(samples)
        made = Made(me.peer, me.incarnation, round_, saw, repeats=len(saw) < len(samples))
        self.made[manifest] = made
        given = node.core.rounds[0].work.given
        counts = given is not None and given.round == round_
        # If the node has not read a Restore yet, no round of the new lineage counts it.
        if counts and node.run_state.lineage == self._lineage:
            self._open.append(made)

    def began(self, lineage: int) -> None:
        self._lineage = lineage
        self.spent_at[lineage, 0] = frozenset()

    def check_entry(self, lineage: int, entry: e.Entry) -> None:
        match entry:
            case e.View():
                self._views.append(entry)
            case e.Attempt(fragment=0):
                self._attempt = entry
            case e.Left(peer=peer) | e.Lost(peer=peer):
                self._went(peer, 0)
            case e.Cut(info=info) | e.Member(info=info):
                self._went(info.peer, info.incarnation)
            case e.Commit(fragment=0):
                self._commit(lineage, entry)
            case e.Lease():
                self._lease(entry)
            case _:
                pass

    def restored(self, origin: int, lineage: int, restore: e.Restore) -> None:
        """The log goes back to a round of lineage `origin`."""
        round_, remaining = restore.versions[0].round, restore.remaining
        spent = self.spent_at.get((origin, round_), frozenset())
        claimed = set(range(remaining.frontier)) - _numbers(remaining.samples)
        self._found(f"restored to round {round_} with other samples", claimed ^ spent)
        self._spent, self.spent_at[lineage, round_] = set(spent), spent
        self._named[restore.parent_lineage] = self._roster()
        self._committed, self._views, self._attempt, self._open = round_, [], None, []
        self._lineage = lineage

    def at_the_end(self, nodes: Iterable[Node]) -> None:
        """Check the ledger of each node that finished: every sample below its frontier is
        committed, held by a peer, or free, and samples that could be given back were."""
        for node in nodes:
            if node.process.outcome == "finished":
                self._close(node)

    def _close(self, node: Node) -> None:
        run_state, ledger = node.run_state, node.run_state.ledger
        round_, remaining = run_state.committed(0), ledger.remaining
        listed = set(range(ledger.frontier)) - _numbers(remaining.samples)
        spent = self.spent_at.get((run_state.lineage, round_), frozenset[int]())
        self._found(f"{node.peer} has a ledger with other committed samples", listed ^ spent)
        holders = [x.samples for x in ledger.held.values()]
        holders += [ledger.free, *(gone.held.samples for gone in ledger.gone)]
        if sum(map(s.count, holders)) != s.count(remaining.samples):
            self._violations.append(f"two peers hold the same samples in the ledger of {node.peer}")
        # A node that finished before a Restore gave samples back by the roster of that time.
        named = self._named.get(run_state.lineage, self._roster())
        for gone in ledger.gone:
            if gone.until <= round_ and gone.held.peer not in named:
                self._violations.append(
                    f"the samples that {gone.held.peer} held are never given back"
                )

    def _went(self, peer: PeerId, incarnation: int) -> None:
        """A peer left, or is back in this incarnation (0: it left): contributions of other
        incarnations do not count in a new view."""
        newest = self._views[-1].view if self._views else 0
        for made in self._open:
            if made.peer == peer:
                same = made.incarnation == incarnation
                made.last_view = ALIVE if same else min(made.last_view, newest)

    def _commit(self, lineage: int, commit: e.Commit) -> None:
        covered = commit.samples or ((),) * len(commit.contributors)
        for term, samples in zip(commit.contributors, covered, strict=True):
            made, said = self.made.get(term.manifest), _numbers(samples)
            if made is None:
                continue  # accounting.py fails: no peer encoded it.
            what = f"round {commit.round} does not list the samples of the steps of {term.peer}"
            self._found(what, said ^ made.samples)
            if made.repeats:
                self._violations.append(f"{term.peer} sees a sample twice in one contribution")
            what = f"round {commit.round} commits again samples of {term.peer}"
            self._found(what, made.samples & self._spent)
            self._spent |= made.samples
        self._committed = commit.round
        self.spent_at[lineage, commit.round] = frozenset(self._spent)
        self._open = [made for made in self._open if made.round > commit.round]

    def _lease(self, lease: e.Lease) -> None:
        for grant in lease.grants:
            numbers = _numbers(grant.samples)
            self._found(f"{grant.peer} is leased committed samples", numbers & self._spent)
            for made in self._open:
                if self._may_count(made):
                    what = f"{grant.peer} is leased samples of a contribution of {made.peer}"
                    self._found(what, numbers & made.samples)

    def _may_count(self, made: Made) -> bool:
        """True if it is a contribution to the open round by an incarnation in its latest roster."""
        view = self._view()
        in_time = view is not None and view.view <= made.last_view
        return in_time and made.round == self._committed + 1 and made.peer in self._roster()

    def _view(self) -> e.View | None:
        """The latest view for the open round."""
        round_ = self._committed + 1
        return next((x for x in reversed(self._views) if x.first_round[0] <= round_), None)

    def _roster(self) -> tuple[PeerId, ...]:
        view, attempt = self._view(), self._attempt
        if view is None:
            return ()
        latest = (view.view, self._committed + 1)
        if attempt is not None and (attempt.view, attempt.round) == latest:
            return attempt.roster
        return view.roster

    def _found(self, what: str, samples: set[int] | frozenset[int]) -> None:
        """Report these samples, unless there are none."""
        if samples:
            shown = ", ".join(map(str, sorted(samples)[:5]))
            self._violations.append(f"{what}: {len(samples)} samples ({shown}, ...)")


def _numbers(samples: s.Samples) -> set[int]:
    return {number for one in samples for number in range(one.start, one.stop)}
