"""One checker for each promise.

It must hold in every simulated run, whatever fails. In: what happens in a world, as it happens.
Out: violations, each a line of text; the command that drew the world prints its story and its seed.
Worlds with all checkers attached are here too. I7 (convergence) is no property of one run in
arithmetic modulo a prime, so no checker looks at it. Must NOT change what a run does, nor draw from
its random source.

Start reading: worlds.py, checkers.py, then agreement.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from sims.checkers.checkers import Checkers
    from sims.checkers.worlds import StepWorld, World

__all__ = ["Checkers", "StepWorld", "World"]

__getattr__ = lazy_exports(
    __name__,
    {
        "checkers": "Checkers",
        "worlds": "StepWorld World",
    },
)
