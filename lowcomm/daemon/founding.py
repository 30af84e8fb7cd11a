"""What a founder that cannot begin its run owes to its joiners.

Must NOT decide whether a run begins: the daemon does.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowcomm.daemon.daemon import Daemon

REFUSING_S = 3.0
"""A failed founder stays for so long: joiners try again every second (REDIAL_DELAYS_S, AGAIN_S)."""


async def refuse_joiners(daemon: "Daemon") -> None:
    """Tell joiners why there is no run, if its founder has failed before it began. No other peer
    could, and they would wait in vain."""
    ending = daemon.ending
    if ending is None or ending.outcome != "failed" or daemon.core.raft.run:
        return
    daemon.journal.note("founding", f"joiners are told that no run begins: {ending.why}")
    daemon.driver.refuse_all(f"{daemon.core.me.name} cannot begin the run: {ending.why}")
    await asyncio.sleep(REFUSING_S)
