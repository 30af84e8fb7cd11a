"""Checks that every message and every log entry can hold the values of a `[run]`.

Must NOT check other rules of a configuration: schema.py does.
"""

from typing import TYPE_CHECKING

from lowcomm.methods import RoundMethod, StepMethod
from lowcomm.validation import shown
from protocols.types import (
    CONTRIBUTION_STEPS_MAX,
    CONTRIBUTION_TOKENS_MAX,
    PEERS_MAX,
    ROUNDS_MAX,
    SAMPLES_MAX,
    ConfigError,
)

if TYPE_CHECKING:
    from lowcomm.config.schema import RunConfig


def check_limits(run: "RunConfig") -> None:
    """Raise ConfigError if a value is too large for a message or a log entry."""
    steps = run.method.inner_steps if isinstance(run.method, RoundMethod) else 1
    rhythm = run.method.snapshot_every_steps if isinstance(run.method, StepMethod) else 0
    for key, value, most in (
        ("run.peers_min", run.peers_min, PEERS_MAX),
        ("run.outer_steps", run.outer_steps, ROUNDS_MAX),
        ("run.method.inner_steps", steps, CONTRIBUTION_STEPS_MAX),
        ("run.method.snapshot_every_steps", rhythm, ROUNDS_MAX),
        ("run.data.batch", run.data.batch, SAMPLES_MAX),
        ("run.data.batch * run.method.inner_steps", run.data.batch * steps, SAMPLES_MAX),
        (
            "run.data.batch * run.data.window * run.method.inner_steps",
            run.data.step_tokens * steps,
            CONTRIBUTION_TOKENS_MAX,
        ),
    ):
        if value > most:
            raise ConfigError(f"{key} must be at most {most}, got {shown(value)}")
