"""Several nodes in one process.

They have the bits of real daemons. They exchange in order, for research and tests. In: models or
contributions of each node. Out: the outer results of every round or step. Must NOT use a
connection, a log, a clock or a thread.

Start reading: exchange.py, then nodes.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from sims.lockstep.exchange import LocalContribution, Lockstep
    from sims.lockstep.nodes import LockstepNodes
    from sims.lockstep.step_lockstep import StepLockstep

__all__ = ["LocalContribution", "Lockstep", "LockstepNodes", "StepLockstep"]

__getattr__ = lazy_exports(
    __name__,
    {
        "exchange": "LocalContribution Lockstep",
        "nodes": "LockstepNodes",
        "step_lockstep": "StepLockstep",
    },
)
