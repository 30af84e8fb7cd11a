"""Our side's configuration, and what it takes from the daemons' events."""

import json
from pathlib import Path

import pytest

from benchmarks.exchanging.lowcomm_system import Journals, settings, system, with_events, with_lag
from benchmarks.exchanging.worker import Marks
from lowcomm.config.schema import load_config
from lowcomm.methods import DiLoCoMethod
from lowcomm.reports.event_log import EVENTS
from protocols.types.errors import ConfigError

MARKS = Marks(handed=1.0, received=2.0)


@pytest.mark.parametrize(
    ("codec", "result"), [("int8", "int8"), ("fp4", "bf16"), ("topk", "gather")]
)
def test_a_codec_is_that_of_contributions(codec: str, result: str) -> None:
    run = load_config(None, settings(codec)).run
    assert run is not None
    assert isinstance(run.method, DiLoCoMethod)
    assert run.method.contribution_codec == codec
    assert run.method.result_codec == result
    assert (run.method.outer_lr, run.method.outer_momentum) == (1.0, 0.0)
    assert system().codec(codec) == codec


def test_the_node_is_told_how_to_speak() -> None:
    node = load_config(None, settings("fp32", congestion="reno")).node
    assert (node.congestion, node.insecure) == ("reno", True)
    assert not load_config(None, settings("fp32", encrypted=True)).node.insecure


def test_one_system_may_have_a_codec_of_its_own() -> None:
    one = system("int8")
    assert (one.name, one.codec("fp32")) == ("lowcomm-int8", "int8")
    with pytest.raises(ConfigError, match="contribution_codec"):
        system("int9").codec("fp32")


def test_what_has_to_be_moved_is_as_large_as_codecs_make_it() -> None:
    of = system().payload_bytes
    assert of("fp32", 1 << 20) == 8 << 20
    both = of("int8", 1 << 20)
    assert both is not None
    assert 2 << 20 < both < 2.1 * (1 << 20)
    assert of("topk", 1 << 20) is None  # It depends on how many gather.


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ConfigError, match="contribution_codec"):
        system().codec("int9")


def test_events_say_who_counted_and_how_long_the_data_took() -> None:
    commit = {"kind": "commit", "roster": ["a", "b"]}
    assert with_events(MARKS, [commit]).contributors == 2
    reduced = {"kind": "reduced", "seconds": 0.25}
    assert with_events(MARKS, [reduced, commit, {"kind": "ready"}]).data_path_s == 0.25
    assert with_events(MARKS, []) == MARKS
    told = {"lag_p99_s": 0.5, "lag_max_s": 0.75, "busy_lag_p99_s": 0.625}
    told |= {"heartbeat_late_p99_s": 0.25, "heartbeat_late_max_s": 1.0}
    late = with_lag(MARKS, {**told, "peer": "alpha.1"})
    assert {key: getattr(late, key) for key in told} == told
    assert with_lag(MARKS, None) == MARKS


def test_only_new_and_whole_lines_count(tmp_path: Path) -> None:
    journals = Journals([tmp_path])
    line = json.dumps({"kind": "commit", "roster": ["a", "b", "c"]})
    with (tmp_path / EVENTS).open("w", encoding="ascii") as file:
        file.write(line + "\n" + line[:10])
        file.flush()
        assert [mark.contributors for mark in journals.complete([MARKS])] == [3]
        assert journals.complete([MARKS]) == (MARKS,)
        file.write(line[10:] + "\n")
        file.flush()
        assert [mark.contributors for mark in journals.complete([MARKS])] == [3]
