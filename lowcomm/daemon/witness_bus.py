"""The bus of a witness, on which it answers commands as a node does. Must NOT decide anything."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowcomm.daemon.acts import act_json
from lowcomm.daemon.token_list import audit_json, paused_at, tokens_json
from lowcomm.daemon.tried_addresses import with_tried
from peers.ipc import Bus, ListActs, ListTokens, MakeCheckpoint, Status
from peers.ranks import SocketDirectory
from protocols.peer import describe

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from lowcomm.daemon.acts import Feed
    from peers.ipc import Question
    from protocols.peer import PeerCore

VOTING = "voting"
"""The state of a witness while members train."""


@contextmanager
def witness_bus() -> Generator[tuple[Bus, str]]:
    """A bus and its endpoint, in a new directory that is removed afterwards. Raises ConfigError,
    and OSError if the bus cannot be made."""
    directory = SocketDirectory()
    endpoint = f"ipc://{directory.path}/bus"
    directory.make_directory()
    try:
        bus = Bus(endpoint)
        try:
            yield bus, endpoint
        finally:
            bus.close()
    finally:
        directory.close()


def witness_answer(
    core: PeerCore, feed: Feed, question: Question, now: float, *, faults: Mapping[str, str]
) -> str:
    """The answer, in JSON. `feed`: gives the core an event. `faults`: by address that was dialled
    in vain, why."""
    if isinstance(question, ListTokens):
        return tokens_json(core.run_state)
    if isinstance(question, ListActs):
        return audit_json(core.run_state)
    if isinstance(question, MakeCheckpoint):
        return json.dumps({"error": "a witness has no state: ask at a node that trains"})
    if not isinstance(question, Status):
        return act_json(core, feed, question)
    wait, run_state = with_tried(describe(core, now), faults), core.run_state
    votes = wait.phase in ("training", "reducing")
    return json.dumps(
        {
            "peer": core.me.peer,
            "name": core.me.name,
            "state": VOTING if votes else wait.phase,
            "reason": "" if votes else wait.reason,
            "since_s": now - wait.since,
            "until_s": wait.until - now if wait.until < float("inf") else None,
            "paused_at": paused_at(run_state),
            "witness": True,
            "inner_steps": run_state.inner_step,
            "outer_step": run_state.committed(0) if run_state.run else 0,
            "outer_steps": run_state.run.outer_steps if run_state.run else 0,
            "roster": list(run_state.views[-1].roster) if run_state.views else [],
            "members": {peer: info.name for peer, info in run_state.members.items()},
            "leader": core.leader_id or "",
            "address": core.me.address,
        }
    )
