"""Methods as the daemon uses them: fragments, codecs, and the outer step."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import pytest

import lowcomm.methods
from lowcomm.config import MethodConfig
from lowcomm.methods import method
from lowcomm.outer import nesterov_step, state_digest
from protocols.errors import ConfigError


def test_diloco_has_one_fragment_and_the_configured_codecs() -> None:
    diloco = method(MethodConfig(inner_steps=17))
    assert diloco.name == "diloco"
    assert diloco.inner_steps == 17
    assert diloco.fragments == 1
    assert {diloco.fragment_of(name) for name in ("lm_head.weight", "norm.weight")} == {0}
    assert diloco.contribution_codec.name == "fp32"
    assert diloco.result_codec.name == "fp32"
    assert diloco.state_arrays == ("outer", "momentum")


def test_diloco_steps_with_the_configured_rate_and_momentum() -> None:
    diloco = method(MethodConfig(outer_lr=0.4, outer_momentum=0.75))
    outer, momentum, mean = (np.arange(5, dtype=np.float32) + k for k in range(3))
    ours, ours_momentum = np.zeros((2, 5), np.float32)
    diloco.outer_step(outer, momentum, mean, ours, ours_momentum)
    assert (outer.tolist(), momentum.tolist()) == ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5])
    nesterov_step(outer, mean, momentum, outer, momentum, lr=0.4, beta=0.75)
    assert state_digest(ours, ours_momentum) == state_digest(outer, momentum)
    assert mean.tolist() == [2, 3, 4, 5, 6]


def test_peers_that_agree_become_their_mean() -> None:
    """Rate 1 and no momentum: after a round the outer parameters are the mean of the local ones."""
    diloco = method(MethodConfig(outer_lr=1.0, outer_momentum=0.0))
    outer, none = np.full(3, 8, np.float32), np.empty(0, np.float32)
    local_mean = np.array([6, 8, 11], np.float32)
    ours = np.zeros(3, np.float32)
    diloco.outer_step(outer, none, outer - local_mean, ours, none)
    assert ours.tolist() == local_mean.tolist()


def test_an_unknown_method_names_the_known_ones() -> None:
    strange = cast(MethodConfig, SimpleNamespace(name="dilocko"))
    with pytest.raises(ConfigError, match=r"unknown method 'dilocko'; known: diloco$"):
        method(strange)


def test_what_the_daemon_imports_reaches_no_torch() -> None:
    program = (
        "import sys, lowcomm.methods, lowcomm.codecs, lowcomm.checkpoint;"
        "print(*({'torch', 'safetensors', 'pydantic'} & sys.modules.keys()))"
    )
    package: Any = lowcomm.methods
    root = Path(package.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("field", ["contribution_codec", "result_codec"])
def test_every_codec_that_a_run_may_name_exists_and_is_summed_by_part_owners(field: str) -> None:
    names = get_args(get_type_hints(MethodConfig)[field])
    assert "int8" in names
    for name in names:
        made = method(replace(MethodConfig(), **{field: name}))
        assert getattr(made, field).name == name
        assert getattr(made, field).reducible
