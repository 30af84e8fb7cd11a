"""The model of a real run in other programs; transformers comes with `make test-long`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import hf_logits
from tests.cluster.running import Shell, new_shell, write_config


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with new_shell(tmp_path) as made:
        yield made


@pytest.mark.long
@pytest.mark.deadline(150)
@pytest.mark.parametrize("tied", ["false", pytest.param("true", marks=pytest.mark.nightly)])
def test_transformers_computes_the_same_logits(shell: Shell, tmp_path: Path, tied: str) -> None:
    config = write_config(tmp_path, peers=1, rounds=4)
    keys = {"kv_heads": 2, "tied_embeddings": tied, "rope_theta": 5000.0, "norm_eps": 1e-4}
    sets = [word for key, value in keys.items() for word in ("--set", f"run.model.{key}={value}")]
    node = shell.peer("alpha", str(config), "--new", *sets)
    assert node.wait(within_s=60) == 0, node.err
    alpha, out = tmp_path / "alpha", tmp_path / "out"
    exported = shell.run("export", str(alpha), str(out))
    assert exported.popen.returncode == 0, exported.err
    assert "of round 4 of alpha (inner step 20, " in exported.out
    refused = shell.run("export", str(alpha), str(out))
    assert (refused.popen.returncode, "not an empty directory" in refused.err) == (2, True)

    done = subprocess.run(
        [sys.executable, hf_logits.__file__, str(alpha), str(out)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        timeout=100,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["kind"], found["dtype"]) == ("LlamaForCausalLM", "torch.float32")
    assert found["largest"] > 1
    assert found["difference"] < 1e-5
    assert found["tokens"] == list(hf_logits.TEXT.encode())
    assert found["text"] == hf_logits.TEXT
    assert found["greedy"] == found["own_greedy"]

    written = shell.run("generate", str(alpha), "--prompt", hf_logits.TEXT, "--length", "20")
    assert written.popen.returncode == 0, written.err
    assert written.out.startswith(hf_logits.TEXT)
