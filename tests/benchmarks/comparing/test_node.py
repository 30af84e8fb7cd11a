"""A node is the project's own model and torch's own AdamW, and shares nothing with another."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from benchmarks.comparing.node import ComparedNode, fragment_slices
from lowcomm.config.schema import MuonConfig
from lowcomm.models.llama import build_model, next_token_loss
from lowcomm.program.muon import orthogonalised, scale
from tests.benchmarks.comparing.tiny import BATCHES, SETTING, Halves


def batch(number: int) -> torch.Tensor:
    return torch.from_numpy(BATCHES.of(range(2 * number, 2 * number + 2)))


def trained(steps: int) -> ComparedNode:
    node = ComparedNode(SETTING)
    for number in range(steps):
        node.backward(batch(number))
        node.inner_step(1.0)
    return node


def test_it_trains_as_the_module_with_a_plain_optimizer_does() -> None:
    node, model = trained(3), build_model(SETTING.model, seed=SETTING.seed)
    wanted = SETTING.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=wanted.lr, betas=wanted.betas, eps=wanted.eps, weight_decay=0.1
    )
    for number in range(3):
        optimizer.zero_grad()
        next_token_loss(model, batch(number)).backward()
        clip_grad_norm_(model.parameters(), wanted.grad_clip)
        optimizer.step()
    expected_P = torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()
    np.testing.assert_allclose(node.params_P, expected_P, rtol=0, atol=1e-5)
    assert (node.steps, node.tokens) == (3, 3 * SETTING.step_tokens)


def test_its_array_is_its_model() -> None:
    node = trained(1)
    before = next_token_loss(node.model, batch(0)).item()
    node.params_P *= np.float32(0.5)
    assert next_token_loss(node.model, batch(0)).item() != before
    flat_P = torch.cat([each.detach().flatten() for each in node.model.parameters()])
    assert flat_P.numpy().tobytes() == node.params_P.tobytes()


def test_replicas_share_no_parameters_and_no_moments() -> None:
    source = trained(4)
    state = source.state()
    kept = {name: value.clone() for name, value in state.items()}
    one, other = ComparedNode(SETTING), ComparedNode(SETTING)
    for node in (one, other):
        node.begin(state, steps=4)
    for node in (source, one):
        node.backward(batch(9))
        node.inner_step(1.0)
    ones, others = one.state(), other.state()
    for name, value in kept.items():
        assert torch.equal(state[name], value), f"{name} of the warm start itself"
        assert torch.equal(others[name], value), f"{name} of the other node"
        assert not torch.equal(ones[name], value), name


def test_a_warm_start_goes_on_as_if_it_had_not_ended() -> None:
    straight = trained(6)
    later = ComparedNode(SETTING)
    later.begin(trained(4).state(), steps=4)
    for number in (4, 5):
        later.backward(batch(number))
        later.inner_step(1.0)
    assert later.params_P.tobytes() == straight.params_P.tobytes()
    assert later.steps == 2


def test_muon_begins_with_what_adamw_knew() -> None:
    adamw = replace(SETTING.optimizer, grad_clip=0.0, weight_decay=0.0)
    muon = MuonConfig(lr=adamw.lr, grad_clip=0.0, weight_decay=0.0)
    state = trained(4).state()
    node, plain = (ComparedNode(replace(SETTING, optimizer=each)) for each in (muon, adamw))
    for each in (node, plain):
        each.begin(state, steps=4)
        each.backward(batch(5))
    matrix = "model.layers.0.self_attn.q_proj.weight"
    (grad,) = [
        parameter.grad.clone()
        for name, parameter in node.model.named_parameters()
        if name == matrix and parameter.grad is not None
    ]
    node.inner_step(1.0)
    plain.inner_step(1.0)
    moved, plainly = dict(node.model.named_parameters()), dict(plain.model.named_parameters())
    # As if it had had the mean gradient all the time: 1 + 0.95 + 0.95^2 + ... = 20.
    buffer = 0.95 * 20 * state[f"exp_avg:{matrix}"] + grad
    step = orthogonalised(grad + 0.95 * buffer) * scale(grad.shape) * muon.lr
    torch.testing.assert_close(moved[matrix], state[f"parameter:{matrix}"] - step)
    other = "model.norm.weight"
    torch.testing.assert_close(moved[other], plainly[other])
    assert torch.equal(state[f"exp_avg:{matrix}"], trained(4).state()[f"exp_avg:{matrix}"])


def test_gradients_are_taken_instead_of_a_step() -> None:
    setting = replace(SETTING, optimizer=replace(SETTING.optimizer, grad_clip=0.01))
    node = ComparedNode(setting)
    before_P = node.params_P.copy()
    for _ in range(2):
        node.backward(batch(0))
        taken = node.take_gradients()
        assert torch.stack([each.norm() for each in taken]).norm().item() == pytest.approx(0.01)
        assert [each.shape for each in taken] == [each.shape for each in node.layout]
    assert node.params_P.tobytes() == before_P.tobytes()
    assert node.steps == 0


def test_who_forgets_has_a_fresh_optimizer() -> None:
    node = trained(2)
    node.renew_optimizer()
    fresh = ComparedNode(SETTING)
    fresh.params_P[:] = node.params_P
    for each in (node, fresh):
        each.backward(batch(5))
        each.inner_step(1.0)
    assert node.params_P.tobytes() == fresh.params_P.tobytes()


def test_a_fragment_is_a_slice_of_the_parameters() -> None:
    whole, node = (
        ComparedNode(SETTING),
        ComparedNode(replace(SETTING, method=Halves(inner_steps=4))),
    )
    slices = fragment_slices(node.layout)
    assert [each.start for each in slices] == [0, slices[0].stop]
    assert slices[1].stop == node.params_P.size
    parameters = dict(node.model.named_parameters())
    for each in node.layout:
        size = int(np.prod(each.shape))
        start = slices[each.fragment].start + each.offset
        expected_P = parameters[each.name].detach().flatten().numpy()
        assert (node.params_P[start : start + size] == expected_P).all()
    tokens_BT1 = batch(0)
    losses = [next_token_loss(each.model, tokens_BT1).item() for each in (whole, node)]
    assert losses[0] == losses[1]
