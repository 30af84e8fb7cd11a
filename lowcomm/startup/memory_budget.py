"""Estimates the memory of a daemon in a run of rounds, and refuses a model that does not fit.

With node.outer_state = "file", large arrays need disk instead.

Must NOT allocate anything: it is called before the first array is made.
"""

from collections.abc import Sequence
from pathlib import Path

from lowcomm.methods.base import RoundMethod
from lowcomm.methods.buffers import in_flight as most_in_flight
from lowcomm.methods.buffers import methods_of
from lowcomm.outer_state import error_feedback
from lowcomm.outer_state.fragment_layout import fragment_elements
from lowcomm.outer_state.results import Results
from protocols.types import ConfigError, TensorSpec

IN_FLIGHT_ARRAYS = 4
"""fp32 arrays of the size of each fragment in flight: the contribution, the next outer parameters,
the slices of our part, and, for late ranks, their base or the change of the parameters."""
AHEAD_ARRAYS = 2
"""fp32 arrays of the fragment that is in flight next, if not all are in flight at once: its
contribution and its next outer parameters, which get their memory in advance."""
RESULTS_IN_FLIGHT = 2
"""Results of each fragment in flight: the next one, and the last one if a peer lacked it when it
was committed."""
IN_FILE_ARRAYS = 3
"""Of IN_FLIGHT_ARRAYS those that lie in a file with node.outer_state = "file": all but slices."""
SHARED_ARRAYS = 5
"""fp32 arrays of the model's size in a file shared with the ranks: two places of contributions, two
of results, one of the parameters' change."""
STATES_IN_FILES = 3
"""States beside that file: the present one, one that is lent, one that arrives."""
AVAILABLE_SHARE = 0.9
"""Share of the available memory that the daemon may use; the rest is for other programs."""
FILE_HINT = 'set node.outer_state = "file" if the disk is fast, '


def needed_bytes(
    layout: Sequence[TensorSpec],
    method: RoundMethod,
    *,
    peers: int,
    joins: bool = False,
    in_file: bool = False,
) -> int:
    """The maximum of the bytes of the daemon's arrays and of the memory that it shares with its
    ranks. `peers`: the number of contributions in a result by gather; `joins`: this node gets the
    state from other peers; `in_file`: arrays that lie in files do not count, because the kernel can
    take their memory."""
    methods = methods_of(method, layout)
    of_sizes = sorted(zip(fragment_elements(layout), methods, strict=True), key=_size, reverse=True)
    sizes, in_flight = [size for size, _ in of_sizes], most_in_flight(method, layout)
    arrays = len(method.state_arrays)
    state = 4 * arrays * sum(sizes)
    # A version that is lent to a joiner or a checkpoint stays beside the next one.
    running = state + 4 * arrays * sum(sizes[:in_flight])
    running += 4 * AHEAD_ARRAYS * sum(sizes[in_flight : in_flight + 1])
    exchange = sum(_exchange_bytes(size, each, peers) for size, each in of_sizes[:in_flight])
    if in_file:
        return exchange - 4 * IN_FILE_ARRAYS * sum(sizes[:in_flight])
    running += exchange
    # Until its state is complete, a joiner holds the received bytes and the state made of them, and
    # exchanges nothing. Its last fragment's momentum exists twice.
    joining = 2 * state + 4 * (arrays - 1) * sizes[0] if joins else 0
    kept = 4 * error_feedback.ARRAYS_PER_FRAGMENT * sum(sizes) if method.feedback else 0
    return max(running, joining) + kept


def file_bytes(layout: Sequence[TensorSpec], method: RoundMethod) -> int:
    """Bytes of the daemon's files with node.outer_state = "file", most of them from the beginning
    to the end."""
    arrays = SHARED_ARRAYS + STATES_IN_FILES * len(method.state_arrays)
    arrays += error_feedback.ARRAYS_PER_FRAGMENT if method.feedback else 0
    return 4 * arrays * sum(fragment_elements(layout))


def check_memory(
    needed: int, *, memory_max_bytes: int, free_bytes: int, in_file: bool = False
) -> None:
    """Raise ConfigError, with the numbers, if the needed bytes exceed `memory_max_bytes`; if that
    is 0, a share of `free_bytes`."""
    allowed = memory_max_bytes or int(AVAILABLE_SHARE * free_bytes)
    if needed <= allowed:
        return
    of = "node.memory_max_bytes" if memory_max_bytes else "90 % of what is free"
    raise ConfigError(
        f"the daemon needs about {needed / 2**30:.2f} GiB for this model and may use "
        f"{allowed / 2**30:.2f} GiB ({of}): end other programs, take a smaller model or more "
        f"run.method.fragments, {'' if in_file else FILE_HINT}or set node.memory_max_bytes higher "
        "if the machine has it"
    )


def check_disk(needed: int, *, free_bytes: int, directory: Path) -> None:
    """Raise ConfigError, with the numbers, if files of so many bytes do not fit on the disk of this
    directory, which has `free_bytes` left."""
    if needed > free_bytes:
        raise ConfigError(
            f'node.outer_state is "file", for which this model needs about {needed / 2**30:.2f} '
            f"GiB of disk, and {free_bytes / 2**30:.2f} GiB are free in {directory}: free space "
            'there, set node.directory to a place on another disk, or node.outer_state = "memory"'
        )


def _size(of: tuple[int, RoundMethod]) -> int:
    return of[0]


def _exchange_bytes(size: int, method: RoundMethod, peers: int) -> int:
    """Bytes for the exchange of a fragment of so many elements."""
    results = Results(method)
    result = results.layers(peers) * results.layer_bytes(size)
    if method.mean_codec is not None:
        result = 4 * size  # No codec makes a mean larger than this.
    return 4 * IN_FLIGHT_ARRAYS * size + RESULTS_IN_FLIGHT * result
