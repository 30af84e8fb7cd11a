"""A rank's buffers, out of the model and back."""

import numpy as np
import pytest
import torch
from torch import nn

from lowcomm.tensors.model_buffers import (
    EXACT_MAX,
    BufferView,
    floating_buffer,
    node_buffers,
    read_buffers,
    write_buffers,
)
from protocols.types.errors import ConfigError


def model() -> nn.Sequential:
    norm = nn.BatchNorm1d(3)
    made = nn.Sequential(nn.Linear(2, 3), norm, norm)  # Tied: listed once.
    made.register_buffer("mask", torch.tensor([True, False]))
    made.register_buffer("scale", torch.tensor([1.5], dtype=torch.bfloat16))
    made.register_buffer("cache", torch.ones(9), persistent=False)
    made.register_buffer("empty", torch.ones(0))
    return made


def elements(views: list[BufferView]) -> int:
    return sum(view.place.elements for view in views)


def test_persistent_buffers_have_places_without_gaps_and_go_out_and_back() -> None:
    one, other = model(), model()
    one.get_buffer("1.running_var").copy_(torch.tensor([4.0, 5.0, 6.0]))
    one.get_buffer("1.num_batches_tracked").fill_(7)
    _, views = node_buffers(one, rank=0, fragment=2)
    found = [(view.place.name, view.place.offset, view.place.kind) for view in views]
    assert found == [
        ("mask", 0, "counter"),
        ("scale", 2, "buffer"),
        ("1.running_mean", 3, "buffer"),
        ("1.running_var", 6, "buffer"),
        ("1.num_batches_tracked", 9, "counter"),
    ]
    assert {view.place.fragment for view in views} == {2}
    values_P = np.full(elements(views), np.nan, np.float32)
    write_buffers(views, values_P.data.cast("B"))
    assert values_P.tolist() == [1, 0, 1.5, 0, 0, 0, 4, 5, 6, 7]
    other.scale = torch.zeros(1, dtype=torch.bfloat16)  # Another tensor of the same module.
    _, others = node_buffers(other, rank=1, fragment=2)
    values_P[3] = 0.25
    read_buffers(others, values_P.data.cast("B").toreadonly())
    assert other.get_buffer("1.running_mean").tolist() == [0.25, 0, 0]
    assert other.get_buffer("1.num_batches_tracked").item() == 7
    assert other.get_buffer("mask").tolist() == [True, False]
    assert other.get_buffer("scale").item() == 1.5


def test_a_tensor_that_its_module_replaces_is_the_one_that_counts() -> None:
    made = model()
    _, views = node_buffers(made, rank=0, fragment=1)
    made[1].running_mean = torch.tensor([1.0, 2.0, 3.0])
    values_P = np.zeros(elements(views), np.float32)
    write_buffers(views, values_P.data.cast("B"))
    assert values_P[3:6].tolist() == [1, 2, 3]


def test_only_rank_0_writes_and_integers_stop_where_fp32_is_exact() -> None:
    made = model()
    _, views = node_buffers(made, rank=0, fragment=1)
    made.get_buffer("1.num_batches_tracked").fill_(EXACT_MAX + 5)
    values_P = np.zeros(elements(views), np.float32)
    write_buffers(views, values_P.data.cast("B"))
    assert values_P[9] == EXACT_MAX
    made.get_buffer("1.num_batches_tracked").fill_(1)
    _, others = node_buffers(made, rank=1, fragment=1)
    values_P[:] = -1
    write_buffers(others, values_P.data.cast("B"))
    assert (values_P == -1).all()
    assert sum(view.elements for view in others) == 0


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (torch.tensor([0.0, -torch.inf]), "buffer odd is not finite"),
        (torch.tensor([1 << 40]), r"buffer odd has integers beyond 2\*\*24"),
        (torch.zeros(2, dtype=torch.complex64), r"buffer odd is torch\.complex64"),
    ],
)
def test_what_cannot_be_exchanged_is_refused_by_name(tensor: torch.Tensor, complaint: str) -> None:
    made = nn.Linear(1, 1)
    made.register_buffer("odd", tensor)
    with pytest.raises(ConfigError, match=complaint) as caught:
        node_buffers(made, rank=0, fragment=1)
    assert 'run.buffers = "local"' in str(caught.value)


def test_the_first_floating_buffer_is_named() -> None:
    assert floating_buffer(model()) == "scale"
    assert not floating_buffer(nn.Linear(1, 1))
