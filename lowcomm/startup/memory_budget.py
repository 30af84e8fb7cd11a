"""What a daemon of a run of rounds needs of the machine's memory, and whether it may have it.

Must NOT take any: it is asked before the first array is made.
"""

from collections.abc import Sequence

from lowcomm.methods.base import RoundMethod
from lowcomm.outer_state import error_feedback
from lowcomm.outer_state.fragment_layout import fragment_elements
from lowcomm.outer_state.results import Results
from protocols.types.errors import ConfigError
from protocols.types.ids import TensorSpec

IN_FLIGHT_ARRAYS = 4
"""fp32 arrays of the size of each fragment in flight: the contribution, the next outer parameters,
the slices of our part, and what a late node's ranks still need: their base, or what the parameters
moved by."""
AHEAD_ARRAYS = 2
"""Of the fragment that is to be in flight next, where not all of them are: its contribution and its
next outer parameters have memory before they are written."""
RESULTS_IN_FLIGHT = 2
"""Of each fragment in flight: the last one, unless all had it when it was committed, and the
next."""
AVAILABLE_SHARE = 0.9
"""Of what the system has to give; the rest is for whatever else asks meanwhile."""


def needed_bytes(
    layout: Sequence[TensorSpec], method: RoundMethod, *, peers: int, joins: bool = False
) -> int:
    """Bytes of the daemon's arrays and of the memory that it shares with its ranks, at the busiest
    moment. `peers`: the number of contributions that a gather brings here; `joins`: the state
    comes from other peers."""
    results, sizes = Results(method), sorted(fragment_elements(layout), reverse=True)
    in_flight = method.in_flight(len(sizes))
    arrays = len(method.state_arrays)
    state = 4 * arrays * sum(sizes)
    # What is lent to a joiner or a checkpoint stays beside the next version of it.
    running = state + 4 * arrays * sum(sizes[:in_flight])
    running += 4 * AHEAD_ARRAYS * sum(sizes[in_flight : in_flight + 1])
    for size in sizes[:in_flight]:
        result = results.layers(peers) * results.layer_bytes(size)
        if method.mean_codec is not None:
            result = 4 * size  # A mean is never larger, whatever its codec.
        running += 4 * IN_FLIGHT_ARRAYS * size + RESULTS_IN_FLIGHT * result
    # A joiner holds what arrives and what it adopted of that, until all of it is there; nothing is
    # exchanged meanwhile. Of its last fragment the momentum lies there twice.
    joining = 2 * state + 4 * (arrays - 1) * sizes[0] if joins else 0
    kept = 4 * error_feedback.ARRAYS_PER_FRAGMENT * sum(sizes) if method.feedback else 0
    return max(running, joining) + kept


def check_memory(needed: int, *, memory_max_bytes: int, free_bytes: int) -> None:
    """Refuse now, with figures, rather than be killed later. Raises ConfigError."""
    allowed = memory_max_bytes or int(AVAILABLE_SHARE * free_bytes)
    if needed <= allowed:
        return
    of = "node.memory_max_bytes" if memory_max_bytes else "90 % of what is free"
    raise ConfigError(
        f"the daemon needs about {needed / 2**30:.2f} GiB for this model and may use "
        f"{allowed / 2**30:.2f} GiB ({of}): end other programs, take a smaller model or more "
        "run.method.fragments, or set node.memory_max_bytes higher if the machine has it"
    )
