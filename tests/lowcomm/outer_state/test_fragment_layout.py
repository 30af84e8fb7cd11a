"""How large fragments are, and which layouts are none."""

import pytest

from lowcomm.codecs.fp32 import Fp32
from lowcomm.outer_state.fragment_layout import LayoutError, fragment_elements
from lowcomm.outer_state.replica import Replica
from protocols.types.ids import TensorSpec
from tests.lowcomm.replicas import LAYOUT, SIZES, Coded


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (LAYOUT, SIZES),
        ((), ()),
        ((TensorSpec(0, "a", (), 0),), (1,)),
        ((TensorSpec(0, "a", (0, 3), 0), TensorSpec(0, "b", (2,), 0)), (2,)),
        ((TensorSpec(0, "a", (1 << 40, 1 << 40), 0),), (1 << 80,)),  # No 64-bit product.
    ],
)
def test_a_fragment_is_as_large_as_its_tensors(
    layout: tuple[TensorSpec, ...], sizes: tuple[int, ...]
) -> None:
    assert fragment_elements(layout) == sizes


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ([TensorSpec(0, "a", (2,), 1)], "parameter a begins at element 1 of fragment 0, expected"),
        ([*LAYOUT, TensorSpec(1, "b", (2,), 9)], "b begins at element 9 of fragment 1, expected 8"),
        ([*LAYOUT, TensorSpec(0, "b", (2,), 22)], "b begins at element 22 of fragment 0, expected"),
        ([*LAYOUT, TensorSpec(3, "b", (2,), 0)], r"has fragments \[0, 1, 3\]: one is missing"),
        ([TensorSpec(1, "b", (2,), 0)], r"has fragments \[1\]: one is missing"),
    ],
)
def test_a_layout_with_holes_is_refused(layout: list[TensorSpec], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        fragment_elements(layout)
    with pytest.raises(LayoutError, match=why):
        Replica(Coded(codec=Fp32(), mean_codec=Fp32()), layout)
