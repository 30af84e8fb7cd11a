"""A node of Lightning's Trainer:

    node = LightningNode()
    trainer = Trainer(callbacks=[node])
    trainer.fit(module, node.leased(loader))

Several ranks need a strategy that shards the parameters, and `use_distributed_sampler=False`. Needs
the extra `lightning`. Its package is not there where this project is checked, so its objects have
the type Any. Must NOT change a class of theirs.
"""

from importlib import import_module
from typing import Any

from lowcomm.integrations.leased_loader import leased_loader
from lowcomm.integrations.training_node import TrainingNode, follows_steps, unwrapped
from lowcomm.training.attach import Peer
from protocols.types import ConfigError

_Callback: Any = import_module("lightning").Callback


class LightningNode(_Callback):
    """Makes the rank of a node: a callback for one `fit` with one optimizer.

    The run decides the length: limits of the trainer have no effect. A scheduler with the interval
    "step" follows the run's steps; one with the interval "epoch" is refused, as a run has no
    epochs. Once `fit` returns, the module has the run's final parameters.
    """

    def __init__(self, peer: Peer | None = None) -> None:
        """`peer`: None attaches to the daemon. Raises ConfigError if the run does not fit."""
        self._node = TrainingNode(peer)
        self._accumulated = 1
        self._stepped = 0
        """Optimizer steps that are counted."""

    @property
    def peer(self) -> Peer:
        """This rank's access to the run."""
        return self._node.peer

    @property
    def run_step(self) -> int:
        """The run's inner step, where the trainer's `global_step` counts those of this process."""
        return self._node.run_step

    def leased(self, loader: Any, *, accumulated: int = 1) -> Any:
        """The training data for `fit`: this DataLoader's dataset, with the items that the leases
        choose. `accumulated`: the trainer's `accumulate_grad_batches`."""
        self._accumulated = accumulated
        return leased_loader(self.peer, loader, rows=loader.batch_size, accumulated=accumulated)

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:
        """Before `configure_optimizers`, which may ask for the number of steps."""
        if stage == "fit":
            trainer.fit_loop.max_epochs = -1
            trainer.fit_loop.epoch_loop.max_steps = self._node.total_steps

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Optimizers are there, and no batch has been drawn."""
        with self.peer.fitting():
            schedulers = [_scheduler(config) for config in trainer.lr_scheduler_configs]
            if len(trainer.optimizers) != 1:
                raise ConfigError(
                    f"this module has {len(trainer.optimizers)} optimizers, but a node has one: "
                    "give their parameters to one, in several groups"
                )
            if trainer.accumulate_grad_batches != self._accumulated:
                raise ConfigError(
                    f"the trainer accumulates {trainer.accumulate_grad_batches} batches, but the "
                    f"data was leased for {self._accumulated}: pass "
                    f"node.leased(loader, accumulated={trainer.accumulate_grad_batches})"
                )
        self._node.join_run(module, unwrapped(trainer.optimizers[0]), schedulers)
        self._stepped = trainer.global_step
        # If the last steps of a node did not count, it makes more steps than the run.
        trainer.fit_loop.epoch_loop.max_steps = -1

    def on_train_batch_end(
        self, trainer: Any, _module: Any, outputs: Any, _batch: Any, _number: int
    ) -> None:
        """The step of the schedulers is done too. `outputs`: the dict that Lightning makes of what
        `training_step` returns."""
        if trainer.global_step == self._stepped:
            return  # Gradients are accumulated.
        self._stepped = trainer.global_step
        self._node.end_step()
        if self._stepped % trainer.log_every_n_steps == 0:
            self._node.report(float(outputs["loss"]))
        if self._node.finished:
            trainer.should_stop = True


def _scheduler(config: Any) -> Any:
    """The torch scheduler of a configuration of Lightning's."""
    by_steps = config.interval == "step" and config.frequency == 1
    if not by_steps and follows_steps(config.scheduler):
        raise ConfigError(
            f"a {type(config.scheduler).__name__} is stepped every {config.frequency} "
            f'{config.interval}: a run has only steps, so set its interval to "step" and its '
            "frequency to 1"
        )
    return config.scheduler
