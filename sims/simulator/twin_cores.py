"""Second cores beside those of simulated peers: they run all their parts after every event.

A core runs only the parts that an event has woken (protocols/peer/wakeups.py). That is correct if
the other parts have nothing to do; then a core that runs all parts answers each event with the same
commands. A twin costs several times as much as its core, so it lives for a while only; the next one
begins as a copy of the core. Must NOT change the run: the second core's commands are compared and
dropped.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.peer import PeerCore, wakeups
from protocols.types import PeerId
from sims.node.node import Node
from sims.node.storage import SimulatedDisk
from sims.node.toy_model import ToySignatures

ONE_IN = 3
"""Of so many peers, one has twins. In every seed one of the first three peers has twins, and in the
next seed another one of them."""
COMPARED, BETWEEN = 60, 440
"""Number of events that a twin gets, and of those of its core until the next twin begins."""
SHOWN = 6
"""Commands of each core that a violation shows, beginning with the first that differs."""


class LookingCore(PeerCore):
    """A core that runs all parts after each event, and then those that these wake."""

    def look(self, now: float) -> None:
        self.raised = wakeups.ALL
        super().look(now)


def copy_of(core: PeerCore) -> LookingCore:
    """A twin with the state of this core."""
    twin = copy.deepcopy(core)
    twin.__class__ = LookingCore
    assert isinstance(twin, LookingCore)
    return twin


@dataclass(slots=True)
class Pair:
    """The twins of one incarnation, one at a time."""

    twin: LookingCore | None
    """Gets all events of its core at the same times; None between two twins."""
    left: int
    """Events until the twin ends, or until the next one begins."""


class TwinCores:
    """The twins of one world. The first twin of an incarnation begins with it."""

    def __init__(self, seed: int, *, peers: int) -> None:
        """`peers`: number of peers at the start of the seed; they are counted in their order."""
        self.comparisons = 0
        """Events after which two cores were compared."""
        self._seed = seed
        self._among = min(ONE_IN, peers)
        self._numbers: dict[PeerId, int] = {}
        self._pairs: dict[tuple[PeerId, int], Pair] = {}
        """By (peer, incarnation)."""

    def born(self, core: PeerCore, disk: SimulatedDisk, *, contact: str) -> None:
        """Begin an incarnation of a peer with this core and this disk. `contact`: where it joins;
        "": it founds the run."""
        me = core.me
        number = self._numbers.setdefault(me.peer, len(self._numbers))
        if (number - self._seed) % self._among:
            return
        twin = LookingCore(
            me,
            join=bool(contact),
            saved=disk.saved,
            kept=disk.kept,
            contacts=(contact,),
            rules=core.rules,
            signatures=ToySignatures(me.peer),
        )
        twin.log_applier.compact_entries = core.log_applier.compact_entries
        self._pairs[me.peer, me.incarnation] = Pair(twin, COMPARED)

    def compare(self, node: Node, event: v.Event, commands: Sequence[c.Command]) -> None:
        """Compare the commands of a core with those of its twin, if it has one, after the same
        event.

        A core may want to be woken earlier than its twin: it then finds nothing to do, and sets the
        next deadline. A later deadline than the twin's is a violation.
        """
        me = node.me
        pair = self._pairs.get((me.peer, me.incarnation))
        if pair is None:
            return
        if pair.twin is not None:
            self._compare(node, pair.twin, event, commands)
        pair.left -= 1
        if pair.left == 0 and pair.twin is not None:
            pair.twin, pair.left = None, BETWEEN
        elif pair.left == 0:
            pair.twin, pair.left = copy_of(node.core), COMPARED

    def _compare(
        self, node: Node, twin: LookingCore, event: v.Event, commands: Sequence[c.Command]
    ) -> None:
        self.comparisons += 1
        me = node.me
        now, ours = node.now, node.core.deadline
        expected = twin.handle(event, now)
        if expected != commands:
            found = _difference(commands, expected)
        elif ours > twin.deadline:
            found = f"has its deadline at {ours}, its twin at {twin.deadline}"
        else:
            return
        node.observer.found(f"{me.peer}: at {now:.3f} after {event!r} the core {found}")


def _difference(ours: Sequence[c.Command], full: Sequence[c.Command]) -> str:
    same = 0
    while same < min(len(ours), len(full)) and ours[same] == full[same]:
        same += 1
    shown = slice(same, same + SHOWN)
    return f"commands {list(ours[shown])!r}, its twin {list(full[shown])!r}"
