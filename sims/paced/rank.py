"""A training program without a model: real daemons, links and shared memory, and hardly any CPU.

    lowcomm peer run.toml --new -- python -m sims.paced.rank --step-s 0.02

An inner step sleeps for a set time and moves the parameters by a fixed function of (slot, step), so
that a test can compute the final parameters. In all else a rank works as under
`lowcomm/training/round_methods.py`. This program reports the layout itself: it ignores
`[run.model]` and `[run.optimizer]`, and reads no text. Must NOT import torch, nor know of other
nodes.
"""

import argparse
import json
import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lowcomm import attach
from lowcomm.methods import AnyMethod, RoundMethod, StepMethod
from lowcomm.training import Peer, RoundRank
from peers.ipc import TensorPlace
from peers.processes import shell_status
from protocols.types import ConfigError, LowcommError
from sims.paced.moves import TENSORS, share, stand_in_loss, tensors
from sims.paced.parameters import PacedParameters
from sims.paced.step_rank import PacedSteps

REPORT_INTERVAL_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpeed:
    """Duration of a step, and size of the model."""

    step_s: float = 0.02
    """Seconds that an inner step takes; more if the work needs more."""
    elements: int = 1 << 16
    """Size of the whole model in fp32 elements; the same on all nodes of a run."""
    columns: int = 0
    """Columns of the model's matrices; 0: the model has no matrix."""
    tensors: int = TENSORS
    """Number of tensors, each of them a block that a method may use as a fragment."""
    name_chars: int = 0
    """Least number of characters of each tensor's name."""

    def __post_init__(self) -> None:
        if not 0 <= self.step_s < math.inf:
            raise ConfigError(f"--step-s must be a time of 0 seconds or more, got {self.step_s}")
        if self.columns < 0:
            raise ConfigError(f"--columns must not be negative, got {self.columns}")
        if self.tensors < 1:
            raise ConfigError(f"--tensors must be positive, got {self.tensors}")
        if self.elements < self.tensors:
            raise ConfigError(
                f"--elements must be at least {self.tensors}, one per tensor, got {self.elements}"
            )

    def layout(self, method: AnyMethod | None = None) -> tuple[TensorPlace, ...]:
        """The layout that the ranks report."""
        return tensors(
            self.elements,
            method,
            columns=self.columns,
            count=self.tensors,
            name_chars=self.name_chars,
        )


PACE = RankSpeed()


class PacedTrainer:
    """The training loop and the round method's torch half, in one object without torch.

    Each rank of a node holds all parameters and moves them in the same way; it writes only its own
    share. Implements lowcomm.training.interfaces.RoundState; `PacedParameters` is a part of it.
    """

    def __init__(self, peer: Peer, pace: RankSpeed) -> None:
        """Join the run and wait for its parameters."""
        method = peer.run.method
        assert isinstance(method, RoundMethod)
        ours = share(pace.elements, rank=peer.rank, world_size=peer.world_size)
        layout = pace.layout(method)
        self._parameters = PacedParameters(layout, seed=peer.run.seed, ours=ours)
        held = self._parameters
        self.write, self.copy, self.take_result = held.write, held.copy, held.take_result
        self._peer, self._data = peer, peer.run.data
        self._pace = pace
        self._reported = (0, time.monotonic())
        attached = peer.join(layout, elements=ours.stop - ours.start)
        self._slot = attached.slot
        if attached.rank_state:
            self._parameters.data_step = load_data_step(self._file(attached.rank_state))
        self._rank = RoundRank(peer, self, attached)
        self._rank.start()
        self._follow()

    def train(self) -> None:
        """Train until the run is finished."""
        while not self._peer.finished:
            self._step()
            if time.monotonic() - self._reported[1] >= REPORT_INTERVAL_S:
                self._report()
        self._report()

    def _step(self) -> None:
        until = time.monotonic() + self._pace.step_s
        self._parameters.move(self._slot)
        time.sleep(max(until - time.monotonic(), 0.0))
        self._rank.step(tokens=self._step_tokens)
        self._follow()

    def _follow(self) -> None:
        """Catch up with the run's step, and evaluate if the daemon asks for it."""
        self._parameters.reach(self._rank.run_step)
        if self._peer.evaluation_due:
            windows = self._data.eval_windows
            loss = stand_in_loss(self._parameters.theta_P)
            self._peer.evaluated(loss=loss, windows=windows, sample="")

    def snapshot(self, directory: str) -> None:
        self._parameters.reach(self._rank.run_step)
        try:
            save_data_step(self._file(directory), self._parameters.data_step)
        except OSError as error:
            # No reason to fail: a restart goes on from the run's committed step.
            log.warning("rank %d cannot save its step: %s", self._peer.rank, error)
        else:
            self._peer.client.snapshotted(directory)

    def _report(self) -> None:
        step, then = self._reported
        now, steps = time.monotonic(), self._rank.steps
        self._peer.metrics(
            step=steps,
            tokens=steps * self._step_tokens,
            loss=stand_in_loss(self._parameters.theta_P),
            tokens_per_s=(steps - step) * self._step_tokens / max(now - then, 1e-9),
        )
        self._reported = (steps, now)

    @property
    def _step_tokens(self) -> int:
        """Tokens of one step of the whole node; they weigh its contribution."""
        return self._data.batch * self._data.window

    def _file(self, directory: str) -> Path:
        return Path(directory) / f"rank-{self._peer.rank}-of-{self._peer.world_size}.json"


def save_data_step(path: Path, data_step: int) -> None:
    """Write the file whole and synced, or not at all; makes the directory. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.with_suffix(".new")
    with torn.open("w", encoding="ascii") as file:
        json.dump({"data_step": data_step}, file)
        file.flush()
        os.fsync(file.fileno())
    torn.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load_data_step(path: Path) -> int:
    """The step that `save_data_step` wrote; 0 if the file is missing or damaged."""
    try:
        state: dict[str, int] = json.loads(path.read_text(encoding="ascii"))
        return int(state["data_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Train until the run is finished; returns the exit status. Needs the environment that the
    daemon sets."""
    parser = argparse.ArgumentParser(
        prog="sims.paced.rank", description="A rank without a model, which only sleeps."
    )
    parser.add_argument(
        "--step-s", type=float, default=PACE.step_s, help="seconds of an inner step"
    )
    parser.add_argument(
        "--elements", type=int, default=PACE.elements, help="fp32 elements of the model"
    )
    parser.add_argument("--columns", type=int, default=PACE.columns, help="columns of its matrices")
    parser.add_argument("--tensors", type=int, default=PACE.tensors, help="tensors of the model")
    parser.add_argument(
        "--name-chars", type=int, default=PACE.name_chars, help="least length of a tensor's name"
    )
    typed = parser.parse_args(argv)
    pace = RankSpeed(
        step_s=cast(float, typed.step_s),
        elements=cast(int, typed.elements),
        columns=cast(int, typed.columns),
        tensors=cast(int, typed.tensors),
        name_chars=cast(int, typed.name_chars),
    )
    _become_a_rank()
    peer = attach()
    if isinstance(peer.run.method, StepMethod):
        PacedSteps(peer, pace.layout(), step_s=pace.step_s).train()
    else:
        PacedTrainer(peer, pace).train()
    peer.close()
    return 0


def _become_a_rank() -> None:
    """If the daemon asks for several ranks, fork them, and return in the forks only.

    The daemon runs a command once for all ranks. torchrun would start them, but it imports torch.
    """
    ranks = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ or not ranks.isdecimal() or int(ranks) == 1:
        return
    for rank in range(int(ranks)):
        if os.fork() == 0:
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            return
    for _ in range(int(ranks)):
        code = os.waitstatus_to_exitcode(os.wait()[1])
        if code != 0:
            # When we end, the daemon kills our process group, and so the other ranks.
            sys.exit(shell_status(code))
    sys.exit(0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LowcommError as error:
        sys.exit(f"paced: {error}")
