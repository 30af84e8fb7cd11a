"""The rank behind a trainer's callback: the same for each trainer.

Must NOT know a trainer: the callbacks translate its hooks.
"""

import time
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lowcomm.loop_state.kept_objects import RandomState
from lowcomm.loop_state.rank_checkpoint import Optimizers
from lowcomm.loop_state.run_scheduler import RunScheduler, lr_scheduler
from lowcomm.tensors.names import Model
from lowcomm.tensors.run_names import RunNames
from lowcomm.training.attach import Peer, attach
from lowcomm.training.round_methods import ROUND_METHODS, Method
from protocols.types import ConfigError


class TrainingNode:
    """One rank with a method of rounds, a model, optimizers and schedulers that others made.

    Call `join_run` when they are made and before a batch is drawn, then `end_step` after each step
    of the optimizer and of the schedulers.
    """

    def __init__(self, peer: Peer | None = None) -> None:
        """`peer`: None attaches to the daemon. Raises ConfigError if the run's method is no method
        of rounds: the others make the optimizer's step themselves, where a trainer makes it."""
        self.peer = peer or attach()
        self._method: Method | None = None
        self._schedulers: list[RunScheduler] = []
        self._reported = (0, time.monotonic())
        run = self.peer.run
        name = run.method.name
        with self.peer.fitting():
            if name not in ROUND_METHODS:
                raise ConfigError(
                    f"run.method.name is {name!r}, but a trainer makes the optimizer's steps "
                    f"itself: use one of {', '.join(sorted(ROUND_METHODS))}"
                )

    @property
    def finished(self) -> bool:
        """The run is over: the model has its final parameters."""
        return self.peer.finished

    @property
    def run_step(self) -> int:
        """The run's inner step: its committed steps, plus this node's since."""
        assert self._method is not None, "join_run() comes first"
        return self._method.inner_step

    @property
    def total_steps(self) -> int:
        """Inner steps of the whole run."""
        run = self.peer.run
        return run.total_inner_steps

    def join_run(
        self,
        model: Model,
        optimizer: Optimizers,
        schedulers: Sequence[LRScheduler],
        *,
        names: RunNames | None = None,
    ) -> None:
        """Join the run; when this returns, `model` has its parameters, and each scheduler the
        rates of its step. `names` are as in `lowcomm.training.round_methods.Method`.

        Schedulers follow the run's inner steps, also in a joiner and after a restart of the ranks;
        one that follows a loss is kept as it was. The random generators go on after a restart.
        """
        peer, run = self.peer, self.peer.run
        followers = [each for each in schedulers if follows_steps(each)]
        for number, each in enumerate(each for each in schedulers if not follows_steps(each)):
            peer.keep(f"scheduler {number}", each)
        peer.keep("random", RandomState())
        self._method = ROUND_METHODS[run.method.name](model, optimizer, peer, names=names)
        self._schedulers = [lr_scheduler(each, self._method) for each in followers]
        self._reported = (0, time.monotonic())

    def end_step(self) -> None:
        """Count an inner step, and exchange parameters when it is time."""
        assert self._method is not None, "join_run() comes first"
        self._method.step()
        for each in self._schedulers:  # The trainer has stepped them once; mostly that is right.
            each.step()

    def report(self, loss: float) -> None:
        """Show the mean loss of the latest steps."""
        assert self._method is not None, "join_run() comes first"
        steps, (before, then), now = self._method.steps, self._reported, time.monotonic()
        run = self.peer.run
        tokens = run.data.step_tokens
        rate = (steps - before) * tokens / max(now - then, 1e-9)
        self._reported = (steps, now)
        self.peer.metrics(step=steps, tokens=steps * tokens, loss=loss, tokens_per_s=rate)


def follows_steps(scheduler: Any) -> bool:
    """Whether the scheduler's rates depend on the step alone, and on no loss."""
    return isinstance(scheduler, LRScheduler) and not isinstance(scheduler, ReduceLROnPlateau)


def unwrapped(optimizer: Any) -> Optimizer:
    """The torch optimizer inside those of accelerate and Lightning."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    return optimizer
