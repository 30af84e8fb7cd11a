"""Owner checks of a simulated peer, and the lies that they have to find.

A result is one number, which stands for all its blocks: an owner that falsifies the whole part
sends another number, and one that falsifies some blocks notes which ones. Must NOT decide which
peer is at fault: the core does.
"""

from dataclasses import dataclass, field

from peers.exchange import slice_key
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import peer as m
from protocols.rounds import CONTRIBUTORS_MIN, block_elements, sample_size
from protocols.types import PartBlocks, PeerId, Stamp
from sims.node.node_view import NodeView
from sims.node.storage import Store
from sims.node.toy_model import Value

FALSE = 1
"""The difference between a true number and a false one."""
BLOCKS_SHARE = 0.01
"""Share of the blocks that an owner falsifies if it does not falsify all."""


@dataclass(slots=True)
class SimulatedCheck:
    """The check of one attempt."""

    stamp: Stamp
    sample: tuple[PartBlocks, ...]
    asked: set[tuple[PeerId, PeerId]] = field(default_factory=set[tuple[PeerId, PeerId]])
    """(sender, contributor) of answers that are under way."""
    answers: dict[tuple[PeerId, PeerId], Value] = field(
        default_factory=dict[tuple[PeerId, PeerId], Value]
    )
    """By (sender, contributor)."""


class SimulatedOwnerChecks:
    """The checks of one incarnation of a peer."""

    def __init__(self, node: NodeView, store: Store) -> None:
        self.lies = ""
        """"whole": the results of this owner are false. "blocks": some of their blocks are.
        "contribution": this contributor tells other peers than owners a false contribution."""
        self.lies_until = 0.0
        self.false_blocks: dict[tuple[Stamp, int], frozenset[int]] = {}
        """By result of this owner, the falsified blocks."""
        self._node, self._store = node, store
        self._checks: dict[int, SimulatedCheck] = {}
        """By fragment, as in the real shell: an attempt of another fragment leaves it alone."""

    # Lies -----------------------------------------------------------------------------------

    def lie(self, how: str, seconds: float) -> None:
        self.lies, self.lies_until = how, self._node.now + seconds

    def is_lying(self, how: str) -> bool:
        return self.lies == how and self._node.now < self.lies_until

    def falsified(self, command: c.ReducePart, mean: Value) -> Value:
        """The result that this owner sends. With fewer contributors no peer checks it."""
        node, stamp, part = self._node, command.stamp, command.part
        rules = node.core.rules
        if not rules.check_owners or len(command.contributors) < CONTRIBUTORS_MIN:
            return mean
        if self.is_lying("blocks"):
            blocks = self._blocks(stamp, part)
            wanted = max(1, round(blocks * BLOCKS_SHARE))
            random = node.world.random
            found = random.sample(range(blocks), wanted)
            self.false_blocks[stamp, part] = frozenset(found)
            node.world.happened["falsified blocks"] += 1
            node.observer.falsified(node, None)
        elif self.is_lying("whole"):
            node.world.happened["falsified part"] += 1
            node.observer.falsified(node, stamp)
            return node.settings.model.fold(mean + FALSE)
        return mean

    # The check ------------------------------------------------------------------------------

    def carry_out(self, command: c.BlockCommand) -> None:
        match command:
            case c.AskBlocks(peer=peer, stamp=stamp):
                if (check := self._of(stamp)) is None:
                    check = self._checks[stamp.fragment] = SimulatedCheck(
                        stamp, self._drawn(command)
                    )
                self._ask(check, peer, peer, check.sample)
            case c.AskCopies(peer=owner, contributor=contributor, sample=sample):
                if (check := self._of(command.stamp)) is not None:
                    self._ask(check, owner, contributor, sample)
            case c.SendBlocks():
                self._answer(command)
            case c.CompareBlocks(stamp=stamp):
                if (check := self._of(stamp)) is not None:
                    wrong = tuple(self._wrong(check, command))
                    self._node.give(v.BlocksCompared(stamp, wrong))
            case c.CompareCopies(stamp=stamp, owner=owner, contributors=contributors):
                if (check := self._of(stamp)) is not None:
                    differing = tuple(x for x in contributors if self._differs(check, owner, x))
                    self._node.give(v.CopiesCompared(stamp, owner, differing))

    def blocks_received(self, sender: PeerId, message: m.Blocks) -> None:
        check, key = self._of(message.stamp), (sender, message.contributor)
        if check is not None and key in check.asked:
            check.asked.discard(key)
            check.answers[key] = int(message.piece)
            self._node.give(v.BlocksReceived(sender, message.stamp, message.contributor))

    def _of(self, stamp: Stamp) -> SimulatedCheck | None:
        """The check of this attempt; None if another one is open."""
        check = self._checks.get(stamp.fragment)
        return check if check is not None and check.stamp == stamp else None

    def _drawn(self, command: c.AskBlocks) -> tuple[PartBlocks, ...]:
        world, stamp = self._node.world, command.stamp
        wanted, sample = sample_size(command.checkers), list[PartBlocks]()
        for part in command.parts:
            blocks = self._blocks(stamp, part)
            drawn = world.random.sample(range(blocks), min(wanted, blocks))
            sample.append(PartBlocks(part, tuple(sorted(drawn))))
        return tuple(sample)

    def _blocks(self, stamp: Stamp, part: int) -> int:
        """Number of blocks of a part."""
        run_state = self._node.run_state
        plan, run = run_state.plan(stamp.fragment, stamp.round), run_state.run
        assert run is not None, "a sum before the run is known"
        if plan is None:
            return 1
        start, stop = plan.parts.borders[part : part + 2]
        return -(-(stop - start) // block_elements(run.grain))

    def _ask(
        self,
        check: SimulatedCheck,
        peer: PeerId,
        contributor: PeerId,
        sample: tuple[PartBlocks, ...],
    ) -> None:
        check.asked.add((peer, contributor))
        self._node.send(peer, m.BlocksWanted(check.stamp, contributor, sample))

    def _answer(self, command: c.SendBlocks) -> None:
        node, stamp, who = self._node, command.stamp, command.contributor
        if who.peer == node.peer:
            found = self._store.encoded.get((stamp.fragment, stamp.round))
            if found is None:
                return  # The round is over.
            value = found[1]
            if self.is_lying("contribution"):
                node.world.happened["false blocks"] += 1
                node.observer.falsified(node, None)
                value = node.settings.model.fold(value + FALSE)
        else:
            key = slice_key(stamp, command.sample[0].part, who)
            if key not in self._store.slices:
                return
            value = self._store.slices[key]
        text = str(value).encode()
        node.send(command.peer, m.Blocks(stamp, who.peer, 0, len(text), text))

    def _own(self, check: SimulatedCheck, contributor: PeerId) -> Value | None:
        """A contribution, by its contributor's word; None if our own is not here any more."""
        if contributor != self._node.peer:
            return check.answers[contributor, contributor]
        found = self._store.encoded.get((check.stamp.fragment, check.stamp.round))
        return found[1] if found is not None else None

    def _wrong(self, check: SimulatedCheck, command: c.CompareBlocks) -> list[v.WrongPart]:
        node, stamp = self._node, command.stamp
        terms: list[tuple[int, Value]] = []
        for term in command.contributors:
            value = self._own(check, term.peer)
            if value is None:
                return []
            terms.append((term.tokens, value))
        mean = node.settings.model.mean(terms)
        plan = node.run_state.plan(stamp.fragment, stamp.round)
        found: list[v.WrongPart] = []
        for each in check.sample:
            owner = plan.owner_of(each.part) if plan is not None else None
            false = frozenset[int]()
            if owner is not None:
                theirs = node.world.nodes[owner].data_plane.owner_checks
                false = theirs.false_blocks.get((stamp, each.part), false)
            result = self._store.results.get((stamp, each.part), mean)
            if result != mean:
                found.append(v.WrongPart(PartBlocks(each.part, each.blocks[:1])))
            elif wrong := false.intersection(each.blocks):
                node.world.happened["false blocks found"] += 1
                found.append(v.WrongPart(PartBlocks(each.part, tuple(sorted(wrong))[:8])))
        return found

    def _differs(self, check: SimulatedCheck, owner: PeerId, contributor: PeerId) -> bool:
        own = self._own(check, contributor)
        return own is not None and own != check.answers[owner, contributor]
