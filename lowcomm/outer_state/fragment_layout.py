"""Sizes of fragments, from the layout of a model's tensors. Must NOT know the tensors' values."""

import math
from collections.abc import Sequence

from protocols.types import LowcommError, TensorSpec


class LayoutError(LowcommError):
    """The tensors do not fill their fragments. The text names the tensor, and the offset that it
    should have."""


def fragment_elements(layout: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Number of elements of each fragment; its tensors must follow each other without gaps.

    Raises LayoutError for a gap or an overlap, and if a fragment before another one has no tensor.
    """
    sizes: dict[int, int] = {}
    for tensor in layout:
        end = sizes.get(tensor.fragment, 0)
        if tensor.offset != end:
            raise LayoutError(
                f"parameter {tensor.name} begins at element {tensor.offset} of fragment "
                f"{tensor.fragment}, expected {end}"
            )
        sizes[tensor.fragment] = end + math.prod(tensor.shape)
    if sorted(sizes) != list(range(len(sizes))):
        raise LayoutError(f"the layout has fragments {sorted(sizes)}: one is missing")
    return tuple(sizes[fragment] for fragment in range(len(sizes)))
