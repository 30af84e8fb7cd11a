"""Trains one setting and keeps its outcome, in a process of its own with one thread.

    python -m benchmarks.comparing.training SETTING_JSON DIRECTORY TEXT
    python -m benchmarks.comparing.training --warm SETTING_JSON DIRECTORY TEXT

One thread, so that a setting repeats bit by bit, and two processes keep two cores busy. Must NOT
know which settings are compared.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import safetensors.torch
import torch

from benchmarks.comparing.groups import Group
from benchmarks.comparing.in_rounds import RoundGroup
from benchmarks.comparing.kept import Outcome, keep
from benchmarks.comparing.node import State
from benchmarks.comparing.per_step import AllReduceGroup, FlexDeMoGroup
from benchmarks.comparing.settings import Setting, digest, setting_of
from benchmarks.machine import machine
from lowcomm.data import Batches, Corpus
from lowcomm.methods import RoundMethod
from lowcomm.program import held_out_loss
from protocols.types import ConfigError, LowcommError

EVAL_STEPS = 30
"""Inner steps between two evaluations."""
WARM = "warm"
"""Name of the folder of warm starts, in the folder of the text."""
STEP_GROUPS: Mapping[str, Callable[[Setting, Batches, State | None], Group]] = {
    "allreduce": AllReduceGroup,
    "flexdemo": FlexDeMoGroup,
}
"""By name, the groups of methods that agree on each step."""


def train(setting: Setting, corpus: Corpus, state: State | None) -> Outcome:
    """Train the setting. `state`: of the warm start, if the setting has one. A failure is an
    outcome too."""
    started = time.perf_counter()
    group = group_of(setting, _batches(setting, corpus), state)
    try:
        curve, error = _run(setting, group, corpus)
        return Outcome(
            loss=curve[-1][1] if not error else None,
            error=error,
            curve=tuple(curve),
            tokens=group.tokens,
            waited=tuple(group.waited),
            step_s=group.step_s,
            seconds=time.perf_counter() - started,
            corpus=corpus.digest,
            machine=machine(),
        )
    finally:
        group.close()


def group_of(setting: Setting, batches: Batches, state: State | None) -> Group:
    """The group of the setting's method. `state`: of the warm start, if there is one. Raises
    ConfigError."""
    name = setting.method.name
    if isinstance(setting.method, RoundMethod):
        return RoundGroup(setting, batches, state)
    if name not in STEP_GROUPS:
        raise ConfigError(
            f"{name} cannot be compared yet; of stepwise methods only {', '.join(STEP_GROUPS)} can"
        )
    return STEP_GROUPS[name](setting, batches, state)


def warm_start(setting: Setting, corpus: Corpus, directory: Path) -> State:
    """Return the warm start of a setting; train it if there is no file. Settings that share it
    share its digest."""
    path = warm_file(setting, corpus, directory)
    if not path.exists():
        group = AllReduceGroup(setting.warm, _batches(setting, corpus), None)
        for step in range(setting.warm_steps):
            group.make_step(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        safetensors.torch.save_file(group.node.state(), beside)
        beside.replace(path)
    return safetensors.torch.load_file(path)


def warm_file(setting: Setting, corpus: Corpus, directory: Path) -> Path:
    """Path of the setting's warm start."""
    return directory / WARM / f"{digest(setting.warm)}-{corpus.digest[:8]}.safetensors"


def _run(setting: Setting, group: Group, corpus: Corpus) -> tuple[list[tuple[int, float]], str]:
    """The loss curve, by inner steps of the run, and the error that ended it early, or ""."""
    curve = [(setting.warm_steps, _loss(setting, group, corpus))]
    for step in range(setting.warm_steps, setting.steps):
        try:
            group.make_step(step)
        except LowcommError as error:
            return curve, str(error)
        done = step + 1
        if (done - setting.warm_steps) % EVAL_STEPS == 0 or done == setting.steps:
            loss = _loss(setting, group, corpus)
            if not math.isfinite(loss):
                return curve, f"the held-out loss was {loss} after {done} steps"
            curve.append((done, loss))
    return curve, ""


def _loss(setting: Setting, group: Group, corpus: Corpus) -> float:
    data = setting.data
    return held_out_loss(
        group.evaluated,
        corpus.held_out,
        windows=data.eval_windows,
        window=data.eval_window,
        seed=setting.seed,
    )


def _batches(setting: Setting, corpus: Corpus) -> Batches:
    return Batches(corpus.train, window=setting.data.window, seed=setting.seed)


def main(argv: list[str]) -> int:
    """Return the exit status; an error is one line on stderr."""
    torch.set_num_threads(1)
    only_warm = argv[0] == "--warm"
    text, outcomes, corpus_directory = argv[1:] if only_warm else argv
    setting, text_at = setting_of(json.loads(text)), Path(corpus_directory)
    try:
        corpus = Corpus.open(text_at)
        state = warm_start(setting, corpus, text_at) if setting.warm_steps else None
        if not only_warm:
            keep(Path(outcomes), setting, train(setting, corpus, state))
    except (LowcommError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
