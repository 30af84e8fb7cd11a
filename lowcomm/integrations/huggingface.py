"""A node of Hugging Face's Trainer, also of its subclasses and with PEFT's adapters:

    trainer = Trainer(model, arguments, train_dataset=dataset)
    trainer.add_callback(TrainerNode(trainer))
    trainer.train()

Several ranks need FSDP2 (`fsdp_version` 2), which accelerate has on GPUs only. Needs the extra
`hf`. Their packages are not there where this project is checked, so their objects have the type
Any. Must NOT change a class of theirs.
"""

from importlib import import_module
from typing import Any

from lowcomm.integrations.leased_loader import leased_loader
from lowcomm.integrations.training_node import TrainingNode, unwrapped
from lowcomm.training.attach import Peer

_Callback: Any = import_module("transformers").TrainerCallback


class TrainerNode(_Callback):
    """Makes the rank of a node of one trainer. Give it the trainer, then add it to the trainer.

    The run decides the length, and the trainer's steps are the run's: `state.global_step`, the
    learning rate and the intervals of logging, evaluation and saving begin in a joiner, and in
    ranks that start again, where the run is. The trainer's sampler is replaced by the leases. Once
    `train()` returns, the model has the run's final parameters.
    """

    def __init__(self, trainer: Any, peer: Peer | None = None) -> None:
        """`peer`: None attaches to the daemon. Raises ConfigError if the run does not fit."""
        self._node = TrainingNode(peer)
        self._trainer = trainer
        self._own_loader = trainer.get_train_dataloader
        trainer.get_train_dataloader = self._loader
        # The trainer's schedulers get their length from here.
        trainer.args.max_steps = self._node.total_steps

    @property
    def peer(self) -> Peer:
        """This rank's access to the run."""
        return self._node.peer

    def on_train_begin(self, _arguments: Any, state: Any, _control: Any, **made: Any) -> None:
        scheduler = made["lr_scheduler"]
        self._node.join_run(made["model"], unwrapped(made["optimizer"]), [scheduler])
        self._follow(state)

    def on_step_end(self, _arguments: Any, state: Any, control: Any, **_others: Any) -> None:
        """Everything of this step is done, the scheduler's step too."""
        was_last = state.global_step >= state.max_steps
        self._node.end_step()
        self._follow(state)
        if self._node.finished:
            control.should_training_stop = True
        elif was_last:  # Its last steps did not count: the run goes on, and so does the trainer.
            control.should_training_stop = False

    def on_log(
        self, _arguments: Any, _state: Any, _control: Any, logs: Any = None, **_others: Any
    ) -> None:
        if logs and "loss" in logs:
            self._node.report(float(logs["loss"]))

    def _loader(self) -> Any:
        """In place of the trainer's `get_train_dataloader`."""
        arguments = self._trainer.args
        return leased_loader(
            self.peer,
            self._own_loader(),
            rows=arguments.train_batch_size,
            accumulated=arguments.gradient_accumulation_steps,
        )

    def _follow(self, state: Any) -> None:
        """Set the trainer's step to the run's. Mean losses and speeds are divided by steps since an
        earlier one, which moves along."""
        jump = self._node.run_step - state.global_step
        state.global_step += jump
        self._trainer._globalstep_last_logged += jump
        self._trainer._initial_global_step += jump
