"""The layout that paced ranks report, and parameter movements that a test can compute.

Must NOT import torch, nor keep state.
"""

import math
from itertools import pairwise

import numpy as np

from lowcomm.methods import AnyMethod, Parameter, RoundMethod
from lowcomm.numerics import F32
from peers.ipc import TensorPlace

FRAGMENT = 0  # The whole model, if the method does not divide it.
TENSORS = 4
INITIAL_SLOT = 1 << 20
"""The initial parameters are a movement of this slot, which no node has, so no node's movement
cancels them."""


def movement(elements: int, *, slot: int, step: int) -> F32:
    """The change of the parameters by inner step `step` of the node in `slot`: fp32 [elements].

    Multiples of 2**-22 in [-2**-7, 2**-7), about evenly spread, so that long runs stay small; exact
    in fp32, so that every machine computes the same bits.
    """
    start = (slot * 0x9E3779B1 + step * 0x85EBCA77) % 2**32  # Odd factors spread the values.
    bits_P = np.arange(elements, dtype=np.uint32) * np.uint32(0xC2B2AE3D) + np.uint32(start)
    moved_P = (bits_P >> np.uint32(16)).astype(np.float32)
    moved_P *= np.float32(2.0**-22)
    moved_P -= np.float32(2.0**-7)
    return moved_P


def initial_parameters(elements: int, *, seed: int) -> F32:
    """The parameters of version 0 of a run with this `run.seed`: fp32 [elements]."""
    return movement(elements, slot=INITIAL_SLOT, step=seed)


def stand_in_loss(theta_P: F32) -> float:
    """The mean square of the parameters: equal parameters give an equal figure."""
    return float(np.mean(np.square(theta_P, dtype=np.float64)))


def tensors(
    elements: int,
    method: AnyMethod | None = None,
    *,
    columns: int = 0,
    count: int = TENSORS,
    name_chars: int = 0,
) -> tuple[TensorPlace, ...]:
    """The layout: `count` tensors of about the same size, each a block of its own. Every other
    tensor, if its size allows, is a matrix of `columns` columns. Their names have at least
    `name_chars` characters."""
    borders = [elements * number // count for number in range(count + 1)]
    parameters: list[Parameter] = []
    for number, (start, stop) in enumerate(pairwise(borders)):
        size = stop - start
        is_matrix = columns > 0 and number % 2 == 0 and size % columns == 0
        shape = (size // columns, columns) if is_matrix else (size,)
        name = f"paced.{number}"
        parameters.append(Parameter(name.ljust(name_chars, "x"), shape))
    divided = isinstance(method, RoundMethod)
    fragments = method.fragments_of(parameters) if divided else (FRAGMENT,) * count
    found, ends = list[TensorPlace](), dict[int, int]()
    for fragment, each in zip(fragments, parameters, strict=True):
        offset = ends.get(fragment, 0)
        found.append(TensorPlace(fragment, each.name, each.shape, offset))
        ends[fragment] = offset + math.prod(each.shape)
    return tuple(found)


def share(elements: int, *, rank: int, world_size: int) -> slice:
    """The elements that one of the node's ranks writes."""
    return slice(elements * rank // world_size, elements * (rank + 1) // world_size)
