"""I3, fencing: bytes that belong to no open round, or to another lineage, are not kept.

Must NOT judge dropped payloads: if too many are dropped, the run does not go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocols.interface import commands as c
from protocols.interface import events as v
from sims.node.node import Node


class Fencing:
    """Checks each payload that a core did not discard."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found

    def check_payload(
        self,
        node: Node,
        event: v.SliceBegun | v.SliceReceived | v.ResultReceived,
        commands: Sequence[c.Command],
    ) -> None:
        """Check a payload. It does not change the log, so the log was the same when it came."""
        if any(isinstance(command, c.Discard) for command in commands):
            return
        stamp, core = event.stamp, node.core
        if stamp.lineage != core.run_state.lineage:
            self._found(f"{node.peer} keeps bytes of lineage {stamp.lineage:x}: {event!r}")
        elif not isinstance(event, v.ResultReceived):
            if stamp.round <= core.run_state.committed(stamp.fragment):
                self._found(f"{node.peer} keeps a contribution to a round that is over: {event!r}")
        elif stamp.round <= core.rounds[stamp.fragment].version:
            self._found(f"{node.peer} keeps a result that it has applied: {event!r}")
