"""PeerCore: one peer's whole protocol.

In: one event and the time. Out: a list of commands. Which parts of the core run after an event is
said by marks (wakeups.py); the simulator compares every event with a core that runs all parts. Must
NOT await, read a clock, draw random numbers or touch bytes: the same events give the same commands.

Start reading: core.py, then passes.py for what each part does.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.peer import wakeups
    from protocols.peer.branches import fork_of
    from protocols.peer.core import PeerCore
    from protocols.peer.revoked_peers import FAREWELL_S
    from protocols.peer.wait_reason import WaitReason, describe

__all__ = ["FAREWELL_S", "PeerCore", "WaitReason", "describe", "fork_of", "wakeups"]

__getattr__ = lazy_exports(
    __name__,
    {
        "branches": "fork_of",
        "core": "PeerCore",
        "revoked_peers": "FAREWELL_S",
        "wait_reason": "WaitReason describe",
    },
)
