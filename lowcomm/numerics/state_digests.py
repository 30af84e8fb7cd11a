"""The digest of a fragment's state, computed cell by cell.

Must NOT use anything of a state but its bytes.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

import xxhash

from lowcomm.numerics.kernels import F32
from lowcomm.numerics.operations import check_arrays
from peers.exchange import no_matter, spans


def state_digest(outer_P: F32, momentum_P: F32, before_cell: Callable[[], None] = no_matter) -> str:
    """The digest of a whole fragment, 32 hex digits: xxh3-128 of the digests of its cells, in
    order.

    `momentum_P` is empty if the method keeps none. `before_cell` is called before each cell, and
    may raise to stop the work.
    """
    check_arrays(outer_P)
    check_arrays(momentum_P)
    assert momentum_P.size in (0, outer_P.size), "another fragment's momentum"
    found: list[bytes] = []
    for cell in cells(outer_P.size):
        before_cell()
        found.append(cell_digest(outer_P[cell], momentum_P[cell]))
    return digest_of_cells(found)


def cells(elements: int) -> Iterator[slice]:
    """The slices of the cells that a state digest is computed from; the last cell may be
    shorter."""
    return (slice(start, stop) for start, stop in spans(elements))


def cell_digest(outer_C: F32, momentum_C: F32) -> bytes:
    """xxh3-128 of one cell, 16 bytes: outer parameters, then momentum. No other cell is needed."""
    assert sys.byteorder == "little", "the digest is defined over little-endian bytes"
    state = xxhash.xxh3_128()
    state.update(outer_C.data)
    state.update(momentum_C.data)
    return state.digest()


def digest_of_cells(found: Sequence[bytes]) -> str:
    """The digest of the state that has these cell digests, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(b"".join(found))
