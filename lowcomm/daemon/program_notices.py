"""What a node says of the program that its ranks run: that it waits for it, and what to do when it
failed for good. Must NOT start or judge it: that is `peers/ranks/rank_group.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowcomm.reports.event_log import EVENTS
from protocols.peer.wait_reason import describe

if TYPE_CHECKING:
    from lowcomm.daemon.daemon import Daemon
    from protocols.peer.wait_reason import Wait

OWN_RANKS = "its ranks"
"""What `protocols.peer.wait_reason` says of a member whose ranks are not ready."""


def node_wait(daemon: Daemon, now: float) -> Wait:
    """`describe`, and where the node waits for its own ranks, what keeps them."""
    wait, group = describe(daemon.core, now), daemon.node.group
    founds = daemon.core.members.run is None and daemon.founds
    if not (founds or wait.reason == OWN_RANKS) or wait.phase == "stopping":
        return wait
    since = daemon.node.loading_since if founds else wait.since
    if not group.unattached:
        return replace(wait, reason="its own ranks, which build the model", since=since)
    before = f"; the last attempt: {group.fault.why}" if group.fault is not None else ""
    ranks = daemon.config.node.ranks
    some = f" ({group.unattached} of {ranks} ranks)" if ranks > 1 else ""
    return replace(wait, reason=f"{group.program} to attach{some}{before}", since=since)


def mending(daemon: Daemon) -> str:
    """What to do after the program failed for good: the end of a sentence."""
    again = "start this node again, as before"
    if daemon.core.members.run is not None:
        again = f"go on with `lowcomm resume {daemon.path}`"
    return (
        f"what it printed is above, the node's own log is {daemon.path / EVENTS}; mend it, then "
        f"{again}"
    )
