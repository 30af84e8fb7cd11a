"""One simulated peer.

Its core is the real one. The shell has a disk, ranks and a toy model, in virtual time. In: commands
of the core. Out: events, in the order in which the real driver would queue them (turns.py), and a
report of each action to an observer (world_view.py). A fragment is one parameter, so that every
result can be worked out. Must NOT decide what the core decides, nor know more of the world than
world_view.py names.

Start reading: node.py, then toy_model.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from sims.node.toy_model import Training

__all__ = ["Training"]

__getattr__ = lazy_exports(
    __name__,
    {
        "toy_model": "Training",
    },
)
