"""The benchmark of the arithmetic measures every operation, compiled and not."""

import json

import pytest

from benchmarks import arithmetic
from benchmarks.arithmetic import main, measure, table
from lowcomm.arithmetic import NumpyLoops, loops
from protocols.errors import ConfigError


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "TURN_BYTES", 0)


def test_every_operation_is_measured() -> None:
    results = measure(1, repeats=1)
    names = [result.operation for result in results]
    steps = ["descent", "nesterov_step", "heavy_ball_step"]
    assert names[:7] == ["copy", "pseudo_gradient", *steps, "all_finite", "block_squares"]
    means = ("weighted_mean", "trimmed_mean")
    assert names[7:] == [f"{mean} of {peers}" for mean in means for peers in (2, 4, 8, 16)]
    for result in results:
        assert result.numpy_gb_s > 0
        assert result.copy_gb_s > 0
        assert (result.compiled_gb_s is None) == isinstance(loops(), NumpyLoops)
    lines = table(results).splitlines()
    assert len(lines) == 2 + len(results)
    assert len({line.count("|") for line in lines}) == 1


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    main(mib="1,2", repeats=1, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {result["mib"] for result in told["results"]} == {1, 2}
    assert told["machine"]["cores"] >= 1


def test_without_anything_compiled_numpy_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arithmetic, "loops", NumpyLoops)
    main(mib="1", repeats=1, as_json=False)
    assert "| nesterov_step | 1 | - |" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["", "0", "1,x", "1025", "-1"])
def test_a_size_that_is_none_is_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--mib wants whole numbers from 1 to 1024"):
        main(mib=wrong, repeats=1, as_json=True)
