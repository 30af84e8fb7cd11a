"""Names the addresses that were tried in the reason of a wait for other nodes.

Must NOT decide which addresses are tried (protocols/links, peers/connections).
"""

from collections.abc import Mapping
from dataclasses import replace

from protocols.peer import WaitReason

FOR_OTHERS = ("joining", "waiting")
"""Phases in which a node waits for other nodes."""
NAMED_MAX = 4
"""Addresses that are named; the others are counted."""


def with_tried(wait: WaitReason, faults: Mapping[str, str]) -> WaitReason:
    """The wait; if it is for other nodes, with the addresses at which none answers. `faults`: by
    address, why the last try failed."""
    if wait.phase not in FOR_OTHERS or not faults:
        return wait
    told = [f"{address} ({faults[address]})" for address in sorted(faults)[:NAMED_MAX]]
    more = len(faults) - len(told)
    others = f" and {more} more" if more else ""
    return replace(wait, reason=f"{wait.reason}; tried {', '.join(told)}{others}")
