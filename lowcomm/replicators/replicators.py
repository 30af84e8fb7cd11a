"""FlexDeMo's replicators on arrays: which part of its momentum a node sends in a step.

Each tensor is seen as rows (its first dimension) and columns (all others), and cut into groups of
`chunk` rows. A group becomes tiles. Some values of each tile are kept, and are the tile's record in
the payload. So any rank that has the whole rows of a group can make its bytes, without the other
rows. A replicator defines the tiles and which values are kept; Wire defines how kept values are
encoded. `lowcomm.flexdemo.torch_replicators` makes the same bytes in torch. Must NOT keep anything
between calls.

Shapes: G groups of R rows and C columns; N tiles (of all groups) of X values, K of them kept; S
bytes of a record.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash

from lowcomm.codecs.bits import counted_bits, from_bf16, to_bf16
from lowcomm.codecs.codec import CodecError
from lowcomm.codecs.places import (
    U8,
    Places,
    index_bytes,
    largest_places,
    pack_places,
    unpack_places,
)
from lowcomm.numerics import dct
from lowcomm.numerics.kernels import F32

Values = Literal["bf16", "fp32", "sign"]
ELEMENTS_AT_ONCE = 1 << 18
"""Elements of a tensor that are processed at once, more only if one group has more: intermediate
arrays then fit into a cache."""
DRAWN_TOGETHER = 4096
"""Values among which random places are drawn at a time."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Identifies one choice of places, by chance or in turn. The choice depends on nothing else, so
    it is equal on all nodes."""

    seed: int
    """The run's seed."""
    step: int
    tensor: int
    """The tensor's number in the layout."""

    @property
    def key(self) -> int:
        numbers = (self.seed, self.step, self.tensor)
        return xxhash.xxh3_64_intdigest(b"".join(n.to_bytes(8, "little") for n in numbers))


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive groups with the same number of rows."""

    first: int
    count: int
    rows: int


@dataclass(frozen=True, slots=True)
class Grid:
    """One tensor as a grid of rows and columns, cut into groups of `chunk` rows."""

    rows: int
    columns: int
    chunk: int
    is_matrix: bool
    """True if the tensor has at least two dimensions."""

    @classmethod
    def of(cls, shape: tuple[int, ...], chunk: int) -> "Grid":
        columns = 1
        for size in shape[1:]:
            columns *= size
        return cls(shape[0] if shape else 1, columns, chunk, len(shape) > 1)

    @property
    def groups(self) -> int:
        return -(-self.rows // self.chunk)

    def spans(self, first: int, stop: int, *, at_once: int = ELEMENTS_AT_ONCE) -> Iterator[Span]:
        """Yield the groups [first, stop) in spans of at most `at_once` elements, or of one group.
        The tensor's last group may have fewer rows than the others. The bits do not depend on where
        spans end."""
        whole = min(stop, self.rows // self.chunk)
        step = max(1, at_once // (self.chunk * self.columns))
        for at in range(first, whole, step):
            yield Span(at, min(step, whole - at), self.chunk)
        if max(first, whole) < stop:
            yield Span(max(first, whole), 1, self.rows - whole * self.chunk)


class Wire:
    """The encoding of kept values. With "sign" a value is one bit, without its magnitude: it is
    decoded as 1 or -1, and 0.0 counts as positive."""

    def __init__(self, values: Values) -> None:
        self.values: Values = values

    def record_bytes(self, kept: int) -> int:
        match self.values:
            case "fp32":
                return 4 * kept
            case "bf16":
                return 2 * kept
            case "sign":
                return -(-kept // 8)

    def pack(self, kept_NK: F32) -> tuple[U8, F32]:
        """(records, uint8 [N, S]; the values that count as sent, fp32 [N, K], which the node
        subtracts from its momentum)."""
        tiles, kept = kept_NK.shape
        match self.values:
            case "fp32":
                return kept_NK.astype("<f4").view(np.uint8).reshape(tiles, -1), kept_NK
            case "bf16":
                halves, (one, two) = (
                    np.empty(kept_NK.size, np.uint16),
                    np.empty((2, kept_NK.size), np.uint32),
                )
                to_bf16(kept_NK.reshape(-1), halves, one, two)
                said_NK = np.empty(kept_NK.shape, np.float32)
                from_bf16(halves.reshape(kept_NK.shape), said_NK)
                return halves.astype("<u2").view(np.uint8).reshape(tiles, 2 * kept), said_NK
            case "sign":
                return np.packbits(np.signbit(kept_NK), axis=1, bitorder="little"), kept_NK

    def unpack(self, records_NS: U8, kept: int) -> F32:
        """The values of the records, fp32 [N, K]. Raises CodecError if a value is not finite, or
        bytes are no record."""
        if self.values == "sign":
            bits = np.unpackbits(records_NS, axis=1, bitorder="little")
            if bits[:, kept:].any():
                raise CodecError("flexdemo: bits after the last sign")
            return np.float32(1) - np.float32(2) * bits[:, :kept]
        words = np.ascontiguousarray(records_NS).view("<f4" if self.values == "fp32" else "<u2")
        values_NK = np.empty(words.shape, np.float32)
        if self.values == "fp32":
            values_NK[:] = words
        else:
            from_bf16(words, values_NK)
        if not np.isfinite(values_NK).all():
            raise CodecError("flexdemo: a value is not finite")
        return values_NK


class Replicator(ABC):
    """The replicator of a run. `encode_groups`, `decode_groups` and `synthesise` process the groups
    of one span."""

    has_momentum = True
    """If True, the part that is not sent stays in the node's momentum. If False, the node sends its
    gradient and keeps nothing."""
    sends_places = False
    """True if nodes keep different places, which are then sent too."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @abstractmethod
    def tiling(self, grid: Grid, rows: int) -> tuple[int, int, int]:
        """(tiles of a group of `rows` rows; values of a tile; values kept of each tile)."""
        ...

    @abstractmethod
    def analyse(self, values_GRC: F32, grid: Grid) -> F32:
        """The tiles of whole groups, fp32 [N, X]."""
        ...

    @abstractmethod
    def synthesise(self, tiles_NX: F32, grid: Grid, span: Span) -> F32:
        """The values of these tiles, fp32 [G, R, C]: the inverse of `analyse`."""
        ...

    @abstractmethod
    def places(self, tiles_NX: F32, kept: int, turn: Turn) -> Places:
        """The places that are kept of each tile, ascending: [N, K], or [1, K] if all tiles have the
        same."""
        ...

    def group_bytes(self, grid: Grid, rows: int) -> int:
        """Bytes of the records of a group of `rows` rows."""
        tiles, _, kept = self.tiling(grid, rows)
        return tiles * self._record_bytes(kept)

    def encode_groups(self, values_GRC: F32, grid: Grid, turn: Turn) -> tuple[U8, F32]:
        """(records, uint8 [G, bytes of a group]; the values that count as sent, fp32 [G, R, C])."""
        groups, rows, _ = values_GRC.shape
        tiles_NX = self.analyse(values_GRC, grid)
        _, width, kept = self.tiling(grid, rows)
        places_NK = np.broadcast_to(self.places(tiles_NX, kept, turn), (len(tiles_NX), kept))
        packed_NS, said_NK = self.wire.pack(np.take_along_axis(tiles_NX, places_NK, axis=1))
        if self.sends_places:
            packed_NS = np.concatenate([pack_places(places_NK), packed_NS], axis=1)
        said_NX = np.zeros((len(tiles_NX), width), np.float32)
        np.put_along_axis(said_NX, places_NK, said_NK, axis=1)
        said = self.synthesise(said_NX, grid, Span(0, groups, rows))
        return packed_NS.reshape(groups, -1), said

    def decode_groups(
        self, records_GS: U8, grid: Grid, span: Span, turn: Turn
    ) -> tuple[Places, F32]:
        """(places, [N, K] or [1, K]; values, fp32 [N, K]). Raises CodecError."""
        tiles, width, kept = self.tiling(grid, span.rows)
        records_NS = records_GS.reshape(span.count * tiles, -1)
        split = index_bytes(kept) if self.sends_places else 0
        values_NK = self.wire.unpack(records_NS[:, split:], kept)
        if self.sends_places:
            return unpack_places("flexdemo", records_NS[:, :split], kept, width), values_NK
        return self.places(np.empty((0, width), np.float32), kept, turn), values_NK

    def _record_bytes(self, kept: int) -> int:
        places = index_bytes(kept) if self.sends_places else 0
        return places + self.wire.record_bytes(kept)


class Demo(Replicator):
    """Keeps the `topk` largest cosine coefficients of each tile, and sends their places. A tile has
    chunk x chunk values of a matrix, or `chunk` values of a vector; beyond the tensor's border it
    is zero."""

    sends_places = True

    def __init__(self, wire: Wire, *, topk: int) -> None:
        super().__init__(wire)
        self.topk = topk

    def tiling(self, grid: Grid, rows: int) -> tuple[int, int, int]:
        across = -(-grid.columns // grid.chunk) if grid.is_matrix else 1
        width = grid.chunk**2 if grid.is_matrix else grid.chunk
        return across, width, min(self.topk, width)

    def analyse(self, values_GRC: F32, grid: Grid) -> F32:
        across, width, _ = self.tiling(grid, grid.chunk)
        groups, rows, columns = values_GRC.shape
        chunk, side = grid.chunk, width // grid.chunk
        padded = np.zeros((groups, chunk, across * side), np.float32)
        padded[:, :rows, :columns] = values_GRC
        tiles = padded.reshape(groups, chunk, across, side).transpose(0, 2, 1, 3)
        return dct.transform(tiles.reshape(-1, width), chunk)

    def synthesise(self, tiles_NX: F32, grid: Grid, span: Span) -> F32:
        across, width, _ = self.tiling(grid, grid.chunk)
        tiles = dct.inverse(tiles_NX, grid.chunk)
        tiles = tiles.reshape(span.count, across, grid.chunk, width // grid.chunk)
        padded = tiles.transpose(0, 2, 1, 3).reshape(span.count, grid.chunk, -1)
        return padded[:, : span.rows, : grid.columns]

    def places(self, tiles_NX: F32, kept: int, turn: Turn) -> Places:
        return largest_places(tiles_NX, kept)


class _Flat(Replicator):
    """A replicator without a transform: a tile is the values of one group, in order."""

    def analyse(self, values_GRC: F32, grid: Grid) -> F32:
        return values_GRC.reshape(len(values_GRC), -1)

    def synthesise(self, tiles_NX: F32, grid: Grid, span: Span) -> F32:
        return tiles_NX.reshape(span.count, span.rows, grid.columns)

    def places(self, tiles_NX: F32, kept: int, turn: Turn) -> Places:
        return self.turns(tiles_NX.shape[1], turn)[None]

    @abstractmethod
    def turns(self, width: int, turn: Turn) -> Places:
        """The places that are kept of a tile of `width` values, ascending [K]."""
        ...


class Random(_Flat):
    """Keeps one value in `one_in`, by counter-based random numbers that are equal on all nodes."""

    def __init__(self, wire: Wire, *, one_in: int) -> None:
        super().__init__(wire)
        self.one_in = one_in

    def tiling(self, grid: Grid, rows: int) -> tuple[int, int, int]:
        width = rows * grid.columns
        whole, rest = divmod(width, DRAWN_TOGETHER)
        kept = whole * -(-DRAWN_TOGETHER // self.one_in) + -(-rest // self.one_in)
        return 1, width, kept

    def turns(self, width: int, turn: Turn) -> Places:
        return _drawn(width, self.one_in, turn.key)


class Striding(_Flat):
    """Keeps every `one_in`-th value, the next ones with each step."""

    def __init__(self, wire: Wire, *, one_in: int) -> None:
        super().__init__(wire)
        self.one_in = one_in

    def tiling(self, grid: Grid, rows: int) -> tuple[int, int, int]:
        width = rows * grid.columns
        return 1, width, -(-width // self.one_in)

    def turns(self, width: int, turn: Turn) -> Places:
        first = np.arange(0, width, self.one_in)
        return first + turn.step % np.minimum(width - first, self.one_in)


class Full(_Flat):
    """Keeps all values, of the gradient itself: there is no momentum."""

    has_momentum = False

    def tiling(self, grid: Grid, rows: int) -> tuple[int, int, int]:
        width = rows * grid.columns
        return 1, width, width

    def turns(self, width: int, turn: Turn) -> Places:
        return np.arange(width)


@lru_cache(maxsize=256)
def _drawn(width: int, one_in: int, key: int) -> npt.NDArray[np.intp]:
    whole, rest = divmod(width, DRAWN_TOGETHER)
    parts = [at * DRAWN_TOGETHER + _block(DRAWN_TOGETHER, one_in, key) for at in range(whole)]
    if rest:
        parts.append(whole * DRAWN_TOGETHER + _block(rest, one_in, key))
    drawn = np.concatenate(parts)
    drawn.flags.writeable = False
    return drawn


@lru_cache(maxsize=256)
def _block(size: int, one_in: int, key: int) -> npt.NDArray[np.intp]:
    draw_1N = np.empty((1, size), np.uint32)
    counted_bits(np.array([key], np.uint64), draw_1N)
    # Of equal numbers the first is taken: the choice does not depend on numpy's sort.
    return np.sort(np.argsort(draw_1N[0], kind="stable")[: -(-size // one_in)])
