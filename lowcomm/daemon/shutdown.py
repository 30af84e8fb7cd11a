"""How a daemon ends: the first reason, its exit code, and signals that ask for it.

A node's daemon and a witness end alike. Must NOT close anything, nor decide that a peer leaves the
run (protocols/peer/shutdown.py).
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from lowcomm.exit_codes import EXIT_CONFIG, LEAVE_TIMEOUT_S, exit_code_of
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.types import ConfigError, LowcommError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lowcomm.startup.admission import NodeAdmission
    from peers.driver import Driver
    from protocols.peer import PeerCore


class Shutdown:
    """The end of one daemon. If several things end it, the first reason stays."""

    def __init__(self, core: PeerCore, driver: Driver, admission: NodeAdmission) -> None:
        self.ending: c.Stop | None = None
        """The reason why this daemon ends; None while it runs."""
        self.code = 0
        """The exit code of the process, once `ending` is set."""
        self.requested = asyncio.Event()
        """Set together with `ending`."""
        self._core = core
        self._driver = driver
        self._admission = admission
        self._signal = 0

    def end_daemon(
        self, why: str, outcome: c.Outcome, *, contact: str = "", code: int | None = None
    ) -> None:
        """End this daemon. `contact`: the address at which to join again, if any; `code`: the exit
        code, if the outcome does not determine it."""
        if self.ending is None:
            self.ending = c.Stop(why, outcome, contact)
            self.code = exit_code_of(outcome, signalled=self._signal) if code is None else code
            self.requested.set()

    async def guarded(self, life: Coroutine[object, object, None]) -> None:
        """If this task fails with an operating error, stop the daemon with its text as the
        reason."""
        try:
            await life
        except ConfigError as error:
            self.end_daemon(str(error), "failed", code=EXIT_CONFIG)
        except RefusedError as error:
            self.end_daemon(str(error), "refused")
        except (LowcommError, OSError) as error:
            self.end_daemon(str(error), "failed")

    def listen_for_signals(self) -> None:
        """From now on, leave the run at SIGINT and SIGTERM. Call this in the event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        if not self._leaves:
            self._signal = number
        self.leave(number.name)

    @property
    def _leaves(self) -> bool:
        member_status = self._core.member_status
        return self.ending is not None or bool(member_status.leaving)

    def leave(self, why: str) -> None:
        """Leave the run, then end this daemon. Idempotent."""
        if self._leaves:
            return
        if not self._admission.entered:
            self.end_daemon(why, "left")  # No peer knows us yet, and nothing is sent unencrypted.
            return
        self._driver.feed(v.LeaveRequested(why))
        asyncio.get_running_loop().call_later(LEAVE_TIMEOUT_S, self.end_daemon, why, "left")
