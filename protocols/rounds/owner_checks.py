"""Checks of the owners of parts: this peer reports a result as held only if a secret sample of it
follows from the contributors' own bytes.

The shell draws the sample when all results are here, asks each contributor for its bytes of it, and
computes these blocks again. If a block differs, the owner says which bytes it received: if these
are the contributors' own, the owner is wrong; otherwise it or such a contributor is. A contributor
that does not answer is awaited like one that sends no slice. Must NOT touch bytes, nor decide what
follows from a complaint (leader/decisions.py).
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from protocols.interface.commands import (
    AskBlocks,
    AskCopies,
    Command,
    CompareBlocks,
    CompareCopies,
    Observation,
    Send,
    SendBlocks,
)
from protocols.interface.events import BlocksCompared, BlocksReceived, CopiesCompared, WrongPart
from protocols.messages.peer import BlocksWanted, WrongResult
from protocols.rounds.contributions import Holdings, OwnContribution
from protocols.rounds.done_once import DoneOnce
from protocols.rounds.fencing import PARKED_PLANS
from protocols.state.round_plan import RoundPlan
from protocols.types.ids import Contributor, PartBlocks, PeerId, Stamp

CONTRIBUTORS_MIN = 3
"""A result of fewer contributions is not checked: of two peers each one has only its own word."""
BLOCKS_CHECKED = 300
"""Blocks of a part that all its receivers draw together. If 1 % of the blocks are wrong, one of
these is drawn with a probability of 1 - 0.99^300 = 95.1 %."""
BLOCK_ELEMENTS = 64
"""Elements of a block, or the codec's grain if that is larger."""


def block_elements(grain: int) -> int:
    """Elements of a block: the least multiple of the grain that has enough."""
    return -(-BLOCK_ELEMENTS // grain) * grain


def sample_size(checkers: int) -> int:
    """Blocks of a part that each of so many receivers draws."""
    return -(-BLOCKS_CHECKED // max(checkers, 2))


@dataclass(slots=True)
class OwnerChecks:
    """The check of the open attempt at the rounds of one fragment."""

    me: PeerId
    on: bool = False
    """The run checks its owners (`run.protocol.check_owners`)."""
    attempt: Stamp | None = None
    """The attempt that the following fields are about."""
    here: set[tuple[PeerId, PeerId]] = field(default_factory=set[tuple[PeerId, PeerId]])
    """(sender, contributor) of the blocks that are here."""
    wrong: dict[int, WrongPart] | None = None
    """Results that differ, by part; None until all are compared."""
    accused: dict[int, frozenset[PeerId]] = field(default_factory=dict[int, frozenset[PeerId]])
    """By part with a wrong result, the peers one of which is the reason, once this is known."""

    # Inputs ---------------------------------------------------------------------------------

    def blocks_received(self, event: BlocksReceived, plan: RoundPlan | None) -> bool:
        """A peer has sent blocks that this one asked for. True if the check may go on."""
        if event.stamp == self.attempt:
            self.here.add((event.sender, event.contributor))
        return self.wrong is not None or plan is None or not self.awaited(plan)

    def compared(self, event: BlocksCompared) -> None:
        """The sample is computed again."""
        if event.stamp == self.attempt:
            self.wrong = {each.blocks.part: each for each in event.wrong}

    def copies_compared(self, event: CopiesCompared, plan: RoundPlan | None) -> None:
        """The owner of wrong results has told which bytes it received. A contributor's bytes are
        known only to the contributor itself and to this peer, and this peer does not lie."""
        if plan is None or not event.stamp == plan.stamp == self.attempt:
            return
        suspects = frozenset((event.owner, *event.differing)) - {self.me}
        for part in self._unjudged(plan, event.owner):
            self.accused[part.blocks.part] = suspects

    def wanted(
        self,
        peer: PeerId,
        asked: BlocksWanted,
        plan: RoundPlan | None,
        own: OwnContribution | None,
        *,
        held: Holdings,
        done: DoneOnce,
        block: int,
    ) -> list[Command]:
        """A peer asks for blocks. It gets those of this peer's contribution once for each attempt,
        and those of each contribution that this peer has summed once. `own`: this peer's
        contribution to the round; `block`: elements of a block."""
        stamp, sample, round_ = asked.stamp, asked.sample, asked.stamp.round
        if plan is None or stamp.view != plan.stamp.view or not _is_sample(sample, plan, block):
            return []
        if asked.contributor == self.me:
            attempts = range(plan.stamp.attempt, plan.stamp.attempt + PARKED_PLANS)
            if own is None or stamp.attempt not in attempts:
                return []  # It was not made, or its attempt is over.
            if not done.once(peer, round_, "blocks", stamp):
                return []
            return [SendBlocks(peer, stamp, own.contributor(self.me), sample)]
        terms = held.sums.get((stamp, sample[0].part), ())
        mine = {each.part for each in sample} <= set(plan.owned_by(self.me))
        found = [term for term in terms if term.peer == asked.contributor]
        if stamp != plan.stamp or not (mine and found):
            return []
        if not done.once(peer, round_, "copies", stamp, asked.contributor):
            return []
        return [SendBlocks(peer, stamp, found[0], sample)]

    # Queries --------------------------------------------------------------------------------

    def needed(self, plan: RoundPlan) -> bool:
        """Does this peer check the results of this attempt?"""
        enough = len(plan.roster) >= CONTRIBUTORS_MIN and not plan.pairs
        return self.on and enough and self.me in plan.counted

    def passed(self, plan: RoundPlan) -> bool:
        """May the attempt's result be reported as held?"""
        return not self.needed(plan) or (plan.stamp == self.attempt and self.wrong == {})

    def awaited(self, plan: RoundPlan) -> set[PeerId]:
        """The peers that have not sent blocks which this peer needs."""
        if plan.stamp != self.attempt:
            return set()
        if self.wrong is None:
            return {peer for peer in plan.roster if (peer, peer) not in self.here} - {self.me}
        owners = (plan.owner_of(part) for part in self.wrong if part not in self.accused)
        return {owner for owner in owners if owner is not None}

    # Next actions ---------------------------------------------------------------------------

    def advance_checks(
        self,
        plan: RoundPlan,
        terms: tuple[Contributor, ...],
        connected: Set[PeerId],
        leader: PeerId | None,
        done: DoneOnce,
    ) -> list[Command]:
        """Do everything that is possible and not done. All results of the plan are here; `terms`:
        their contributors."""
        if not self.needed(plan):
            return []
        if self.attempt != plan.stamp:
            self.attempt, self.wrong = plan.stamp, None
            self.here, self.accused = set(), {}
        if self.wrong is None:
            return self._ask(plan, terms, connected, done)
        commands = self._ask_copies(plan, terms, connected, done)
        return commands + self._complain(plan, leader, done)

    def _ask(
        self,
        plan: RoundPlan,
        terms: tuple[Contributor, ...],
        connected: Set[PeerId],
        done: DoneOnce,
    ) -> list[Command]:
        """Get each contributor's bytes of the sample; then compare."""
        stamp, round_ = plan.stamp, plan.stamp.round
        owned = plan.owned_by(self.me)
        parts = tuple(part for part in range(plan.num_parts) if part not in owned)
        if not parts:
            self.wrong = {}
            return []
        others = [term.peer for term in terms if term.peer != self.me]
        missing = [peer for peer in others if (peer, peer) not in self.here]
        if not missing and done.once(self.me, round_, "compare", stamp):
            return [CompareBlocks(stamp, parts, terms)]
        checkers = len(plan.roster) - 1
        return [
            AskBlocks(peer, stamp, parts, checkers)
            for peer in missing
            if peer in connected and done.once(peer, round_, "ask", stamp)
        ]

    def _ask_copies(
        self,
        plan: RoundPlan,
        terms: tuple[Contributor, ...],
        connected: Set[PeerId],
        done: DoneOnce,
    ) -> list[Command]:
        """Have each owner of a wrong result tell which bytes it received, unless the result itself
        tells."""
        stamp, round_ = plan.stamp, plan.stamp.round
        commands: list[Command] = []
        for owner in sorted(set(plan.parts.owners)):
            parts = self._unjudged(plan, owner)
            for part in [part for part in parts if part.peers]:
                suspects = frozenset((owner, *part.peers)) - {self.me}
                self.accused[part.blocks.part] = suspects
            sample = tuple(part.blocks for part in parts if not part.peers)
            if not sample or owner not in connected:
                continue
            others = [term.peer for term in terms if term.peer != owner]
            commands += [
                AskCopies(owner, stamp, peer, sample)
                for peer in others
                if (owner, peer) not in self.here
                and done.once(owner, round_, "ask copies", stamp, peer)
            ]
            all_here = all((owner, peer) in self.here for peer in others)
            if all_here and done.once(self.me, round_, "compare copies", stamp, owner):
                commands.append(CompareCopies(stamp, owner, tuple(others)))
        return commands

    def _complain(self, plan: RoundPlan, leader: PeerId | None, done: DoneOnce) -> list[Command]:
        """Tell the leader which peers are the reason of wrong results."""
        stamp, commands = plan.stamp, list[Command]()
        for part, suspects in sorted(self.accused.items()):
            names = tuple(sorted(suspects))
            if done.once(self.me, stamp.round, "note", stamp, part):
                why = f"the result of part {part} of round {stamp.round} is wrong"
                commands.append(Observation("owner", f"{why}: {' or '.join(names)} is the reason"))
            if leader is not None and done.once(leader, stamp.round, "wrong", stamp, part):
                commands.append(Send(leader, WrongResult(stamp, part, names)))
        return commands

    def _unjudged(self, plan: RoundPlan, owner: PeerId) -> list[WrongPart]:
        """The wrong results of this owner of which the reason is not known."""
        wrong = self.wrong or {}
        return [
            wrong[part]
            for part in sorted(wrong)
            if plan.owner_of(part) == owner and part not in self.accused
        ]


def _is_sample(sample: Sequence[PartBlocks], plan: RoundPlan, block: int) -> bool:
    """Does each block exist, and is none asked for twice?"""
    borders = plan.parts.borders
    parts = [each.part for each in sample]
    if not parts or parts != sorted(set(parts)):
        return False
    for each in sample:
        if each.part >= plan.num_parts or not each.blocks:
            return False
        if list(each.blocks) != sorted(set(each.blocks)):
            return False
        if each.blocks[-1] * block >= borders[each.part + 1] - borders[each.part]:
            return False
    return True
