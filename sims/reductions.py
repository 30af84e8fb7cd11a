"""The parts that a simulated peer sums, and who gets them.

As the real shell does: a sum waits until every slice of it is here, and its result goes to whoever
it was to be sent to meanwhile. Must NOT decide what is summed or sent: the core does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from protocols import commands as c
from protocols import events as v
from protocols.ids import PeerId, Stamp, digest_text
from sims.models import Value

if TYPE_CHECKING:
    from sims.nodes import Node

Sum = tuple[Stamp, int]
"""(attempt, part)."""


class Reductions:
    """Of one life of a peer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: dict[Sum, c.ReducePart] = {}
        self._receivers: dict[Sum, list[c.SendResult]] = {}
        """Of results that are not made yet."""

    def reduce(self, command: c.ReducePart) -> None:
        """Begin a sum; what it lacks is on its way."""
        self._waiting[command.stamp, command.part] = command
        self.arrived()

    def arrived(self) -> None:
        """Make every sum that has become possible."""
        for key, command in list(self._waiting.items()):
            terms = self._terms(command)
            if terms is None:
                continue
            del self._waiting[key]
            void = self._void(command)
            if void:
                self._node.job(partial(self._node.give, v.PartReduced(*key, "", void)))
            else:
                self._node.job(self._made(key, self._node.world.model.mean(terms)))

    def _void(self, command: c.ReducePart) -> tuple[PeerId, ...]:
        """Whose contributions cannot be averaged, if any can: their names tell."""
        one_in, terms = self._node.world.training.void_one_in, command.contributors
        void = [x.peer for x in terms if one_in and int(x.manifest[:8], 16) % one_in == 0]
        return tuple(void) if len(void) < len(terms) else ()

    def _terms(self, command: c.ReducePart) -> list[tuple[int, Value]] | None:
        stamp, store = command.stamp, self._node.store
        alike = self._node.world.training.gossip
        terms: list[tuple[int, Value]] = []
        for term in command.contributors:
            key = (stamp.fragment, stamp.round, stamp.view, command.part, term)
            weight = 1 if alike else term.tokens
            if term.peer == self._node.peer:
                terms.append((weight, store.encoded[stamp.fragment, stamp.round][1]))
            elif key in store.slices:
                terms.append((weight, store.slices[key]))
            else:
                return None
        return terms

    def _made(self, key: Sum, mean: Value) -> Callable[[], None]:
        def done() -> None:
            node = self._node
            node.store.results[key] = mean
            for command in self._receivers.pop(key, []):
                self.send(command)
            node.give(v.PartReduced(*key, _digest(mean)))

        return done

    def send(self, command: c.SendResult) -> None:
        """Now, or once it is made."""
        node, key = self._node, (command.stamp, command.part)
        if key not in node.store.results:
            self._receivers.setdefault(key, []).append(command)
            return
        mean = node.store.results[key]
        event = v.ResultReceived(node.peer, *key, command.contributors, _digest(mean))
        node.send_bulk(command.peer, event, mean)

    def forget(self, peer: PeerId) -> None:
        """The connection is over: what it still needs, the core says again."""
        for key, commands in self._receivers.items():
            self._receivers[key] = [command for command in commands if command.peer != peer]

    def drop(self, command: c.DropSlices | c.ReleaseRound | c.DropResult) -> None:
        """What nobody needs any more, or was not its sender's to give."""
        store = self._node.store
        match command:
            case c.DropResult(stamp=stamp, part=part):
                store.results.pop((stamp, part), None)
                return
            case c.DropSlices(fragment=fragment, round=round_):
                store.drop_slices(fragment, round_)
            case c.ReleaseRound(fragment=fragment, round=round_):
                store.release(fragment, round_)
        for stamp, part in [*self._waiting, *self._receivers]:
            if stamp.fragment == fragment and stamp.round <= round_:
                self._waiting.pop((stamp, part), None)
                self._receivers.pop((stamp, part), None)


def _digest(mean: Value) -> str:
    return digest_text(str(mean))
