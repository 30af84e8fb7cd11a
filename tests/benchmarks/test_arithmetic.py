"""The benchmark of the arithmetic measures every operation, compiled and not."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import arithmetic
from benchmarks.arithmetic import INSTALLED, Compiled, installed, main, measure, table
from benchmarks.instruction_sets import BASELINE, InstructionSet, usable
from lowcomm.numerics.kernels import NumpyLoops, loops
from protocols.types.errors import ConfigError


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "TURN_BYTES", 0)


def test_every_operation_is_measured() -> None:
    results = measure(1, installed(), repeats=1)
    names = [result.operation for result in results]
    steps = ["descent", "nesterov_step", "heavy_ball_step"]
    assert names[:6] == ["pseudo_gradient", *steps, "all_finite", "block_squares"]
    means = ("weighted_mean", "trimmed_mean")
    assert names[6:14] == [f"{mean} of {peers}" for mean in means for peers in (2, 4, 8, 16)]
    codecs = [f"{codec} {way}" for codec in ("int8", "int4", "fp4") for way in ("encode", "decode")]
    assert names[14:20] == codecs
    shapes = ("8", "8 x 8", "64", "64 x 64")
    ways = ("cosines", "inverse cosines")
    assert names[20:] == [f"{way} of {shape}" for shape in shapes for way in ways]
    for result in results:
        assert result.numpy_gb_s > 0
        assert result.copy_gb_s > 0
        assert (result.compiled_gb_s is None) == isinstance(loops(), NumpyLoops)
    lines = table(results).splitlines()
    assert len(lines) == 2 + len(results)
    assert len({line.count("|") for line in lines}) == 1


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    main(mib="1,2", repeats=1, only=INSTALLED, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {result["mib"] for result in told["results"]} == {1, 2}
    assert told["machine"]["cores"] >= 1


def test_without_anything_compiled_numpy_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Compiled(None, dict.fromkeys(("int8", "int4", "fp4")), None)
    monkeypatch.setattr(arithmetic, "installed", lambda: nothing)
    main(mib="1", repeats=1, only=INSTALLED, as_json=False)
    assert "| installed | nesterov_step | 1 | - |" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["", "0", "1,x", "1025", "-1"])
def test_a_size_that_is_none_is_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--mib wants whole numbers from 1 to 1024"):
        main(mib=wrong, repeats=1, as_json=True)


def test_an_instruction_set_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="--only mmx: this machine has installed"):
        main(mib="1", repeats=1, only="mmx", as_json=True)


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.skipif(not usable(), reason="no compiler, or another kind of CPU")
def test_a_set_is_measured_where_numpy_has_no_larger_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(mib="1", repeats=1, only="baseline", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {result["instruction_set"] for result in told["results"]} == {"baseline"}
    assert all(result["of_numpy"] > 0 for result in told["results"])


@pytest.mark.parametrize("one", usable(), ids=lambda one: one.name)
def test_numpy_has_no_larger_set_in_the_environment_of_one(one: InstructionSet) -> None:
    code = (
        "from numpy._core._multiarray_umath import __cpu_features__ as f, __cpu_dispatch__ as d;"
        "print(*(name for name in d if f[name]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **one.environment()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()
    assert not [name for name in found if one.beyond and name.startswith(one.beyond)]
    assert found or one == BASELINE
