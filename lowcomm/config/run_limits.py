"""Checks that every message and every log entry can hold the values of a `[run]`.

Must NOT check other rules of a configuration: schema.py does.
"""

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


def check_limits(
    method: RoundMethod | StepMethod,
    *,
    peers_min: int,
    outer_steps: int,
    batch: int,
    step_tokens: int,
) -> None:
    """Raise ConfigError if a value is too large for a message or a log entry. `batch` and
    `step_tokens`: windows and tokens of one inner step of a node."""
    steps = method.inner_steps if isinstance(method, RoundMethod) else 1
    rhythm = method.snapshot_every_steps if isinstance(method, StepMethod) else 0
    for key, value, most in (
        ("run.peers_min", peers_min, PEERS_MAX),
        ("run.outer_steps", outer_steps, ROUNDS_MAX),
        ("run.method.inner_steps", steps, CONTRIBUTION_STEPS_MAX),
        ("run.method.snapshot_every_steps", rhythm, ROUNDS_MAX),
        ("run.data.batch", batch, SAMPLES_MAX),
        ("run.data.batch * run.method.inner_steps", batch * steps, SAMPLES_MAX),
        (
            "run.data.batch * run.data.window * run.method.inner_steps",
            step_tokens * steps,
            CONTRIBUTION_TOKENS_MAX,
        ),
    ):
        if value > most:
            raise ConfigError(f"{key} must be at most {most}, got {shown(value)}")
