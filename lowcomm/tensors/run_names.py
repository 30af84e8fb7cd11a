"""The names and the order that a run gives to tensors which a program has under others.

Frameworks name the tensors of one architecture differently, fuse some, and order the rows of some
differently. With a table of all these, their programs are nodes of one run: values only move, so no
bit changes. Must NOT know a framework, nor copy a value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lowcomm.tensors.placement import Placement
from protocols.types import ConfigError

Shape = tuple[int, ...]
RunNames = Mapping[str, str | Sequence[tuple[str, slice]]]
"""For each tensor of the run, by its name and in the run's order: the name of the program's tensor;
or (name, rows) for each piece of which it consists, one after the other along the first dimension.
The rows are a slice of the first dimension, with a positive step. Entries about tensors that are
not exchanged have no effect."""


class RunPart(NamedTuple):
    """The part of a run's tensor for which one rank has the values."""

    offsets: Shape
    """The first index of the part in the run's tensor, in each dimension."""
    sizes: Shape
    rows: slice | None
    """Where the values are in the rank's part of its own tensor; None: they are all of it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one of the program's tensors, which lie together in a tensor of the run."""

    name: str
    """That of the program's tensor."""
    rows: range | None
    """None: the whole tensor, which may have no dimension."""
    at: int
    """The first of these rows in the run's tensor."""

    def part(self, held: Placement) -> RunPart | None:
        """What a rank that holds this much of the program's tensor has of the run's; None: nothing,
        since it holds other rows."""
        if self.rows is None:
            return RunPart(held.offsets, held.sizes, None)
        start, step = self.rows.start, self.rows.step
        begin, end = held.offsets[0], held.offsets[0] + held.sizes[0]
        first = max(-(-(begin - start) // step), 0)
        last = min(-(-(end - start) // step), len(self.rows))
        if first >= last:
            return None
        rows = slice(start + first * step - begin, start + (last - 1) * step - begin + 1, step)
        offsets, sizes = held.offsets[1:], held.sizes[1:]
        return RunPart((self.at + first, *offsets), (last - first, *sizes), rows)


@dataclass(frozen=True, slots=True)
class RunTensor:
    """A tensor of the run."""

    name: str
    shape: Shape
    pieces: tuple[Piece, ...]


def run_tensors(shapes: Mapping[str, Shape], names: RunNames | None) -> list[RunTensor]:
    """The run's tensors, in its order. `shapes`: of all tensors that the node exchanges, by their
    own names, in their own order; without `names` the run's are the same. Raises ConfigError unless
    the names place each row of each of them once."""
    if names is None:
        return [RunTensor(name, shape, (Piece(name, None, 0),)) for name, shape in shapes.items()]
    placed = {name: np.zeros(shape[:1], np.intp) for name, shape in shapes.items()}
    found: list[RunTensor] = []
    for name, listed in names.items():
        pieces = [(listed, None)] if isinstance(listed, str) else listed
        if any(own in shapes for own, _ in pieces):
            found.append(_run_tensor(name, pieces, shapes))
            for own, rows in pieces:
                placed[own][... if rows is None else rows] += 1
    for own, times in placed.items():
        if (times != 1).any():
            raise ConfigError(
                f"names= must place each row of parameter {own} once in the run's tensors, and "
                f"places one {int(times[times != 1][0])} times"
            )
    return found


def _run_tensor(
    name: str, listed: Sequence[tuple[str, slice | None]], shapes: Mapping[str, Shape]
) -> RunTensor:
    pieces: list[Piece] = []
    at, others = 0, set[Shape]()
    for own, rows in listed:
        if own not in shapes:
            raise ConfigError(
                f"names= makes {name} of {own} and others, but {own} is no parameter that nodes "
                "exchange"
            )
        shape = shapes[own]
        others.add(shape[1:])
        if rows is None:
            return RunTensor(name, shape, (Piece(own, None, 0),))
        if not shape or (rows.step or 1) < 1:
            raise ConfigError(
                f"names= takes {rows} of the rows of {own} {list(shape)}: give a parameter without "
                "dimensions by its name alone, and rows with a positive step"
            )
        taken = range(*rows.indices(shape[0]))
        pieces.append(Piece(own, taken, at))
        at += len(taken)
    if len(others) > 1:
        raise ConfigError(f"names= makes {name} of rows with different shapes: {sorted(others)}")
    return RunTensor(name, (at, *others.pop()), tuple(pieces))
