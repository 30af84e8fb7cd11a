"""The data plane of stepwise runs.

In: commands of the core and payloads of other peers. Out: payloads, orders, and events when ranks
have obeyed. A payload is kept by the digest of its bytes. Must NOT decide which steps are made or
committed.

Start reading: step_shell.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.steps.step_shell import StepShell

__all__ = ["StepShell"]

__getattr__ = lazy_exports(
    __name__,
    {
        "step_shell": "StepShell",
    },
)
