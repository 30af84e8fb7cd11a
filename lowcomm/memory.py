"""What a daemon of a run of rounds needs of the machine's memory, and whether it may have it.

Must NOT take any: it is asked before the first array is made.
"""

from collections.abc import Sequence

from lowcomm import feedback
from lowcomm.layout import fragment_elements
from lowcomm.methods.base import RoundMethod
from lowcomm.results import Results
from protocols.errors import ConfigError
from protocols.ids import TensorSpec

ARRAYS_PER_FRAGMENT = 13
"""Fragment-sized fp32 arrays at the busiest moment: outer parameters, now and next (2), and while
the ranks keep the base that they have, a third; the momentum; the contribution in shared memory,
where fp32 is encoded too, one of ranks that are lost, and what the parameters moved by; the slices
of our part, with our own if it is encoded elsewhere, in 2 bytes an element at most (2: half of all
own everything, where the lines of the others are slow); a state that is lent to joiners while
rounds go on, and one to a checkpoint (2 each)."""
RESULTS_PER_FRAGMENT = 2
"""Beyond those: the last one, unless all had it when it was committed, and the next."""


def needed_bytes(layout: Sequence[TensorSpec], method: RoundMethod, *, peers: int) -> int:
    """What the daemon's arrays take; `peers`: whose contributions a gather brings here."""
    results, needed = Results(method), 0
    for size in fragment_elements(layout):
        result = results.layers(peers) * results.layer_bytes(size)
        if method.mean_codec is not None:
            result = 4 * size  # A mean is never larger, whatever its codec.
        arrays = ARRAYS_PER_FRAGMENT + (feedback.ARRAYS_PER_FRAGMENT if method.feedback else 0)
        needed += 4 * arrays * size + RESULTS_PER_FRAGMENT * result
    return needed


def check_memory(needed: int, *, memory_max_bytes: int, free_bytes: int) -> None:
    """Refuse now, with figures, rather than be killed later. Raises ConfigError."""
    allowed = memory_max_bytes or free_bytes // 2
    if needed > allowed:
        raise ConfigError(
            f"the daemon needs about {needed / 2**30:.2f} GiB for this model and may use "
            f"{allowed / 2**30:.2f} GiB: set node.memory_max_bytes higher if the machine has it"
        )


def free_memory_bytes() -> int:
    """What the kernel says can be had without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
