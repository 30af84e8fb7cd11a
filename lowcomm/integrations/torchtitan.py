"""A node of torchtitan. A stock job becomes one by its arguments alone: what was

    torchrun -m torchtitan.train --module llama3 --config llama3_8b OPTIONS

is started by

    lowcomm peer run.toml --new -- torchrun -m torchtitan.train \\
        --module lowcomm.integrations.torchtitan --config llama3.llama3_8b OPTIONS

torchtitan looks for the function `llama3.llama3_8b` in this module: see `__getattr__`. The job says
the model, its parallelism, the optimizer and the data; the run says the length, and which samples
this node trains. With `--dataloader.dataset run` the data is the run's own text. If the model has
an adapter for Hugging Face, the run has the names of the counterpart there, so that nodes of other
programs can train it too. Needs the extra `titan`. Its package is not there where this project is
checked, so its objects have the type Any. Must NOT change a class of theirs.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, make_dataclass, replace
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor
from torch import __version__ as torch_version

from lowcomm.integrations.hf_names import hf_names
from lowcomm.integrations.leased_loader import Parts, RemadeStream, check_batch
from lowcomm.integrations.training_node import TrainingNode
from lowcomm.tensors.run_names import RunNames
from lowcomm.training.attach import Peer
from protocols.types import ConfigError

_Trainer: Any = import_module("torchtitan.trainer").Trainer
_BaseDataLoader: Any = import_module("torchtitan.components.dataloader").BaseDataLoader
_ConfigManager: Any = import_module("torchtitan.config").ConfigManager

RUN_TEXT = "run"
"""The dataset that is the run's text, as all its nodes have it."""


class LeasedDataLoader(_BaseDataLoader):
    """Batches of the job's own dataset, or of the run's text, with the samples that the node's
    leases choose.

    Of its own dataset, each rank reads the whole stream of samples that a stock job of one rank
    would train, and passes over those of other ranks and nodes. A sample is one sequence of
    `training.seq_len` tokens.
    """

    # `stock`: the configuration of the job's own loader.
    Config = make_dataclass(
        "Config", [("stock", Any)], bases=(_BaseDataLoader.Config,), kw_only=True, slots=True
    )

    def __init__(self, config: Any, *, dp_world_size: int, dp_rank: int, **made: Any) -> None:
        """`dp_world_size` and `dp_rank`: the number of ranks that train different samples, and
        which of them this one is; `made`: what the job's own loader needs besides."""
        self._share, self._rows = (dp_rank, dp_world_size), made["local_batch_size"]
        self._make = partial(config.stock.build, dp_world_size=1, dp_rank=0, **made)
        self._own = getattr(config.stock, "dataset", None) != RUN_TEXT
        self._peer: Peer | None = None

    def lease(self, peer: Peer, *, accumulated: int) -> None:
        """Take the samples of this peer's leases; an optimizer step uses `accumulated` batches.
        Raises ConfigError if these do not make up `run.data.batch`."""
        check_batch(peer, rows=self._rows, accumulated=accumulated, shares=self._share[1])
        self._peer = peer

    def __iter__(self) -> Iterator[Any]:
        """Batches until the run is finished. Call it once the method has joined the run."""
        assert self._peer is not None, "lease() comes first"
        return self._of_dataset(self._peer) if self._own else self._of_run(self._peer)

    def _of_run(self, peer: Peer) -> Iterator[Any]:
        for tokens_BT1 in peer.batches(share=self._share):
            for rows_BT1 in cast("tuple[Tensor, ...]", tokens_BT1.split(self._rows)):
                input_BT = rows_BT1[:, :-1]
                positions_BT = torch.arange(input_BT.shape[1]).expand(input_BT.shape)
                yield {"input": input_BT, "positions": positions_BT}, rows_BT1[:, 1:]

    def _of_dataset(self, peer: Peer) -> Iterator[Any]:
        stock = self._make()
        numbered = hasattr(stock.dataset, "__getitem__") and hasattr(stock.dataset, "__len__")
        steps = peer.batches(
            stock.dataset if numbered else RemadeStream(lambda: self._make().dataset),
            collate_fn=Parts(stock.collate_fn, rows=self._rows),
            num_workers=stock.num_workers,
            prefetch=stock.prefetch_factor if stock.num_workers else None,
            share=self._share,
        )
        for batches in steps:
            yield from batches

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the run knows which samples were trained."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """A stock job's place in its data means nothing to the run."""


class NodeTrainer(_Trainer):
    """torchtitan's trainer as one rank of a node.

    The run decides the length: `training.steps` becomes its number of inner steps, and the
    trainer's step is the run's, also in a joiner and in ranks that start again. A checkpoint of the
    job is loaded first, so that the first node of a run brings its parameters. When `train`
    returns, the model has the run's final parameters.
    """

    Config = make_dataclass("Config", [], bases=(_Trainer.Config,), kw_only=True, slots=True)

    def __init__(self, config: Any) -> None:
        """Attaches to the daemon. Raises ConfigError if the job does not fit the run."""
        self._node = node = TrainingNode()
        self._loss: float | None = None
        """Mean loss of the latest step, if the job has logged it."""
        training = replace(config.training, steps=node.total_steps)
        dataloader = LeasedDataLoader.Config(stock=config.dataloader)
        super().__init__(replace(config, training=training, dataloader=dataloader))
        peer = node.peer
        with peer.fitting():
            self._check(peer)
            accumulated = self.gradient_accumulation_steps * self.num_pipeline_parallel_microbatches
            self.dataloader.lease(peer, accumulated=accumulated)
        peer.reports = self._reports()
        self.checkpointer.load = _followed(self.checkpointer.load, self._join_run)
        self.metrics_processor.log = _followed(self.metrics_processor.log, self._keep_loss)

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """One inner step of the run, and the exchange if it is time."""
        self._loss = None
        super().train_step(data_iterator)
        self._node.end_step()
        self.step = self._node.run_step  # The job's own, unless steps of this node do not count.
        if self._loss is not None and self._loss >= 0:  # A stage without the loss logs -1.
            self._node.report(self._loss)

    def should_continue_training(self) -> bool:
        return not self._node.finished

    def _check(self, peer: Peer) -> None:
        """Raise ConfigError if the job does not fit the run."""
        run, training = peer.run, self.config.training
        data = run.data
        if training.seq_len != data.window:
            raise ConfigError(
                f"training.seq_len is {training.seq_len}, but run.data.window, the number of "
                f"tokens in a sample, is {data.window}: make them equal"
            )
        if self.parallel_dims.pp_enabled:
            step = self.pp_schedule.step
            if "arg_mbs" not in signature(step).parameters:  # As in torch 2.13.
                raise ConfigError(
                    f"torchtitan gives microbatches to its pipeline, which torch {torch_version} "
                    "does not take: install a newer torch, or set "
                    "parallelism.pipeline_parallel_degree to 1"
                )

    def _reports(self) -> bool:
        """Whether this rank is the first of those that know the loss: of a pipeline those with the
        last stage."""
        dims = self.parallel_dims
        meshes = [dims.get_optional_mesh(name) for name in ("batch", "cp", "tp")]
        first = all(mesh is None or mesh.get_local_rank() == 0 for mesh in meshes)
        return first and (not dims.pp_enabled or self.pp_has_last_stage)

    def _join_run(self, *_call: Any, **_options: Any) -> None:
        """A checkpoint of the job is loaded, if there is one, and no batch has been drawn."""
        optimizers, names = self.optimizers.optimizers, self._run_names()
        schedulers = self.lr_schedulers.schedulers
        self._node.join_run(self.model_parts, optimizers, schedulers, names=names)
        self.step = self._node.run_step

    def _run_names(self) -> RunNames | None:
        spec = self.config.model_spec
        adapter = spec.state_dict_adapter
        if adapter is None:
            return None
        with torch.device("meta"):
            whole = self.model_config.build()
        return hf_names(whole, adapter(self.model_config, None))

    def _keep_loss(self, _step: int, loss: float, *_others: Any, **_more: Any) -> None:
        self._loss = loss


def node_config(stock: Any) -> Any:
    """The configuration of a node that trains the job of a stock one, a `Trainer.Config`. Raises
    TypeError if the job has a trainer of its own."""
    if type(stock) is not _Trainer.Config:
        raise TypeError(
            f"this job has a trainer of its own, {type(stock).__qualname__.split('.')[0]}: only "
            "torchtitan's Trainer can be a node"
        )
    return NodeTrainer.Config(**{each.name: getattr(stock, each.name) for each in fields(stock)})


def __getattr__(name: str) -> Callable[[], Any]:
    """A function of torchtitan's kind that returns the configuration of a node: that of the job
    `--module MODULE --config FUNCTION`, if `name` is MODULE.FUNCTION."""
    module, _, function = name.rpartition(".")
    if not module:
        raise AttributeError(
            f"no configuration {name!r}: for `--module llama3 --config llama3_8b` write "
            f"`--module {__name__} --config llama3.llama3_8b`"
        )
    stock, _ = _ConfigManager._load_config(None, ["--module", module, "--config", function])
    return lambda: node_config(stock)


def _followed(call: Callable[..., Any], then: Callable[..., None]) -> Callable[..., Any]:
    """`call`, with `then` called after it with the same arguments."""

    def both(*arguments: Any, **options: Any) -> Any:
        returned = call(*arguments, **options)
        then(*arguments, **options)
        return returned

    return both
