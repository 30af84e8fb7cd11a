"""Second cores beside those of simulated peers: they look at everything after every event.

A core lets those parts run that something woke (protocols/peer/wakeups.py). That is right if
nothing can be done in the others: then a core in which all of them run answers each event with the
same commands. Must NOT change anything: what the second core says is compared and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.peer import wakeups
from protocols.peer.core import PeerCore
from protocols.types.ids import PeerId

if TYPE_CHECKING:
    from sims.node.node import Node
    from sims.node.storage import Disk

ONE_IN = 3
"""Of so many peers one has a twin, which costs several times what its core does. In every seed one
of the first three has one, and another one of them in the next seed."""
SHOWN = 6
"""Commands of each core that a violation shows, from the first one that differs on."""


class LookingCore(PeerCore):
    """All parts run after each event, and then those that these wake."""

    def look(self, now: float) -> None:
        self.raised = wakeups.ALL
        super().look(now)


class Twins:
    """Of one world. Each gets all events of its core, at the same times, from its birth on."""

    def __init__(self, seed: int, *, peers: int) -> None:
        """`peers`: at the start of the seed, numbered in their order."""
        self.comparisons = 0
        """Events after which two cores were compared."""
        self._seed = seed
        self._among = min(ONE_IN, peers)
        self._numbers: dict[PeerId, int] = {}
        self._cores: dict[tuple[PeerId, int], LookingCore] = {}
        """By life of a peer."""

    def born(self, core: PeerCore, disk: Disk, *, contact: str) -> None:
        """A peer's life begins with this core, what is on its disk, and where it joins (""; it
        founds the run)."""
        me = core.me
        number = self._numbers.setdefault(me.peer, len(self._numbers))
        if (number - self._seed) % self._among:
            return
        twin = LookingCore(
            me,
            join=bool(contact),
            saved=disk.saved,
            kept=disk.kept,
            contact=contact,
            rules=core.rules,
        )
        twin.book.compact_entries = core.book.compact_entries
        self._cores[me.peer, me.incarnation] = twin

    def compare(self, node: Node, event: v.Event, commands: Sequence[c.Command]) -> None:
        """A core has answered an event: its twin, if it has one, must say the same.

        A core may want to be woken earlier than its twin: then it finds nothing to do, and says
        when the next time is. To be woken later is a difference.
        """
        me = node.core.me
        twin = self._cores.get((me.peer, me.incarnation))
        if twin is None:
            return
        self.comparisons += 1
        now, ours = node.world.now, node.core.deadline
        expected = twin.handle(event, now)
        if expected != commands:
            found = _difference(commands, expected)
        elif ours > twin.deadline:
            found = f"wakes at {ours}, with a look at everything at {twin.deadline}"
        else:
            return
        node.world.checkers.found(f"{me.peer}: at {now:.3f} after {event!r} the core {found}")


def _difference(ours: Sequence[c.Command], full: Sequence[c.Command]) -> str:
    same = 0
    while same < min(len(ours), len(full)) and ours[same] == full[same]:
        same += 1
    shown = slice(same, same + SHOWN)
    return f"says {list(ours[shown])!r}, with a look at everything {list(full[shown])!r}"
