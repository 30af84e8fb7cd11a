"""Nodes that meet in rounds: as a loop that is written out has it, with others lost and slow."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.comparing.groups import Feed
from benchmarks.comparing.in_rounds import JOIN_WARMUP_STEPS, RoundGroup
from benchmarks.comparing.node import ComparedNode, State, fragment_slices
from benchmarks.comparing.per_step import AllReduceGroup
from benchmarks.comparing.settings import Setting
from lowcomm.config.lr_schedule import CosineSchedule
from lowcomm.methods import (
    DecoupledDiLoCoMethod,
    DiLoCoMethod,
    EagerDiLoCoMethod,
    LocalSGDMethod,
    NoLoCoMethod,
    RoundMethod,
    SparseLoCoMethod,
    StreamingDiLoCoMethod,
)
from lowcomm.models.llama import build_model
from lowcomm.numerics.operations import F32
from protocols.types.errors import ConfigError
from tests.benchmarks.comparing.tiny import BATCHES, SETTING, Halves


def flat(model: torch.nn.Module) -> F32:
    return torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()


def warm(setting: Setting) -> State:
    group = AllReduceGroup(setting.warm, BATCHES, None)
    for step in range(setting.warm_steps):
        group.make_step(step)
    return group.node.state()


def test_diloco_is_nesterov_on_the_mean_of_what_each_node_moved_by() -> None:
    state = warm(SETTING)
    group = RoundGroup(SETTING, BATCHES, state)
    nodes = [ComparedNode(SETTING) for _ in range(SETTING.nodes)]
    for node in nodes:
        node.begin(state, steps=SETTING.warm_steps)
    outer_P, momentum_P = nodes[0].params_P.astype(np.float64), np.float64(0)
    feed = Feed(SETTING, BATCHES, first_step=SETTING.warm_steps)
    wanted = SETTING.optimizer
    schedule = CosineSchedule(wanted.warmup_steps, SETTING.steps, wanted.lr_final)
    for step in range(SETTING.warm_steps, SETTING.steps):
        group.make_step(step)
        for node in nodes:
            node.backward(feed.draw())
            node.inner_step(schedule(step))
        if (step + 1) % 4 == 0:
            mean_P = np.mean([outer_P - node.params_P for node in nodes], axis=0)
            momentum_P = 0.5 * momentum_P + mean_P
            outer_P = outer_P - 0.7 * (0.5 * momentum_P + mean_P)
            for node in nodes:
                node.params_P[:] = outer_P
    np.testing.assert_allclose(flat(group.evaluated), outer_P, rtol=0, atol=1e-6)
    assert group.tokens == 4 * 8 * SETTING.step_tokens
    assert group.waited == [0.0] * 4
    group.close()


def test_from_scratch_all_nodes_begin_with_the_seeds_parameters() -> None:
    group = RoundGroup(replace(SETTING, warm_steps=0), BATCHES, None)
    expected = flat(build_model(SETTING.model, seed=SETTING.seed)).tobytes()
    assert {node.params_P.tobytes() for node in group.nodes.values()} == {expected}
    assert flat(group.evaluated).tobytes() == expected
    group.close()


def test_nodes_of_several_speeds_make_as_many_steps_as_they_can() -> None:
    setting = replace(
        SETTING, world="speeds", warm_steps=0, steps=60, method=DiLoCoMethod(inner_steps=20)
    )
    group = RoundGroup(setting, BATCHES, None)
    for step in range(19):
        group.make_step(step)
    steps = [node.steps for node in group.nodes.values()]
    assert steps[0] <= 10
    assert steps[3] >= 3 * steps[0]
    assert all(node.tokens == node.steps * setting.step_tokens for node in group.nodes.values())
    group.make_step(19)
    assert {node.steps for node in group.nodes.values()} == {0}
    assert len({node.params_P.tobytes() for node in group.nodes.values()}) == 1
    assert 0 < max(group.waited) < 0.2
    group.close()


def test_what_a_lost_node_trained_is_lost_and_who_joins_begins_with_the_outer_parameters() -> None:
    setting = replace(SETTING, world="churn", warm_steps=0, steps=12)
    group, equal = (
        RoundGroup(each, BATCHES, None) for each in (setting, replace(setting, world="equal"))
    )
    for step in range(6):
        group.make_step(step)
        equal.make_step(step)
    assert sorted(group.nodes) == [0, 1, 2, 3]
    assert flat(group.evaluated).tobytes() == flat(equal.evaluated).tobytes()
    lost = group.nodes[3]
    for step in range(6, 12):
        group.make_step(step)
    assert sorted(group.nodes) == [0, 1, 2]
    assert lost.steps == 2, "nothing after its loss, and nobody took what it had"
    assert group.tokens == (12 * 3 + 6) * setting.step_tokens
    group.close()
    equal.close()


def test_who_joins_is_taught_slowly() -> None:
    setting = replace(SETTING, world="churn", warm_steps=0, steps=16)
    group = RoundGroup(setting, BATCHES, None)
    for step in range(12):
        group.make_step(step)
    assert sorted(group.nodes) == [0, 1, 2]
    outer_P = flat(group.evaluated).copy()
    group.make_step(12)
    joined, others = group.nodes[3], [group.nodes[number] for number in range(3)]
    assert joined.steps == 1
    wanted = setting.optimizer
    schedule = CosineSchedule(wanted.warmup_steps, setting.steps, wanted.lr_final)
    # The first step of a fresh AdamW moves every element by the learning rate.
    moved = float(np.median(np.abs(joined.params_P - outer_P)))
    assert moved == pytest.approx(wanted.lr * schedule(12) / JOIN_WARMUP_STEPS, rel=0.05)
    assert all(float(np.median(np.abs(each.params_P - outer_P))) > moved for each in others)
    group.close()


def test_streaming_takes_results_later_and_mixes_them() -> None:
    method = StreamingDiLoCoMethod(inner_steps=4, fragments=2, overlap_steps=1, mixing=0.5)
    setting = replace(SETTING, method=method, warm_steps=0, steps=12)
    group = RoundGroup(setting, BATCHES, None)
    nodes = [ComparedNode(setting) for _ in range(setting.nodes)]
    slices = fragment_slices(nodes[0].layout)
    outer_P = nodes[0].params_P.copy()  # fp32: AdamW's first steps magnify any other rounding.
    momentum_P, flying = np.zeros_like(outer_P), dict[int, tuple[slice, F32]]()
    feed, wanted = Feed(setting, BATCHES, first_step=0), setting.optimizer
    schedule = CosineSchedule(wanted.warmup_steps, setting.steps, wanted.lr_final)
    for step in range(1, 13):
        group.make_step(step - 1)
        for node in nodes:
            node.backward(feed.draw())
            node.inner_step(schedule(step - 1))
        if step % 2 == 0:  # Fragment 1 in the middle of a round, fragment 0 at its end.
            place = slices[step // 2 % 2]
            locals_P = [node.params_P[place] for node in nodes]
            flying[step + 1] = place, np.mean([outer_P[place] - each for each in locals_P], axis=0)
        for due in [due for due in flying if due == step or step == 12]:
            place, mean_P = flying.pop(due)
            momentum_P[place] = 0.5 * momentum_P[place] + mean_P
            outer_P[place] -= 0.7 * (0.5 * momentum_P[place] + mean_P)
            for node in nodes:
                last = step > 10  # A fragment's last result replaces what the ranks have.
                kept_P = outer_P[place] if last else node.params_P[place]
                node.params_P[place] = 0.5 * kept_P + 0.5 * outer_P[place]
    assert group._meetings.outer().tobytes() == outer_P.tobytes()
    group.close()


@pytest.mark.parametrize(
    "method",
    [
        LocalSGDMethod(inner_steps=4),
        EagerDiLoCoMethod(inner_steps=4),
        DecoupledDiLoCoMethod(inner_steps=4, fragments=2, overlap_steps=1),
        SparseLoCoMethod(inner_steps=4),
        NoLoCoMethod(inner_steps=4),
    ],
    ids=lambda method: method.name,
)
def test_other_methods_of_rounds_train(method: RoundMethod) -> None:
    setting = replace(SETTING, method=method, warm_steps=0, steps=12)
    group = RoundGroup(setting, BATCHES, None)
    before_P = flat(group.evaluated).copy()
    for step in range(12):
        group.make_step(step)
    assert np.abs(flat(group.evaluated) - before_P).max() > 0
    group.close()


def test_whom_a_loss_or_a_slow_node_meets_is_a_whole_model() -> None:
    setting = replace(SETTING, method=Halves(inner_steps=4), world="churn")
    with pytest.raises(ConfigError, match="needs one fragment and no overlap"):
        RoundGroup(setting, BATCHES, None)
