"""Samples of blocks: what is drawn, and which bytes of a payload it is."""

import random

import numpy as np
import pytest

from lowcomm.codecs import codec, known_codecs
from peers.checks.samples import PartSample, drawn
from peers.exchange.pieces import PIECE_ELEMENTS, Payload
from protocols.rounds.owner_checks import block_elements, sample_size
from protocols.types.ids import PartBlocks

START = 1 << 17


def sample(*blocks: int, elements: int, block: int) -> PartSample:
    return PartSample(PartBlocks(0, blocks), START, START + elements, block)


def test_all_blocks_are_drawn_if_there_are_few() -> None:
    assert drawn(5, 9) == (0, 1, 2, 3, 4)
    many = drawn(1000, 150)
    assert len(set(many)) == 150
    assert list(many) == sorted(many)
    assert many != drawn(1000, 150)
    assert 0 <= many[0] <= many[-1] < 1000


def test_a_last_block_may_be_short() -> None:
    assert sample(0, 2, elements=200, block=64).elements == 128
    assert sample(0, 3, elements=200, block=64).elements == 64 + 8
    assert sample(3, elements=200, block=64).drawn(drawn, 99).of.blocks == (0, 1, 2, 3)


@pytest.mark.parametrize("name", known_codecs())
def test_blocks_side_by_side_are_a_payload_of_their_values(name: str) -> None:
    """So a sum is computed from blocks as from slices, with the same bits."""
    coder = codec(name)
    block = block_elements(coder.grain)
    assert PIECE_ELEMENTS % block == 0
    elements = 5 * block + 3
    values = np.random.default_rng(7).standard_normal(elements).astype(np.float32)
    whole = bytearray(coder.encoded_bytes(elements))
    coder.encode(values, whole)
    size = coder.encoded_bytes(block)
    for chosen in ((1, 3), (0, 2, 5), (5,)):
        one = sample(*chosen, elements=elements, block=block)
        cut = one.cut_blocks(whole, size)
        assert len(cut) == coder.encoded_bytes(one.elements)
        wanted = np.concatenate([values[i * block : (i + 1) * block] for i in chosen])
        again = bytearray(len(cut))
        coder.encode(wanted, again)
        assert again == cut


def test_blocks_of_a_layer_are_found_in_its_pieces() -> None:
    elements, block = PIECE_ELEMENTS + 100, 64
    layers = [np.arange(elements, dtype=np.float32) + 0.5 * layer for layer in range(2)]
    buffer = memoryview(bytearray(2 * 4 * elements))
    payload = Payload(elements, lambda n: 4 * n, buffer, layers=2)
    for index in range(len(payload)):
        number, layer = divmod(index, 2)
        values = layers[layer][number * PIECE_ELEMENTS : (number + 1) * PIECE_ELEMENTS]
        payload.chunk(index)[:] = values.tobytes()
    last = PIECE_ELEMENTS // block
    one = sample(3, last - 1, last, last + 1, elements=elements, block=block)
    for layer, values in enumerate(layers):
        assert one.cut_layer(payload, layer, 4 * block) == one.cut_blocks(
            values.tobytes(), 4 * block
        )


def test_differing_blocks_are_named_and_chosen() -> None:
    one = sample(2, 4, 7, elements=1000, block=64)
    true = bytes(range(3)) * 64
    true = b"".join(bytes([n]) * 256 for n in range(3))
    false = bytearray(true)
    false[300] ^= 1
    assert one.differing(true, bytes(true), 256) == ()
    assert one.differing(true, false, 256) == (4,)
    assert one.chosen(true, (4,), 256) == bytes([1]) * 256
    assert one.chosen(true, (2, 7), 256) == bytes([0]) * 256 + bytes([2]) * 256


@pytest.mark.parametrize(
    ("blocks", "false", "least", "most"),
    [
        (87_382, 87_382, 1.0, 1.0),  # A part of 21 MiB of fp32, all of it false.
        (87_382, 874, 0.91, 0.99),  # 1 % of it: 95.1 %.
        (1_000, 1, 0.19, 0.37),  # One block: 1 - (1 - 150 / 1000)^2 = 28 %.
        (100, 1, 1.0, 1.0),  # All blocks of a small part are drawn.
    ],
)
def test_two_receivers_find_false_blocks_as_often_as_stated(
    blocks: int, false: int, least: float, most: float
) -> None:
    """The bounds are four standard deviations of 400 trials away."""
    trials, found, wanted = 400, 0, sample_size(2)
    for _ in range(trials):
        first = random.randrange(blocks)
        wrong = {(first + n) % blocks for n in range(false)}
        found += any(wrong.intersection(drawn(blocks, wanted)) for _ in range(2))
    assert least <= found / trials <= most
