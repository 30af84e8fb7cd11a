"""A setting's name changes with all that changes its result, and with nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.comparing import settings
from benchmarks.comparing.settings import (
    OPTIMIZER,
    Setting,
    agrees,
    digest,
    recorded,
    said,
    setting_of,
)
from lowcomm.config.schema import AdamWConfig, ModelConfig, MuonConfig
from lowcomm.methods import AllReduceMethod, AnyMethod, DecoupledDiLoCoMethod, DiLoCoMethod
from protocols.types.errors import ConfigError

DILOCO = DiLoCoMethod(inner_steps=30)
SETTING = Setting(method=DILOCO)
OTHERS: list[dict[str, Any]] = [
    {"method": AllReduceMethod()},
    {"method": replace(DILOCO, outer_lr=0.6)},
    {"method": replace(DILOCO, contribution_codec="int8")},
    {"seed": 1},
    {"steps": 750},
    {"warm_steps": 0},
    {"nodes": 5},
    {"world": "churn"},
    {"model": replace(SETTING.model, hidden_size=64)},
    {"optimizer": replace(OPTIMIZER, lr=1e-3)},
    {"optimizer": MuonConfig(lr=OPTIMIZER.lr)},
    {"optimizer": MuonConfig(lr=OPTIMIZER.lr, momentum=0.9)},
    {"warm_optimizer": replace(OPTIMIZER, lr=1e-3)},
    {"data": replace(SETTING.data, batch=8)},
]


def test_all_that_changes_a_result_changes_the_digest() -> None:
    found = {digest(replace(SETTING, **other)) for other in OTHERS} | {digest(SETTING)}
    assert len(found) == len(OTHERS) + 1
    assert digest(replace(SETTING, method=DiLoCoMethod(inner_steps=30))) == digest(SETTING)


def test_another_engine_has_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(SETTING)
    monkeypatch.setattr(settings, "ENGINE", settings.ENGINE + 1)
    assert digest(SETTING) != before


@pytest.mark.parametrize("other", OTHERS)
def test_a_record_is_of_one_setting_and_gives_it_back(other: dict[str, Any]) -> None:
    made = replace(SETTING, **other)
    assert setting_of(recorded(made)) == made
    assert agrees(recorded(made), made)
    assert not agrees(recorded(made), SETTING)


def test_a_key_that_came_later_leaves_a_record_as_it_is_and_another_default_does_not() -> None:
    record = recorded(SETTING)
    del record["method"]["feedback_decay"]
    assert agrees(record, SETTING)
    record["method"]["outer_momentum"] = 0.9
    assert not agrees(record, SETTING)
    record = recorded(SETTING)
    record["method"]["a_key_that_is_gone"] = 1
    assert not agrees(record, SETTING)


def test_a_result_keeps_its_name_when_a_default_changes() -> None:
    eight = replace(SETTING, method=DecoupledDiLoCoMethod(inner_steps=30, fragments=8))
    assert "fragments" not in said(eight.method)
    assert said(DecoupledDiLoCoMethod())["fragments"] == 24
    assert digest(eight) == "b05cd1de938e73aa"


def test_settings_with_one_warm_start_say_so() -> None:
    begins = {digest(each.warm) for each in (SETTING, replace(SETTING, world="churn"))}
    begins.add(digest(replace(SETTING, optimizer=AdamWConfig(lr=1e-3)).warm))
    begins.add(digest(replace(SETTING, optimizer=MuonConfig()).warm))
    begins.add(digest(replace(SETTING, method=AllReduceMethod()).warm))
    assert len(begins) == 1
    for other in (
        replace(SETTING, seed=1),
        replace(SETTING, model=ModelConfig(layers=5)),
        replace(SETTING, warm_optimizer=AdamWConfig(lr=1e-3)),
    ):
        assert digest(other.warm) not in begins


@pytest.mark.parametrize(("method", "outer_steps"), [(DILOCO, 14), (AllReduceMethod(), 420)])
def test_its_run_is_what_is_left_after_the_warm_start(method: AnyMethod, outer_steps: int) -> None:
    run = replace(SETTING, method=method, seed=5).run
    assert (run.outer_steps, run.peers_min, run.seed) == (outer_steps, 4, 5)
    assert (run.method, run.optimizer, run.data) == (method, SETTING.optimizer, SETTING.data)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"warm_steps": 720}, r"warm_steps must be in \[0, 720\)"),
        ({"steps": 721}, "421 steps after the warm start are no whole rounds of 30"),
        ({"method": DiLoCoMethod(qsr_alpha=1.0)}, "all rounds have inner_steps steps"),
        ({"method": DiLoCoMethod(round_s=1.0)}, "all rounds have inner_steps steps"),
        ({"method": AllReduceMethod(), "world": "speeds"}, "allreduce has no rounds"),
        ({"method": AllReduceMethod(), "optimizer": MuonConfig()}, 'run.optimizer.name is "muon"'),
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        replace(SETTING, **said)
