"""What a daemon needs, and what it is told when it may not have it."""

import pytest

from lowcomm.memory import check_memory, free_memory_bytes, needed_bytes
from lowcomm.methods import DiLoCo
from protocols.errors import ConfigError
from protocols.ids import TensorSpec
from tests.lowcomm.replicas import LAYOUT, SIZES


def test_memory_is_refused_with_both_figures() -> None:
    made = DiLoCo()
    needed = needed_bytes(LAYOUT, made, peers=9)
    assert needed == 4 * 15 * sum(SIZES)
    check_memory(needed, memory_max_bytes=needed, free_bytes=0)
    check_memory(needed, memory_max_bytes=0, free_bytes=2 * needed)
    for limit, free in ((needed - 1, 1 << 60), (0, 2 * needed - 1)):
        with pytest.raises(ConfigError, match=r"^the daemon needs about 0\.00 GiB"):
            check_memory(needed, memory_max_bytes=limit, free_bytes=free)
    billion = needed_bytes([TensorSpec(0, "a", (1 << 30,), 0)], made, peers=1)
    with pytest.raises(ConfigError) as caught:
        check_memory(billion, memory_max_bytes=0, free_bytes=3 << 30)
    assert str(caught.value) == (
        "the daemon needs about 60.00 GiB for this model and may use 1.50 GiB: "
        "set node.memory_max_bytes higher if the machine has it"
    )


@pytest.mark.parametrize("peers", [1, 2, 9])
def test_a_gather_needs_memory_for_what_each_contributes(peers: int) -> None:
    made = DiLoCo(contribution_codec="fp32", result_codec="gather")
    assert needed_bytes(LAYOUT, made, peers=peers) == 4 * (13 + 2 * peers) * sum(SIZES)
    sparse = DiLoCo(contribution_codec="topk")
    result = peers * sum(sparse.codec.encoded_bytes(size) for size in SIZES)
    assert needed_bytes(LAYOUT, sparse, peers=peers) == 4 * (13 + 5) * sum(SIZES) + 2 * result


def test_the_machine_has_some_memory_free() -> None:
    assert 1 << 20 < free_memory_bytes() < 1 << 50
