"""Replicators in torch, for the ranks' own device: the bytes of lowcomm.replicators.replicators.

They use the same operations in the same order, each with one rounding: on the CPU the records and
the values in them are the same, bit for bit; on other devices too if their fp32 follows IEEE and
denormals are not flushed. Must NOT be imported by the daemon (torch), or use an operation in which
the library chooses the order of sums.

Shapes: as in lowcomm.replicators.replicators.
"""

import numpy as np
import torch
from torch import Tensor

from lowcomm.flexdemo.torch_codecs import bf16_bits, bytes_of, largest_places, pack_12, words_of
from lowcomm.numerics.dct import halving, scaling
from lowcomm.replicators.replicators import (
    Demo,
    Full,
    Grid,
    Random,
    Replicator,
    Striding,
    Turn,
    Wire,
)

_VECTORS_AT_ONCE = 1024
"""Vectors that a CPU transforms at once: they fit into the L2 cache. A GPU transforms all at
once."""


class TorchReplicator:
    """The torch version of a numpy replicator."""

    def __init__(self, replicator: Replicator) -> None:
        assert isinstance(replicator, Demo | Random | Striding | Full)
        self.replicator: Demo | Random | Striding | Full = replicator

    def encode_groups(self, values_GRC: Tensor, grid: Grid, turn: Turn) -> tuple[Tensor, Tensor]:
        """(records, uint8 [G, bytes of a group]; the values that they contain, fp32 [G, R, C])."""
        groups, rows, _ = values_GRC.shape
        tiles_NX = self._analyse(values_GRC, grid)
        _, width, kept = self.replicator.tiling(grid, rows)
        if isinstance(self.replicator, Demo):
            places_NK = largest_places(tiles_NX, kept)
        else:
            turns_K = torch.from_numpy(np.array(self.replicator.turns(width, turn), np.int64))
            places_NK = turns_K.to(tiles_NX.device).expand(len(tiles_NX), kept)
        packed_NS, said_NK = _pack(self.replicator.wire, tiles_NX.gather(1, places_NK))
        if self.replicator.sends_places:
            packed_NS = torch.cat([pack_12(places_NK), packed_NS], dim=1)
        said_NX = torch.zeros_like(tiles_NX).scatter_(1, places_NK, said_NK)
        return packed_NS.reshape(groups, -1), self._synthesise(said_NX, values_GRC.shape, grid)

    def _analyse(self, values_GRC: Tensor, grid: Grid) -> Tensor:
        groups, rows, columns = values_GRC.shape
        if not isinstance(self.replicator, Demo):
            return values_GRC.reshape(groups, -1)
        across, width, _ = self.replicator.tiling(grid, grid.chunk)
        chunk, side = grid.chunk, width // grid.chunk
        padded = values_GRC.new_zeros((groups, chunk, across * side))
        padded[:, :rows, :columns] = values_GRC
        tiles = padded.reshape(groups, chunk, across, side).transpose(1, 2)
        return transform(tiles.reshape(-1, width), chunk)

    def _synthesise(self, tiles_NX: Tensor, shape: torch.Size, grid: Grid) -> Tensor:
        groups, rows, columns = shape
        if not isinstance(self.replicator, Demo):
            return tiles_NX.reshape(shape)
        across, width, _ = self.replicator.tiling(grid, grid.chunk)
        tiles = inverse(tiles_NX, grid.chunk)
        tiles = tiles.reshape(groups, across, grid.chunk, width // grid.chunk)
        padded = tiles.transpose(1, 2).reshape(groups, grid.chunk, -1)
        return padded[:, :rows, :columns]


def transform(tiles_NX: Tensor, chunk: int) -> Tensor:
    """The transform of tiles [N, X], as lowcomm.numerics.dct.transform makes it."""
    return _each_axis(tiles_NX, chunk, inverse=False)


def inverse(tiles_NX: Tensor, chunk: int) -> Tensor:
    """The inverse transform of tiles [N, X], as lowcomm.numerics.dct.inverse makes it."""
    return _each_axis(tiles_NX, chunk, inverse=True)


def _each_axis(tiles_NX: Tensor, chunk: int, *, inverse: bool) -> Tensor:
    along = _inverse if inverse else _transform
    across = tiles_NX.shape[1] // chunk
    at_once = len(tiles_NX)
    if tiles_NX.device.type == "cpu":
        at_once = max(1, _VECTORS_AT_ONCE // across)
    found: list[Tensor] = []
    for some_NX in torch.split(tiles_NX, max(at_once, 1)):
        if across == 1:
            found.append(along(some_NX.T).T)
            continue
        some_NRC = some_NX.reshape(-1, chunk, chunk)
        rows = along(some_NRC.transpose(0, 1).reshape(chunk, -1)).reshape(chunk, -1, chunk)
        both = along(rows.permute(2, 1, 0).reshape(chunk, -1)).reshape(chunk, -1, chunk)
        found.append(both.permute(1, 2, 0).reshape(some_NX.shape))
    return torch.cat(found) if found else tiles_NX


def _transform(values_CM: Tensor) -> Tensor:
    size, vectors = values_CM.shape
    parts = values_CM[None]
    while parts.shape[1] > 1:
        count, length, half = len(parts), parts.shape[1], parts.shape[1] // 2
        first, last = parts[:, :half], parts[:, half:].flip(1)
        halves = parts.new_empty((count, 2, half, vectors))
        torch.add(first, last, out=halves[:, 0])
        halves[:, 1] = first.sub(last).mul_(_constants(halving(length), parts))
        parts = halves.reshape(2 * count, half, vectors)
    while len(parts) > 1:
        halves = parts.reshape(-1, 2, *parts.shape[1:])
        joined = parts.new_empty((len(halves), parts.shape[1], 2, vectors))
        joined[:, :, 0] = halves[:, 0]
        joined[:, :-1, 1] = halves[:, 1, :-1] + halves[:, 1, 1:]
        joined[:, -1, 1] = halves[:, 1, -1]
        parts = joined.reshape(len(halves), -1, vectors)
    return parts[0] * _constants(scaling(size), parts)


def _inverse(values_CM: Tensor) -> Tensor:
    size, vectors = values_CM.shape
    parts = (values_CM * _constants(scaling(size), values_CM))[None]
    while parts.shape[1] > 1:
        count, half = len(parts), parts.shape[1] // 2
        halves = parts.new_empty((count, 2, half, vectors))
        halves[:, 0] = parts[:, ::2]
        halves[:, 1, 0] = parts[:, 1]
        halves[:, 1, 1:] = parts[:, 1:-1:2] + parts[:, 3::2]
        parts = halves.reshape(2 * count, half, vectors)
    while len(parts) > 1:
        halves = parts.reshape(-1, 2, *parts.shape[1:])
        second = halves[:, 1] * _constants(halving(2 * parts.shape[1]), parts)
        parts = torch.cat([halves[:, 0] + second, (halves[:, 0] - second).flip(1)], dim=1)
    return parts[0]


def _constants(table: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]", like: Tensor) -> Tensor:
    """A column with one constant for each row."""
    return torch.from_numpy(table).to(like.device)[:, None]


def _pack(wire: Wire, kept_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Encode kept values as `Wire.pack` does."""
    match wire.values:
        case "fp32":
            return words_of(kept_NK), kept_NK
        case "bf16":
            bits_NK = bf16_bits(kept_NK)
            said_NK = (bits_NK.to(torch.int32) << 16).view(torch.float32)
            return bytes_of(bits_NK, 2), said_NK
        case "sign":
            tiles, kept = kept_NK.shape
            padded = kept_NK.new_zeros((tiles, -(-kept // 8) * 8), dtype=torch.int32)
            padded[:, :kept] = torch.signbit(kept_NK)
            weights_8 = 1 << torch.arange(8, dtype=torch.int32, device=kept_NK.device)
            bytes_NS8 = padded.reshape(tiles, -1, 8) * weights_8
            return bytes_NS8.sum(dim=2).to(torch.uint8), kept_NK
