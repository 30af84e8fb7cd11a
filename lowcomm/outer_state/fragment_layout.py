"""How the tensors of a model fill its fragments. Must NOT know what is in them."""

import math
from collections.abc import Sequence

from protocols.types.errors import LowcommError
from protocols.types.ids import TensorSpec


class LayoutError(LowcommError):
    """These tensors do not fill their fragments: which one, and where it should be."""


def fragment_elements(layout: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Size of each fragment: its tensors lie densely, one after the other.

    Raises LayoutError for a gap or an overlap, and when a fragment before another has no tensor.
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
