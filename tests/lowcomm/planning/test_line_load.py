"""The load on a line is that of the parts, owners and pieces of an exchange."""

import pytest

from lowcomm.methods import (
    AllReduceMethod,
    DiLoCoMethod,
    NoLoCoMethod,
    RoundMethod,
    SparseLoCoMethod,
)
from lowcomm.planning.line_load import NodeLine, busy_bytes, load_of
from lowcomm.planning.model_shapes import layout_of, stated_parameters
from peers.exchange.pieces import PIECE_ELEMENTS
from protocols.types.errors import ConfigError

FP32 = DiLoCoMethod(inner_steps=20)
PIECE = 4 * PIECE_ELEMENTS


@pytest.mark.parametrize(
    ("elements", "nodes", "busy"),
    [
        (64 * PIECE_ELEMENTS, 4, 64 * 2 * PIECE * 3 / 4),  # Each owns a quarter, in 16 pieces.
        (PIECE_ELEMENTS, 2, 2 * PIECE),  # One owner gets all, and then sends all.
        (PIECE_ELEMENTS, 3, 4 * PIECE),
        (2 * PIECE_ELEMENTS, 2, 2 * PIECE),  # Each owns a half.
        (2 * PIECE_ELEMENTS, 3, 4 * PIECE),
    ],
)
def test_a_small_fragment_has_few_owners(elements: int, nodes: int, busy: float) -> None:
    assert busy_bytes(FP32, elements, nodes=nodes) == busy


def test_many_pieces_go_to_an_owner_and_back_at_once() -> None:
    """Of 32 nodes 16 own a part: they receive 31 slices of it, and 15 results."""
    size = 16 * 100 * PIECE_ELEMENTS
    at_once, after = (31 + 15) / 16 * 4 * size, (31 + 31) / 16 * 4 * size
    found = busy_bytes(FP32, size, nodes=32)
    assert found == pytest.approx(at_once + (after - at_once) / 100)


@pytest.mark.parametrize(
    ("method", "elements", "copies"),
    [
        (SparseLoCoMethod(), 64 * PIECE_ELEMENTS, 3),  # All four own a part: straight to each.
        (SparseLoCoMethod(), 4096, 3 + 3 * 3),  # To the owner, which passes three on to each.
        (NoLoCoMethod(outer_lr=1.0), 4096, 1),
    ],
)
def test_payloads_that_are_not_summed_go_to_each_node_or_to_one(
    method: RoundMethod, elements: int, copies: int
) -> None:
    payload = method.codec.encoded_bytes(elements)
    assert busy_bytes(method, elements, nodes=4) == copies * payload


def test_a_step_sends_its_payload_to_all_others() -> None:
    method = AllReduceMethod()
    load = load_of(method, layout_of(stated_parameters(4800, layers=2), method), nodes=3)
    assert (load.steps, load.hidden_steps, load.busy) == (1, 0, (2 * 4 * 4800,))


def test_what_is_no_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate_bps must be positive"):
        NodeLine(rate_bps=0.0)
