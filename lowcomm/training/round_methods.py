"""The torch half of every method of rounds: one object in the training loop of each rank.

It writes this rank's shards into the node's shared memory, and takes the daemon's results;
`lowcomm/training/round_rank.py` decides when. All that happens in between (codecs, peers, the outer
step) is done by the daemon. Must NOT keep a copy of the parameters, decide when a round ends, or
communicate with a peer.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from lowcomm.config.lr_schedule import Schedule, warmup
from lowcomm.loop_state.rank_checkpoint import (
    Optimizers,
    Parameters,
    RankFile,
    RankSaver,
    RankStateError,
    load_rank_state,
    optimizers_of,
)
from lowcomm.loop_state.resharded_state import load_resharded
from lowcomm.methods import EagerDiLoCoMethod, RoundMethod
from lowcomm.tensors.frozen import frozen_parts
from lowcomm.tensors.fsdp import (
    ShardView,
    apply,
    check_sharded,
    node_shards,
    pause_at_exit,
    read_shards,
    reshard,
    whole,
    window,
    write_shards,
)
from lowcomm.tensors.gpu_copies import SideCopies, pin
from lowcomm.tensors.model_buffers import (
    BufferView,
    node_buffers,
    read_buffers,
    write_buffers,
)
from lowcomm.tensors.names import Model, named_parameters
from lowcomm.tensors.run_names import RunNames
from lowcomm.training.attach import Peer
from lowcomm.training.interfaces import Kind
from lowcomm.training.round_rank import RoundRank
from peers.ipc import Runs, runs_of
from protocols.types import ConfigError, LowcommError

log = logging.getLogger(__name__)


class Method:
    """The base of all methods of rounds; in a subclass, `name` is the method's name in
    `[run.method]`.

    Call `step()` after each inner step, that is after each `optimizer.step()`, on every rank. It
    returns at once unless a result is due; then it waits for the result. Implements
    lowcomm.training.interfaces.RoundState.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, *, name: str = "") -> None:
        """`class DiLoCo(Method, name="diloco")`; a subclass of that one goes by the same name."""
        cls.name = name or cls.name

    def __init__(
        self,
        model: Model,
        optimizer: Optimizers,
        peer: Peer,
        *,
        schedule: Schedule | None = None,
        names: RunNames | None = None,
    ) -> None:
        """Join the run and wait for its parameters: when this returns, `model` holds them.

        `model`: a module, or a list of the parts that this rank has of it (stages of a pipeline),
        in which each parameter has its name in the whole model. `optimizer` was made from it after
        `fully_shard` had sharded it; it may be a list of several. A parameter that only one rank
        has may be plain. The parameters that need a gradient are fp32, bf16 or fp16. With a
        `schedule`, the learning rate of each group is its present value times the schedule's factor
        (and that of `run.optimizer.joiner_warmup_steps`); without one the caller sets it. `names`
        is for a model that other nodes have with other names, fused tensors or another order of
        rows (lowcomm/tensors/run_names.py); buffers, and parameters that need no gradient, keep
        their names. Raises ConfigError if one of these, or the method, does not fit the run.
        """
        pause_at_exit()
        with peer.fitting():
            agreed = peer.method(self.name, program=type(self).__name__)
            assert isinstance(agreed, RoundMethod)
            ranks = {"rank": peer.rank, "world_size": peer.world_size}
            parts = node_shards(model, fragments_of=agreed.fragments_of, names=names, **ranks)
            check_sharded(parts)
            last = max(place.fragment for place in parts.layout)
            averages = peer.run.buffers == "average"
            stored, views = (
                node_buffers(model, fragment=last + 1, **ranks) if averages else ([], [])
            )
            stepped = _stepped(model, optimizer)
            frozen = frozen_parts(model, **ranks)
        self._shards = defaultdict[int, list[ShardView]](list)
        """This rank's shards by fragment."""
        for shard in parts.shards:
            self._shards[shard.place.fragment].append(shard)
        self._buffers = {last + 1: views} if stored else {}
        """This rank's parts of the buffers that nodes exchange, which are a fragment of their
        own."""
        self._model = model
        self._optimizer = optimizer
        self._peer = peer
        self._schedule = schedule
        self._rates: list[float] = [group["lr"] for group in _groups(optimizer)]
        elements = sum(part.elements for part in (*parts.shards, *views))
        layout, runs = [*parts.layout, *stored], _runs([*parts.shards, *views])
        attached = peer.join(layout, elements=elements, frozen=frozen, parts=runs)
        device = parts.device
        pin(peer.client.lasting_memory, device)
        file = self._file(attached.rank_state)
        loaded = bool(attached.rank_state) and self._restore(file, stepped)
        self._saver = RankSaver(stepped, optimizer, peer.kept)
        overlaps = agreed.overlap_steps > 0 and not isinstance(agreed, EagerDiLoCoMethod)
        self._copies = SideCopies(device) if device.type == "cuda" and overlaps else None
        """With a GPU, if the loop goes on while a result is awaited. Its keys are the fragments:
        what is fetched is the next result."""
        buffers = last + 1 if stored else None
        self._rank = RoundRank(
            peer, self, attached, buffers=buffers, when_written=self._when_written
        )
        self._rank.start()
        joins = not loaded and self._rank.run_step > 0
        optimizer_keys = peer.run.optimizer
        self._warmup_steps = optimizer_keys.joiner_warmup_steps if joins else 0
        """Warmup steps of a joiner, in addition to the schedule's: the first steps of a fresh
        optimizer are its longest."""
        self._set_rates()

    @property
    def finished(self) -> bool:
        """Whether the run is over: `model` holds its final parameters. Leave the loop."""
        return self._peer.finished

    @property
    def inner_step(self) -> int:
        """The run's inner step: its committed steps, plus this node's steps since. For
        schedules."""
        return self._rank.run_step

    @property
    def steps(self) -> int:
        """Number of inner steps of this process."""
        return self._rank.steps

    def step(self, *, tokens: int | None = None) -> None:
        """Count an inner step; when it is time, exchange parameters.

        `tokens`: the number of tokens that the whole node trained on in this step, the weight of
        its contribution. None: `run.data.batch * run.data.window` for each batch of a step. Raises
        ConfigError if it is below 1, LowcommError if the run is finished already.
        """
        if self.finished:
            raise LowcommError("the run is finished: leave the loop when `method.finished` is true")
        if tokens is None:
            peer = self._peer
            tokens = peer.run.data.step_tokens * peer.lease.per_step
        elif tokens < 1:
            raise ConfigError(
                f"method.step(tokens={tokens}): the weight of a contribution is its tokens, so "
                "each step needs at least 1: pass the number of tokens that the whole node trained "
                "on, or leave it out for run.data.batch * run.data.window"
            )
        self._peer.check_drawn()
        self._fetch()
        self._rank.step(tokens=tokens)
        self._set_rates()
        if self.finished:
            self._saver.wait()

    # RoundState -----------------------------------------------------------------------------

    def write(self, fragment: int, place: memoryview) -> None:
        if fragment in self._buffers:
            write_buffers(self._buffers[fragment], place)
            return
        reshard(self._model)  # After an evaluation stale parameters may still be gathered.
        shards = self._shards[fragment]
        if self._copies is None:
            write_shards(shards, place)
            return
        ours, elements_P = [shard for shard in shards if shard.writes], whole(place)
        targets = [window(elements_P, shard) for shard in ours]
        self._copies.write([shard.values for shard in ours], targets)

    def copy(self, fragment: int, place: memoryview) -> None:
        reshard(self._model)
        write_shards(self._shards[fragment], place, everything=True)

    def take_result(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        if fragment in self._buffers:
            read_buffers(self._buffers[fragment], values)
            return
        reshard(self._model)
        shards = self._shards[fragment]
        if self._copies is None:
            read_shards(shards, values, kind, mixing=mixing)
            return
        fetched = self._copies.fetched(fragment, self._windows(fragment, values))
        for shard, there in zip(shards, fetched, strict=True):
            apply(shard, there, kind, mixing=mixing)

    def snapshot(self, directory: str) -> None:
        try:
            self._saver.save(self._file(directory), partial(self._saved, directory))
        except RankStateError as error:
            self._saved(directory, error)

    def _saved(self, directory: str, error: Exception | None) -> None:
        """In the saver's thread, mostly."""
        if error is None:
            self._peer.client.snapshotted(directory)
            return
        # Do not end the run: a restart begins with an older state, or a fresh optimizer.
        log.warning("rank %d cannot save its optimizer state: %s", self._peer.rank, error)

    def _when_written(self, call: Callable[[], None]) -> None:
        if self._copies is None:
            call()
        else:
            self._copies.then(call)

    def _fetch(self) -> None:
        """Begin to copy the results that have come to the GPU, each before the step at which it is
        taken."""
        if self._copies is None:
            return
        self._copies.check()
        client = self._peer.client
        for result in client.arrived_results():
            if result.fragment in self._buffers:
                continue  # They are few.
            windows = self._windows(result.fragment, client.result(result))
            self._copies.fetch(result.fragment, windows)

    def _windows(self, fragment: int, values: memoryview) -> list[Tensor]:
        """This rank's parts of a result."""
        elements_P = whole(values)
        return [window(elements_P, shard) for shard in self._shards[fragment]]

    def _restore(self, file: RankFile, stepped: Parameters) -> bool:
        """Go on with the states of the optimizer and the kept objects that were written beside this
        file. Returns whether the optimizer's could be used; without it, nothing is."""
        peer = self._peer
        load = load_rank_state if file.is_of_all else load_resharded
        if load(file, stepped, self._optimizer):
            with peer.fitting():
                peer.kept.restore(file)
            return True
        if peer.rank == 0:
            log.warning("the state in %s does not fit: the optimizer begins anew", file.directory)
        return False

    def _file(self, directory: str) -> RankFile:
        return RankFile(Path(directory), self._peer.rank, self._peer.world_size)

    def _set_rates(self) -> None:
        if self._schedule is None:
            return
        factor = self._schedule(self.inner_step) * warmup(self.steps, self._warmup_steps)
        for group, rate in zip(_groups(self._optimizer), self._rates, strict=True):
            group["lr"] = rate * factor


class DecoupledDiLoCo(Method, name="decoupled_diloco"):
    """One fragment at a time is exchanged between the nodes that are ready; directions are
    averaged."""


class DiLoCo(Method, name="diloco"):
    """After every `run.method.inner_steps` inner steps the nodes take one outer step together."""


class EagerDiLoCo(Method, name="eager_diloco"):
    """As DiLoCo, but no node waits: each applies its own part of a round at once."""


class LocalSGD(Method, name="local_sgd"):
    """After every `run.method.inner_steps` inner steps all nodes continue from their mean."""


class NoLoCo(Method, name="noloco"):
    """After every `run.method.inner_steps` inner steps each node exchanges with one other node."""


class SparseLoCo(Method, name="sparseloco"):
    """As DiLoCo, but only the largest differences are sent; error feedback replaces the
    momentum."""


class StreamingDiLoCo(Method, name="streaming_diloco"):
    """As DiLoCo, but one fragment at a time, and training continues during the exchange."""


ROUND_METHODS = {each.name: each for each in Method.__subclasses__()}
"""The classes by `run.method.name`."""


def _groups(optimizer: Optimizers) -> list[dict[str, Any]]:
    """The parameter groups of all optimizers themselves."""
    return [group for each in optimizers_of(optimizer) for group in each.param_groups]


def _stepped(model: Model, optimizer: Optimizers) -> dict[str, nn.Parameter]:
    """The parameters that the optimizers step, by name. Raises ConfigError for one that is not in
    the model, or has two optimizers."""
    names = {parameter: name for name, parameter in named_parameters(model)}
    stepped: dict[str, nn.Parameter] = {}
    for group in _groups(optimizer):
        for parameter in group["params"]:
            if parameter not in names:
                raise ConfigError(
                    f"the optimizer steps a tensor {tuple(parameter.shape)} that is not in the "
                    "model: make the optimizer from model.parameters(), after fully_shard"
                )
            if names[parameter] in stepped:
                raise ConfigError(
                    f"two optimizers step parameter {names[parameter]}: give it to one of them"
                )
            stepped[names[parameter]] = parameter
    return stepped


def _runs(parts: Sequence[ShardView | BufferView]) -> Iterator[Runs]:
    """The parts of a rank as runs of elements of their fragments."""
    for part in parts:
        yield from runs_of(part.place, part.offsets, part.sizes, writes=part.writes)
