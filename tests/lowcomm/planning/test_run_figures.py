"""Figures of a run, from its events."""

from functools import partial
from pathlib import Path

import pytest

from lowcomm.config.schema import DataConfig, ModelConfig
from lowcomm.methods import AllReduceMethod, DiLoCoMethod, StreamingDiLoCoMethod
from lowcomm.planning.line_load import PAYLOAD_SHARE
from lowcomm.planning.model_shapes import configured_parameters
from lowcomm.planning.run_figures import run_figures
from protocols.types.errors import ConfigError
from tests.lowcomm.planning.a_run import EXCHANGE_S, STEPS, TRIP_S, write_run

METHOD = DiLoCoMethod(inner_steps=STEPS)
BUILT_IN = configured_parameters(ModelConfig())
SIZE = sum(each.elements for each in BUILT_IN)


def test_the_slowest_node_gives_the_step_and_the_share(tmp_path: Path) -> None:
    found = run_figures(write_run(tmp_path, METHOD, params=SIZE, step_s=0.1, rounds=6), layers=24)
    assert found.step_s == pytest.approx(0.2)
    assert found.share == pytest.approx(2.0 / (2.0 + EXCHANGE_S))
    assert (found.nodes, found.round_trip_s) == (2, TRIP_S)
    assert list(found.parameters) == BUILT_IN
    assert found.run.method == METHOD


def test_a_night_in_which_the_run_stood_does_not_count(tmp_path: Path) -> None:
    run = write_run(tmp_path, METHOD, params=SIZE, step_s=0.1, rounds=6, pause_s=30_000.0)
    paused = run_figures(run, layers=24)
    assert paused.step_s == pytest.approx(0.2)
    assert paused.share == pytest.approx(2.0 / (2.0 + EXCHANGE_S))


def test_a_line_has_the_rate_of_the_node_that_waited_for_no_other(tmp_path: Path) -> None:
    found = run_figures(write_run(tmp_path, METHOD, params=SIZE, step_s=0.1, rounds=6), layers=24)
    payload_bps = 8 * 4 * SIZE / (EXCHANGE_S - TRIP_S)
    assert found.rate_bps == pytest.approx(payload_bps / PAYLOAD_SHARE)


def test_of_overlapped_rounds_the_whole_time_is_steps(tmp_path: Path) -> None:
    method = StreamingDiLoCoMethod(inner_steps=STEPS)
    found = run_figures(write_run(tmp_path, method, params=SIZE, step_s=0.1, rounds=6), layers=24)
    assert found.step_s == pytest.approx(0.4)
    assert found.share == pytest.approx(1.0)


def test_a_model_of_another_size_has_the_given_layers(tmp_path: Path) -> None:
    found = run_figures(write_run(tmp_path, METHOD, params=9600, step_s=0.1, rounds=6), layers=3)
    assert sum(each.elements for each in found.parameters) == 9600
    assert {each.name.split(".")[2] for each in found.parameters} == {"0", "1", "2"}


TOKENS = DataConfig(source="tokens")


def test_the_size_tells_the_vocabulary_that_the_file_leaves_out(tmp_path: Path) -> None:
    model = ModelConfig(vocab_size=50_304)
    size = sum(each.elements for each in configured_parameters(model))
    write = partial(write_run, method=METHOD, params=size, step_s=0.1, rounds=6, data=TOKENS)
    run = write(tmp_path / "shards")
    assert list(run_figures(run, layers=24).parameters) == configured_parameters(model)
    run = write(tmp_path / "own", command=("train",))
    assert run_figures(run, layers=3).parameters[0].name == "model.layers.0.self_attn.weight"


def test_of_no_size_there_is_no_plan(tmp_path: Path) -> None:
    run = write_run(tmp_path, METHOD, params=0, step_s=0.1, rounds=6)
    with pytest.raises(ConfigError, match="no event tells the size of the model: give --params"):
        run_figures(run, layers=24)


def test_the_directory_of_the_first_node_is_enough(tmp_path: Path) -> None:
    run = write_run(tmp_path, METHOD, params=SIZE, step_s=0.1, rounds=6)
    assert run_figures(run / "a", layers=24).step_s == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="no node that was started with a"):
        run_figures(run / "b", layers=24)


def test_too_few_rounds_are_no_measurement(tmp_path: Path) -> None:
    run = write_run(tmp_path, METHOD, params=SIZE, step_s=0.1, rounds=3)
    with pytest.raises(ConfigError, match="3 rounds are committed, and a plan needs 4"):
        run_figures(run, layers=24)


def test_steps_with_an_exchange_in_each_tell_no_time_of_a_step(tmp_path: Path) -> None:
    run = write_run(tmp_path, AllReduceMethod(), params=SIZE, step_s=0.1, rounds=6)
    with pytest.raises(ConfigError, match="with allreduce each step contains an exchange"):
        run_figures(run, layers=24)
