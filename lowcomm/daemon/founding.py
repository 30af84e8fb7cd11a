"""Refuses joiners if the founder of a run has failed before the run began.

Must NOT decide whether a run begins: the daemon does.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowcomm.daemon.daemon import Daemon

REFUSING_S = 3.0
"""Seconds for which a failed founder still answers; joiners dial each second (REDIAL_DELAYS_S,
AGAIN_S)."""


async def refuse_joiners(daemon: "Daemon") -> None:
    """If this founder has failed before the run began, tell joiners the reason. No other peer knows
    it, and without it they would wait in vain."""
    ending = daemon.ending
    if ending is None or ending.outcome != "failed" or daemon.core.raft.run:
        return
    daemon.event_log.note("founding", f"joiners are told that no run begins: {ending.why}")
    daemon.driver.mesh_shell.refuse_all(f"{daemon.core.me.name} cannot begin the run: {ending.why}")
    await asyncio.sleep(REFUSING_S)
