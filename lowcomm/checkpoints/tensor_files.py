"""Arrays of a model in safetensors files, named and shaped as its parameters.

Must NOT import torch, nor know what a checkpoint is (checkpoint.py).
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from lowcomm.numerics.operations import F32
from protocols.types.errors import LowcommError

LayoutEntry = tuple[str, tuple[int, ...], int]
"""A parameter's name, its shape, and its offset in the fragment (elements)."""
Layout = Sequence[Sequence[LayoutEntry]]
"""For each fragment its parameters, densely packed."""


class CheckpointError(LowcommError):
    """A checkpoint that cannot be written or must not be trusted: which, and why."""


def write_arrays(path: Path, layout: Layout, arrays: Sequence[F32]) -> None:
    """One array a fragment. Raises CheckpointError; OSError when the disk refuses."""
    from safetensors import SafetensorError, numpy

    tensors: dict[str, F32] = {}
    for entries, array in zip(layout, arrays, strict=True):
        for name, shape, place in _places(entries, array.size):
            if name in tensors:
                raise CheckpointError(f"two parameters are named {name}")
            tensors[name] = array[place].reshape(shape)
    try:
        # Hugging Face loaders refuse a file that does not say which framework's layout it has.
        numpy.save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # Its own type also for a full disk.
        raise CheckpointError(f"{path.name}: {error}") from error


def read_arrays(path: Path, layout: Layout, *, may_lack: bool = False) -> list[F32]:
    """One array a fragment; `may_lack`: there may be none in it. Raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    arrays: list[F32] = []
    try:
        with cast(Any, safe_open)(path, framework="numpy") as file:  # Ships no annotations.
            lacks = may_lack and not file.keys()
            for entries in nothing(layout) if lacks else layout:
                array = np.empty(sum(prod(shape) for _, shape, _ in entries), np.float32)
                for name, _, place in _places(entries, array.size):
                    array[place] = file.get_tensor(name).reshape(-1)
                arrays.append(array)
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: another size.
        raise CheckpointError(f"{path.name}: {error}") from error
    return arrays


def nothing(layout: Layout) -> Layout:
    """Of as many fragments."""
    return tuple(() for _ in layout)


def beside(layout: Layout, names: Sequence[str]) -> Layout:
    """Of as many arrays behind each other, each like the parameters; no names: of one."""
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
    """Name, shape and place of each parameter, once it is sure that they fill the fragment."""
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
