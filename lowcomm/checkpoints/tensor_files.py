"""A model's arrays in safetensors files, with the names and shapes of its parameters.

Must NOT import torch, nor know of checkpoints (checkpoint.py).
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, cast

from lowcomm.numerics.arrays import IN_MEMORY, LargeArrays
from lowcomm.numerics.operations import F32
from protocols.types import LowcommError

LayoutEntry = tuple[str, tuple[int, ...], int]
"""A parameter's name, its shape, and its offset in the fragment (elements)."""
Layout = Sequence[Sequence[LayoutEntry]]
"""For each fragment its parameters, without gaps."""


class CheckpointError(LowcommError):
    """A checkpoint cannot be written or must not be trusted. The message says which one, and
    why."""


def write_arrays(path: Path, layout: Layout, arrays: Sequence[F32]) -> None:
    """Write one array for each fragment to a file. Raises CheckpointError, or OSError if the disk
    refuses."""
    from safetensors import SafetensorError, numpy

    tensors: dict[str, F32] = {}
    for entries, array in zip(layout, arrays, strict=True):
        for name, shape, place in _places(entries, array.size):
            if name in tensors:
                raise CheckpointError(f"two parameters are named {name}")
            tensors[name] = array[place].reshape(shape)
    try:
        # Hugging Face loaders refuse a file if its metadata does not name a framework's layout.
        numpy.save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # safetensors raises its own type, also for a full disk.
        raise CheckpointError(f"{path.name}: {error}") from error


def read_arrays(
    path: Path, layout: Layout, large: LargeArrays = IN_MEMORY, *, may_lack: bool = False
) -> list[F32]:
    """Read one array for each fragment from a file, fp32, made by `large`. With `may_lack`, a file
    without arrays gives empty ones. Raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    arrays: list[F32] = []
    try:
        with cast(Any, safe_open)(
            path, framework="numpy"
        ) as file:  # safetensors has no annotations.
            lacks = may_lack and not file.keys()
            for entries in nothing(layout) if lacks else layout:
                array = large.zeros(sum(prod(shape) for _, shape, _ in entries))
                for name, _, place in _places(entries, array.size):
                    array[place] = file.get_tensor(name).reshape(-1)
                arrays.append(array)
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: wrong size.
        raise CheckpointError(f"{path.name}: {error}") from error
    return arrays


def nothing(layout: Layout) -> Layout:
    """A layout with as many fragments, all empty."""
    return tuple(() for _ in layout)


def beside(layout: Layout, names: Sequence[str]) -> Layout:
    """A layout with an array for each name, one after the other, each with all parameters. Without
    names: the layout itself."""
    if not names:
        return layout
    made: list[list[LayoutEntry]] = []
    for entries in layout:
        size = sum(prod(shape) for _, shape, _ in entries)
        made.append(
            [
                (f"{array}.{name}", shape, number * size + offset)
                for number, array in enumerate(names)
                for name, shape, offset in entries
            ]
        )
    return made


def _places(
    entries: Sequence[LayoutEntry], elements: int
) -> list[tuple[str, tuple[int, ...], slice]]:
    """Name, shape and slice of each parameter. Raises CheckpointError unless the parameters fill
    the fragment without gaps."""
    places: list[tuple[str, tuple[int, ...], slice]] = []
    end = 0
    for name, shape, offset in entries:
        if offset != end:
            raise CheckpointError(f"{name} begins at element {offset}, expected {end}")
        end += prod(shape)
        places.append((name, shape, slice(offset, end)))
    if end != elements:
        raise CheckpointError(f"the layout has {end} elements, the fragment {elements}")
    return places
