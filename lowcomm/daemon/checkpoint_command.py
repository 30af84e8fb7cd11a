"""Answers `lowcomm checkpoint`: this node writes a checkpoint of its own.

Checkpoints are each node's own business, so no entry of the log asks for one. Must NOT write it
(rank_control/checkpoint_schedule.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowcomm.rank_control.context import DaemonContext
    from peers.ipc import MakeCheckpoint


def checkpoint_json(context: DaemonContext, question: MakeCheckpoint) -> str:
    """{"asked": version} until it is {"done": path, "round": version}, or {"error": ...}."""
    core, replica, schedule = context.core, context.replica, context.checkpoint_schedule
    if replica is None or core.run_state.run is None:
        return _error("this node has no state yet: ask again")
    asked = schedule.requested
    if not question.again or asked is None:
        if core.finished:
            return _error("the run is finished: its state is in the last checkpoint")
        asked = schedule.request(core, replica)
        if asked is None:
            return _error("the run is paused, and the last checkpoint has its state already")
    if asked.why:
        return _error(f"no checkpoint was written: {asked.why}")
    if asked.path is not None:
        return json.dumps({"done": str(asked.path), "round": asked.begun})
    return json.dumps({"asked": asked.version})


def _error(text: str) -> str:
    return json.dumps({"error": text})
