"""Describes the training program of a node for people: waits for it, and the way on if it failed.

Must NOT start the program, nor decide whether it has failed (peers/ranks/rank_group.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowcomm.reports.event_log import EVENTS
from protocols.peer import describe

if TYPE_CHECKING:
    from lowcomm.rank_control.context import DaemonContext
    from peers.ranks import RankGroup
    from protocols.peer import WaitReason

FIRST_STEP = "the first step of its ranks"
"""A reason that begins so is that of `first_step_wait`."""
FIRST_STEP_TOLD_S = 5.0
"""Seconds after which a first step that is not made yet is a reason to wait."""
OWN_RANKS = "its ranks"
"""The reason that `protocols.peer.wait_reason` gives if the ranks of a member are not ready."""


def node_wait(context: DaemonContext, group: RankGroup, now: float) -> WaitReason:
    """The wait of `describe`; if the node waits for its own ranks, with the reason why they are not
    ready, or how long their first step lasts already."""
    wait = describe(context.core, now)
    run_state = context.core.run_state
    founds = run_state.run is None and context.founds
    if not (founds or wait.reason == OWN_RANKS) or wait.phase == "stopping":
        return first_step_wait(group, wait, now) or wait
    since = context.figures.loading_since if founds else wait.since
    if not group.unattached:
        return replace(wait, reason="its own ranks, which build the model", since=since)
    before = f"; the last attempt: {group.fault.why}" if group.fault is not None else ""
    ranks = context.node.ranks
    some = f" ({group.unattached} of {ranks} ranks)" if ranks > 1 else ""
    return replace(wait, reason=f"{group.program} to attach{some}{before}", since=since)


def first_step_wait(group: RankGroup, wait: WaitReason, now: float) -> WaitReason | None:
    """The wait for a first step that lasts long; None if there is none, or a better reason."""
    first = group.first_step
    if first is None or first.lasts_s < FIRST_STEP_TOLD_S:
        return None
    if wait.phase != "reducing" and (wait.phase != "training" or wait.reason):
        return None
    reason = (
        f"{FIRST_STEP}, which torch.compile may make slow "
        f"(at most {first.limit_s:g} s: node.first_step_timeout_s)"
    )
    since = now - first.lasts_s
    return replace(wait, phase="training", reason=reason, since=since, until=since + first.limit_s)


def mending(context: DaemonContext) -> str:
    """The next command after the program has failed for good, as the end of a sentence."""
    again = "start this node again, as before"
    run_state = context.core.run_state
    if run_state.run is not None:
        again = f"run `lowcomm resume {context.path}`"
    return (
        f"its output is above, the node's event log is {context.path / EVENTS}; correct the "
        f"program, then {again}"
    )
