"""All-reduce is one model that sees everybody's batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.comparing.groups import Feed
from benchmarks.comparing.node import ComparedNode
from benchmarks.comparing.per_step import AllReduceGroup, FlexDeMoGroup
from lowcomm.config.lr_schedule import CosineSchedule
from lowcomm.config.schema import AdamWConfig
from lowcomm.methods import FlexDeMoMethod
from lowcomm.models.llama import build_model, next_token_loss
from protocols.types.errors import ConfigError
from tests.benchmarks.comparing.tiny import BATCHES, SETTING


@pytest.mark.parametrize(
    "wanted",
    [
        SETTING.optimizer,
        # AdamW itself hardly sees how large a gradient is, unless its eps is larger.
        replace(SETTING.optimizer, eps=1.0, grad_clip=0.0, lr=0.1),
    ],
)
def test_it_is_the_module_trained_on_all_batches_at_once(wanted: AdamWConfig) -> None:
    group = AllReduceGroup(replace(SETTING, optimizer=wanted), BATCHES, None)
    model = build_model(SETTING.model, seed=SETTING.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=wanted.betas, eps=wanted.eps, weight_decay=wanted.weight_decay
    )
    schedule = CosineSchedule(wanted.warmup_steps, SETTING.steps, wanted.lr_final)
    rows = SETTING.nodes * SETTING.data.batch
    for step in range(3):
        group.make_step(step)
        optimizer.zero_grad()
        samples = BATCHES.of(range(step * rows, (step + 1) * rows))
        next_token_loss(model, torch.from_numpy(samples)).backward()
        if wanted.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), wanted.grad_clip)
        optimizer.param_groups[0]["lr"] = wanted.lr * schedule(step)
        optimizer.step()
    expected_P = torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()
    np.testing.assert_allclose(group.node.params_P, expected_P, rtol=0, atol=1e-5)
    assert group.evaluated is group.node.model
    assert group.tokens == 3 * rows * SETTING.data.window
    assert group.waited == [0.0] * 4
    assert group.step_s > 0


def test_after_a_warm_start_it_goes_on_where_that_ended() -> None:
    straight, first = (AllReduceGroup(SETTING, BATCHES, None) for _ in range(2))
    for step in range(6):
        straight.make_step(step)
        if step < SETTING.warm_steps:
            first.make_step(step)
    later = AllReduceGroup(SETTING, BATCHES, first.node.state())
    for step in (4, 5):
        later.make_step(step)
    assert later.node.params_P.tobytes() == straight.node.params_P.tobytes()


EVERYTHING: list[FlexDeMoMethod] = [
    FlexDeMoMethod(replicator="full", values="fp32"),
    FlexDeMoMethod(chunk=16, topk=256, values="fp32", sign="none"),
    FlexDeMoMethod(replicator="random", one_in=1, values="fp32", sign="none"),
]
"""What nodes say is all there is to say, so no momentum is left."""


@pytest.mark.parametrize("method", EVERYTHING, ids=lambda method: method.replicator)
def test_who_says_everything_steps_by_the_mean_gradient(method: FlexDeMoMethod) -> None:
    wanted = replace(SETTING.optimizer, grad_clip=0.5, lr=0.01)
    setting = replace(SETTING, method=method, optimizer=wanted)
    first = AllReduceGroup(setting.warm, BATCHES, None)
    for step in range(setting.warm_steps):
        first.make_step(step)
    state = first.node.state()
    group, node = FlexDeMoGroup(setting, BATCHES, state), ComparedNode(setting)
    node.begin(state, steps=setting.warm_steps)
    feed = Feed(setting, BATCHES, first_step=setting.warm_steps)
    schedule = CosineSchedule(wanted.warmup_steps, setting.steps, wanted.lr_final)
    for step in range(setting.warm_steps, setting.steps):
        group.make_step(step)
        gradients: list[torch.Tensor] = []
        for _ in range(setting.nodes):
            node.backward(feed.draw())
            gradients.append(torch.cat([each.flatten() for each in node.take_gradients()]))
        lr = wanted.lr * schedule(step)
        mean_P = torch.stack(gradients).mean(dim=0)
        update_P = mean_P if method.sign == "none" else mean_P.sign()
        expected_P = node.params_P * (1 - lr * wanted.weight_decay) - lr * update_P.numpy()
        differs = np.abs(group.node.params_P - expected_P) > 1e-6
        assert differs.mean() < 0.002, "where a sign is of what is about zero"
        node.params_P[:] = group.node.params_P
    assert group.tokens == 8 * setting.nodes * setting.step_tokens
    assert group.evaluated is group.node.model


def test_what_a_node_does_not_say_it_says_later() -> None:
    method = FlexDeMoMethod(
        replicator="striding", one_in=2, values="fp32", sign="none", momentum=0.5
    )
    wanted = replace(SETTING.optimizer, weight_decay=0.0, warmup_steps=0, lr=0.01)
    setting = replace(SETTING, method=method, optimizer=wanted, warm_steps=0)
    group, node = FlexDeMoGroup(setting, BATCHES, None), ComparedNode(setting)
    feed, size = Feed(setting, BATCHES, first_step=0), node.params_P.size
    schedule = CosineSchedule(wanted.warmup_steps, setting.steps, wanted.lr_final)
    momentum_MP = np.zeros((setting.nodes, size), np.float32)
    for step in range(4):
        before_P = group.node.params_P.copy()
        group.make_step(step)
        node.params_P[:] = before_P
        for momentum_P in momentum_MP:
            node.backward(feed.draw())
            gradient_P = torch.cat([each.flatten() for each in node.take_gradients()]).numpy()
            momentum_P[:] = 0.5 * momentum_P + wanted.lr * schedule(step) * gradient_P
        # All tensors and their groups have an even number of elements.
        said = slice((step + 1) % 2, None, 2)
        expected_P = before_P.copy()
        expected_P[said] -= momentum_MP[:, said].mean(axis=0)
        np.testing.assert_allclose(group.node.params_P, expected_P, rtol=0, atol=1e-6)
        momentum_MP[:, said] = 0


def test_nodes_with_adamw_are_not_compared() -> None:
    setting = replace(SETTING, method=FlexDeMoMethod(step="adamw"))
    with pytest.raises(ConfigError, match=r'flexdemo steps by sgd here: method.step is "adamw"'):
        FlexDeMoGroup(setting, BATCHES, None)
