"""The parts that a simulated peer sums, and the peers to which it sends the results.

As in the real shell, a sum waits until all its slices are here, and a result goes to each peer for
which a SendResult came meanwhile. The memory of a round that is over is freed a moment later. Must
NOT decide which parts are summed or sent: the core does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from peers.exchange import COPIED_BYTES_PER_S, slice_key
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import peer as m
from protocols.state import ELEMENT_BYTES
from protocols.types import PeerId, Stamp, digest_text
from sims.node.node_view import NodeView
from sims.node.owner_checks import SimulatedOwnerChecks
from sims.node.storage import Store
from sims.node.toy_model import Value

Payload = v.SliceReceived | v.ResultReceived | v.StepReceived
PayloadCommand = (
    c.DropSlices | c.DropResult | c.ReleaseRound | c.SendResult | c.ReducePart | c.BlockCommand
)
"""Commands that a node's data plane carries out by itself."""
Sum = tuple[Stamp, int]
"""(attempt, part)."""
STATE_ARRAYS = 2
"""Arrays of a fragment that the ranks copy: parameters and momentum."""


class Reductions:
    """The sums of one incarnation of a peer."""

    def __init__(self, node: NodeView, store: Store, owner_checks: SimulatedOwnerChecks) -> None:
        self._node, self._store, self._owner_checks = node, store, owner_checks
        self._model, self._training = node.settings.model, node.settings.training
        self._waiting: dict[Sum, c.ReducePart] = {}
        self._receivers: dict[Sum, list[c.SendResult]] = {}
        """Commands to send a result that is not made yet, by sum."""
        self._releases: list[tuple[int, int]] = []
        """(fragment, round) of releases that wait until the ranks have copied the result."""
        self._released: dict[tuple[int, int], int] = {}
        """By (lineage, fragment): the newest round that the core has released."""

    def reduce(self, command: c.ReducePart) -> None:
        """Begin a sum; missing slices are on their way."""
        self._waiting[command.stamp, command.part] = command
        self.arrived()

    def arrived(self) -> None:
        """Make every sum that now has all its slices."""
        for key, command in list(self._waiting.items()):
            terms = self._terms(command)
            if terms is None:
                continue
            del self._waiting[key]
            void = self._void(command)
            if void:
                self._node.job(partial(self._node.give, v.PartReduced(*key, "", void)))
            else:
                mean = self._model.mean(terms)
                false = self._owner_checks.falsified(command, mean)
                self._node.job(self._made(key, false))

    def _void(self, command: c.ReducePart) -> tuple[PeerId, ...]:
        """Peers with contributions that cannot be averaged, as their manifests determine; none if
        that would leave no contribution."""
        one_in, terms = self._training.void_one_in, command.contributors
        void = [x.peer for x in terms if one_in and int(x.manifest[:8], 16) % one_in == 0]
        return tuple(void) if len(void) < len(terms) else ()

    def _terms(self, command: c.ReducePart) -> list[tuple[int, Value]] | None:
        stamp, store = command.stamp, self._store
        alike = self._training.gossip
        terms: list[tuple[int, Value]] = []
        for term in command.contributors:
            key = slice_key(stamp, command.part, term)
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
            self._store.results[key] = mean
            for command in self._receivers.pop(key, []):
                self.send(command)
            node.give(v.PartReduced(*key, _digest(mean)))

        return done

    def send(self, command: c.SendResult) -> None:
        """Send a result, now or once it is made."""
        node, key = self._node, (command.stamp, command.part)
        if key not in self._store.results:
            network = node.world.network
            line = network.line(node.peer, command.peer)
            if not line.up:
                return  # The core learns of the loss, and repeats the command.
            self._receivers.setdefault(key, []).append(command)
            return
        mean = self._store.results[key]
        event = v.ResultReceived(node.peer, *key, command.contributors, _digest(mean))
        node.send_bulk(command.peer, event, mean)

    def forget(self, peer: PeerId) -> None:
        """Drop results that wait to be sent to this peer: the connection with it has ended. The
        core repeats the commands if they are still needed."""
        for key, commands in self._receivers.items():
            self._receivers[key] = [command for command in commands if command.peer != peer]

    def drop(self, command: c.DropSlices | c.DropResult) -> None:
        """Drop slices that will not be summed, or a result that its sender had no right to send."""
        match command:
            case c.DropResult(stamp=stamp, part=part):
                self._store.results.pop((stamp, part), None)
            case c.DropSlices(fragment=fragment, round=round_):
                self._store.drop_slices(fragment, round_)
                self._end_round(fragment, round_)

    def put_off(self, release: c.ReleaseRound) -> None:
        """Release a round after the time that the ranks need to copy its result, of which they
        learn now: as peers/exchange/buffer_release.py."""
        node, fragment = self._node, release.fragment
        run_state, run = node.run_state, node.run_state.run
        assert run is not None, "a release before the run is known"
        self._releases.append((fragment, release.round))
        self._released[run_state.lineage, fragment] = release.round
        copied_bytes = STATE_ARRAYS * ELEMENT_BYTES * run.fragment_elements[fragment]
        node.after(copied_bytes / COPIED_BYTES_PER_S, lambda: self.make_releases(fragment))

    def keeps(self, stamp: Stamp, part: int) -> bool:
        """True if the result is here, and the core has not released it."""
        over = stamp.round <= self._released.get((stamp.lineage, stamp.fragment), 0)
        return (stamp, part) in self._store.results and not over

    def make_releases(self, fragment: int | None = None) -> None:
        """Make the delayed releases of this fragment (None: of all fragments) as soon as the jobs
        before them are done: these read the results."""
        waiting, self._releases, turns = self._releases, [], self._node.turns
        for at, round_ in waiting:
            if fragment in (None, at):
                turns.in_turn(partial(self._release, at, round_))
            else:
                self._releases.append((at, round_))

    def _release(self, fragment: int, round_: int) -> None:
        self._store.release(fragment, round_)
        self._end_round(fragment, round_)

    def keep(self, lineage: int) -> None:
        """Drop sums of all other lineages."""
        for key in [*self._waiting, *self._receivers]:
            if key[0].lineage != lineage:
                self._forget_sum(key)

    def _end_round(self, fragment: int, round_: int) -> None:
        for key in [*self._waiting, *self._receivers]:
            if key[0].fragment == fragment and key[0].round <= round_:
                self._forget_sum(key)

    def _forget_sum(self, key: Sum) -> None:
        self._waiting.pop(key, None)
        self._receivers.pop(key, None)


def _digest(mean: Value) -> str:
    return digest_text(str(mean))


class SimulatedDataPlane:
    """The payloads of one incarnation of a peer, and all that is made of them."""

    def __init__(self, node: NodeView) -> None:
        self.store = Store()
        self.owner_checks = SimulatedOwnerChecks(node, self.store)
        self.reductions = Reductions(node, self.store, self.owner_checks)
        self.losses = 0
        """How many losses of its ranks the core knows of."""
        self._node = node
        self._lineage = 0
        """Lineage of the last applied entry."""

    def carry_out(self, command: PayloadCommand) -> None:
        """Carry out a command about payloads."""
        match command:
            case c.DropSlices() | c.DropResult():
                self.reductions.drop(command)
            case c.ReleaseRound():
                self.reductions.put_off(command)
            case c.SendResult():
                self.reductions.send(command)
            case c.ReducePart():
                self.reductions.reduce(command)
            case c.AskBlocks() | c.SendBlocks() | c.CompareBlocks():
                self.owner_checks.carry_out(command)
            case c.AskCopies() | c.CompareCopies():
                self.owner_checks.carry_out(command)

    def make_releases(self, fragment: int) -> None:
        """Make the delayed releases of this fragment, in the order of the jobs."""
        self.reductions.make_releases(fragment)

    def disconnected(self, peer: PeerId) -> None:
        """The connection with this peer has ended."""
        self.reductions.forget(peer)

    def blocks_received(self, sender: PeerId, message: m.Blocks) -> None:
        """A peer's blocks have come, for the check of an owner."""
        self.owner_checks.blocks_received(sender, message)

    def keep_payload(self, event: Payload, value: Value) -> None:
        """Keep a payload that has come."""
        if isinstance(event, v.SliceReceived):
            self.store.slices[slice_key(event.stamp, event.part, event.contributor)] = value
            self.reductions.arrived()
        elif isinstance(event, v.ResultReceived):
            self.store.results[event.stamp, event.part] = value

    def lineage_applied(self, lineage: int) -> None:
        """An entry of this lineage is applied. After contributions of the old lineage, and before
        those of a new one, drop the payloads and sums of others."""
        if lineage != self._lineage:
            self._lineage = lineage
            self.reductions.make_releases()
            self._node.turns.in_turn(self._restored)

    def _restored(self) -> None:
        """Drop payloads and sums of lineages other than the core's."""
        lineage = self._node.run_state.lineage
        self.store.keep(lineage)
        self.reductions.keep(lineage)
