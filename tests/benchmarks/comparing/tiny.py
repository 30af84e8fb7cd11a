"""A comparison small enough for a test."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.comparing.kept import Outcome
from benchmarks.comparing.settings import Setting
from lowcomm.config.schema import AdamWConfig, DataConfig, ModelConfig
from lowcomm.data.batches import Batches
from lowcomm.data.corpus import Corpus
from lowcomm.methods import DiLoCoMethod

MODEL = ModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=2, intermediate_size=32, context=8)
DATA = DataConfig(window=8, batch=2, eval_windows=20, eval_window=8)
SETTING = Setting(
    method=DiLoCoMethod(inner_steps=4),
    seed=3,
    steps=12,
    warm_steps=4,
    model=MODEL,
    optimizer=AdamWConfig(warmup_steps=2),
    warm_optimizer=AdamWConfig(warmup_steps=2),
    data=DATA,
)
TEXT = np.frombuffer(hashlib.shake_256(b"text").digest(20000), np.uint8)
CORPUS = Corpus(TEXT[:16000], TEXT[16000:], "f" * 64)
BATCHES = Batches(CORPUS.train, window=DATA.window, seed=SETTING.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves(DiLoCoMethod):
    """Every other parameter is of fragment 1."""

    def fragments_of(self, parameters: Any) -> tuple[int, ...]:
        return tuple(number % 2 for number in range(len(parameters)))


def outcome(loss: float | None, **said: Any) -> Outcome:
    """One that nobody trained."""
    curve = ((4, 3.0), (8, 2.0), (12, 2.0 if loss is None else loss))
    made = Outcome(
        loss=loss,
        error="" if loss is not None else "the held-out loss was nan after 12 steps",
        curve=curve,
        tokens=512,
        waited=(0.0, 0.01),
        step_s=0.1,
        seconds=1.0,
        corpus="f" * 64,
        machine={"python": "3.11.0"},
    )
    return replace(made, **said)
