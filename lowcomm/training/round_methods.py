"""The torch half of every method of rounds: one object in the training loop of each rank.

It writes this rank's shards into the node's shared memory, and takes over what the daemon makes of
them; when, `lowcomm/training/round_rank.py` says. What happens in between (codecs, peers, the outer
step) is the daemon's. Must NOT keep a copy of the parameters, decide when a round ends, or speak to
a peer.
"""

import logging
from pathlib import Path
from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from lowcomm.config.lr_schedule import Schedule, warmup
from lowcomm.methods import RoundMethod
from lowcomm.training.attach import Peer
from lowcomm.training.fsdp import (
    ShardView,
    pause_at_exit,
    read_shards,
    reshard,
    shard_views,
    write_shards,
)
from lowcomm.training.interfaces import Kind
from lowcomm.training.rank_checkpoint import (
    RankFile,
    RankStateError,
    load_rank_state,
    save_rank_state,
)
from lowcomm.training.round_rank import RoundRank
from protocols.types.errors import ConfigError, LowcommError

log = logging.getLogger(__name__)


class Method:
    """What all methods of rounds share; a subclass says its name in `[run.method]`.

    Call `step()` after each inner step, that is after each `optimizer.step()`, on every rank. It
    returns at once unless a result is due, for which it waits. Implements
    lowcomm.training.interfaces.RoundState.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, *, name: str = "") -> None:
        """`class DiLoCo(Method, name="diloco")`; a subclass of that one goes by the same name."""
        cls.name = name or cls.name

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        peer: Peer,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        """Join the run and wait for its parameters: when this returns, `model` holds them.

        `model` is plain, or has been sharded by `fully_shard` before `optimizer` was made from
        it; its parameters are fp32. With a `schedule`, each group's learning rate is what it is
        now times the schedule's factor (and that of `run.optimizer.joiner_warmup_steps`); without
        one it is the caller's. Raises ConfigError if the model, the optimizer or the agreed method
        does not fit.
        """
        pause_at_exit()
        with peer.fitting():
            agreed = peer.method(self.name, program=type(self).__name__)
            assert isinstance(agreed, RoundMethod)
            shards = shard_views(model, rank=peer.rank, fragments_of=agreed.fragments_of)
            self._parameters = _stepped(model, optimizer)
        self._shards: dict[int, list[ShardView]] = {}
        """By fragment."""
        for shard in shards:
            self._shards.setdefault(shard.place.fragment, []).append(shard)
        self._model = model
        self._optimizer = optimizer
        self._peer = peer
        self._schedule = schedule
        self._rates: list[float] = [group["lr"] for group in optimizer.param_groups]
        layout = [shard.place for shard in shards]
        attached = peer.join(layout, elements=sum(shard.elements for shard in shards))
        file = self._file(attached.rank_state)
        is_there = bool(attached.rank_state) and file.is_of_all
        kept = is_there and load_rank_state(file, self._parameters, optimizer)
        self._rank = RoundRank(peer, self, attached)
        self._rank.start()
        joins = not kept and self._rank.run_step > 0
        self._warmup_steps = peer.run.optimizer.joiner_warmup_steps if joins else 0
        """Of our own, beside the schedule's: a fresh optimizer's first steps are its longest."""
        self._set_rates()

    @property
    def finished(self) -> bool:
        """The run is over: `model` holds its last parameters. Leave the loop."""
        return self._peer.finished

    @property
    def inner_step(self) -> int:
        """Of the run: what it has committed, and this node's steps since. For schedules."""
        return self._rank.run_step

    @property
    def steps(self) -> int:
        """Inner steps of this process."""
        return self._rank.steps

    def step(self, *, tokens: int | None = None) -> None:
        """Count an inner step; when it is time, exchange parameters.

        `tokens`: how many the whole node trained on in this step, the weight of its contribution.
        None means what `[run]` says: `run.data.batch * run.data.window`. Raises ConfigError for
        less than one, LowcommError when the run is finished already.
        """
        if self.finished:
            raise LowcommError("the run is finished: leave the loop when `method.finished` is true")
        if tokens is None:
            tokens = self._peer.run.data.step_tokens
        elif tokens < 1:
            raise ConfigError(
                f"method.step(tokens={tokens}): by its tokens a contribution counts, so each step "
                "needs at least 1: pass how many the whole node trained on, or nothing for what "
                "[run] says"
            )
        self._rank.step(tokens=tokens)
        self._set_rates()

    # RoundState -----------------------------------------------------------------------------

    def write(self, fragment: int, place: memoryview) -> None:
        reshard(self._model)  # The caller may have evaluated: nothing stale may stay gathered.
        write_shards(self._shards[fragment], place)

    def copy(self, fragment: int, place: memoryview) -> None:
        reshard(self._model)
        write_shards(self._shards[fragment], place, everything=True)

    def take(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        reshard(self._model)
        read_shards(self._shards[fragment], values, kind, mixing=mixing)

    def snapshot(self, directory: str) -> bool:
        try:
            save_rank_state(self._file(directory), self._parameters, self._optimizer)
        except (OSError, RankStateError) as error:
            # Not worth the run: a restart begins with a fresh optimizer, or an older state.
            log.warning("rank %d keeps no optimizer state: %s", self._peer.rank, error)
            return False
        return True

    def _file(self, directory: str) -> RankFile:
        return RankFile(Path(directory), self._peer.rank, self._peer.world_size)

    def _set_rates(self) -> None:
        if self._schedule is None:
            return
        factor = self._schedule(self.inner_step) * warmup(self.steps, self._warmup_steps)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor


class DecoupledDiLoCo(Method, name="decoupled_diloco"):
    """One fragment of the model at a time, with whoever is there; directions are averaged."""


class DiLoCo(Method, name="diloco"):
    """Every `run.method.inner_steps` inner steps the nodes take one outer step together."""


class EagerDiLoCo(Method, name="eager_diloco"):
    """As DiLoCo, but nobody waits: each node applies its own part of a round at once."""


class LocalSGD(Method, name="local_sgd"):
    """Every `run.method.inner_steps` inner steps all go on from the mean of their parameters."""


class NoLoCo(Method, name="noloco"):
    """Every `run.method.inner_steps` inner steps each node exchanges with one other."""


class SparseLoCo(Method, name="sparseloco"):
    """As DiLoCo, of the largest differences alone, with error feedback in place of momentum."""


class StreamingDiLoCo(Method, name="streaming_diloco"):
    """As DiLoCo, one fragment of the model at a time, and training goes on meanwhile."""


ROUND_METHODS = {each.name: each for each in Method.__subclasses__()}
"""By `run.method.name`."""


def _stepped(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """What the optimizer steps, by name. Raises ConfigError for what is not the model's."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    stepped: dict[str, nn.Parameter] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                raise ConfigError(
                    f"the optimizer steps a tensor {tuple(parameter.shape)} that is no parameter "
                    "of the model: make it from model.parameters(), after fully_shard"
                )
            stepped[names[parameter]] = parameter
    return stepped
