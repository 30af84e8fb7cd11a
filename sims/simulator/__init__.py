"""A whole cluster in one thread and in virtual time: lines, connections, admission, and the clock.

In: a seed and a plan of faults. Out: the same story for the same seed. Nodes (sims/node) run the
real core; second cores that run all of their parts after each event must give the same commands
(twin_cores.py). Must NOT judge what happens: sims/checkers does.

Start reading: world.py; step_world.py is the same for stepwise runs.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from sims.simulator.step_world import StepWorld
    from sims.simulator.world import World

__all__ = ["StepWorld", "World"]

__getattr__ = lazy_exports(
    __name__,
    {
        "step_world": "StepWorld",
        "world": "World",
    },
)
