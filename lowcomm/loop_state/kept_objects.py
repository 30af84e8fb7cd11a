"""Objects of a training loop that go on where they were when its ranks start again.

    <directory>/kept-1-of-2.safetensors    the tensors of one rank's objects; the rest in the header

Schedulers, gradient scalers, averaged models, loaders and random generators all have `state_dict`
and `load_state_dict`. Their states are written beside the optimizer's, of the same step, and read
back together with it or not at all. A node with another number of ranks cuts them anew, but for
states that belong to single ranks (resharded_objects.py). Must NOT unpickle anything, nor
know which step it is (training/round_methods.py).
"""

import base64
import json
import logging
import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler

from lowcomm.loop_state.rank_checkpoint import (
    HEADER,
    RankFile,
    RankStateError,
    like,
    read_tensors,
)
from lowcomm.loop_state.resharded_objects import (
    KeptState,
    Packed,
    PerRankError,
    state_of_all,
)
from lowcomm.loop_state.resharded_state import other_world_size
from lowcomm.tensors.fsdp import local_of
from protocols.types import ConfigError

SCHEMA = 1
DEPTH_MAX = 32
"""Containers within each other in a state."""

log = logging.getLogger(__name__)

_MAPPINGS: dict[str, type[dict[Any, Any]]] = {
    "dict": dict,
    "ordered": OrderedDict,
    "counter": Counter,  # The milestones of MultiStepLR.
}
_SEQUENCES: dict[str, type[list[Any]] | type[tuple[Any, ...]]] = {"list": list, "tuple": tuple}


class Stateful(Protocol):
    """What can be kept: torch's schedulers, GradScaler, modules, StatefulDataLoader, and your own
    classes."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Read:
    """The states of one object that were read."""

    states: Sequence[KeptState]
    """That of a rank like this one; or, if the node had another number of ranks, those of all."""
    file: RankFile
    """This rank's."""
    before: int
    """Number of ranks that wrote them."""

    def state_for(
        self, thing: Stateful, present: Mapping[str, Tensor], *, per_rank: bool
    ) -> KeptState:
        """The state for this rank. Raises PerRankError if there is none."""
        if self.before == self.file.world_size:
            return self.states[0]
        if per_rank:
            raise PerRankError("so its author, or its class, says")
        if len(self.states) < self.before:
            raise PerRankError("a part of the ranks did not keep it")
        return state_of_all(self.states, thing, present)


class KeptObjects:
    """The kept objects of one rank, by name; a RankSaver writes them."""

    def __init__(self) -> None:
        self._objects: dict[str, Stateful] = {}
        self._per_rank: set[str] = set()
        """Names of objects with a state that belongs to one rank."""
        self._read: dict[str, _Read] = {}
        """States that were read for objects that have not come yet."""

    def include(self, name: str, thing: Stateful, *, per_rank: bool = False) -> None:
        """Keep this object under a name, and give it the state that was read for it, if any.
        `per_rank`: the state belongs to this rank, also if that of others looks alike. Raises
        ConfigError if the name is taken, or if the state cannot be written, or does not fit."""
        if not name or name in self._objects:
            why = "is kept already" if name else "needs a name"
            raise ConfigError(f"peer.keep({name!r}): {why}: each object has a name of its own")
        lacks = [x for x in ("state_dict", "load_state_dict") if not hasattr(thing, x)]
        if lacks:
            kind = type(thing).__name__
            raise ConfigError(f"peer.keep({name!r}): a {kind} has no {' and no '.join(lacks)}()")
        try:
            _pack(thing.state_dict(), {}, name)
        except RankStateError as error:
            raise ConfigError(f"peer.keep({name!r}): {error}") from error
        self._objects[name] = thing
        if per_rank or isinstance(thing, RandomState | DataLoader | Sampler):
            self._per_rank.add(name)
        if name in self._read:
            self._give(name)

    def content(self, file: RankFile) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The tensors of all objects, themselves and not copies, and the metadata of their file;
        nothing if there is no object. Raises RankStateError for a value that cannot be written."""
        if not self._objects:
            return {}, {}
        tensors: dict[str, Tensor] = {}
        objects: dict[str, Packed] = {}
        for number, (name, thing) in enumerate(self._objects.items()):
            found: dict[str, Tensor] = {}
            objects[name] = _pack(thing.state_dict(), found, name)
            for entry, each in found.items():
                tensors[f"{number}:{entry}"] = local_of(each).detach().contiguous()
        return tensors, {HEADER: json.dumps({**_identity(file), "objects": objects})}

    def restore(self, file: RankFile) -> None:
        """Give each object the state that a rank like this one wrote or, if there is none, its part
        of the states that another number of ranks wrote; objects that come later get theirs when
        they come. Nothing happens if there is no such file, or if one is damaged. Raises
        ConfigError if a state does not fit its object."""
        before = (0 if file.is_of_all else other_world_size(file)) or file.world_size
        ranks = [file.rank] if before == file.world_size else range(before)
        found: defaultdict[str, list[KeptState]] = defaultdict(list)
        for rank in ranks:
            states = _states_in(replace(file, rank=rank, world_size=before))
            if states is None:
                return
            for name, state in states.items():
                found[name].append(state)
        self._read = {name: _Read(states, file, before) for name, states in found.items()}
        for name in self._objects.keys() & self._read.keys():
            self._give(name)

    def _give(self, name: str) -> None:
        """Give the object the state that was read for it. If that belongs to single ranks of
        another number, say so. Raises ConfigError if it does not fit."""
        thing, read = self._objects[name], self._read.pop(name)
        try:
            present = _present(
                name, thing, {entry for each in read.states for entry in each.tensors}
            )
            state = read.state_for(thing, present, per_rank=name in self._per_rank)
            thing.load_state_dict(_unpack(state.packed, state.tensors, present))
            _follow_rates(thing)
        except PerRankError as error:
            if read.file.rank == 0:
                log.warning(
                    "peer.keep(%r): its state belongs to single ranks (%s), and this node has %d "
                    "instead of %d: it begins anew",
                    *(name, error, read.file.world_size, read.before),
                )
            return
        except (
            *(RuntimeError, ValueError, LookupError, TypeError, AttributeError),
            RankStateError,
        ) as error:
            raise ConfigError(
                f"peer.keep({name!r}): the state that this {type(thing).__name__} had before the "
                f"ranks started again does not fit it ({type(error).__name__}: "
                f"{' '.join(str(error).split())}); if you have changed the program, keep it under "
                "another name"
            ) from error


class RandomState:
    """The random generators of this process: Python's, numpy's, torch's and those of its GPUs.
    `peer.keep("random", lowcomm.RandomState())` has dropout and the like go on as without a
    restart."""

    def state_dict(self) -> dict[str, Any]:
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        return {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=True),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if on_gpu else [],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        random.setstate(state_dict["python"])
        np.random.set_state(state_dict["numpy"])
        torch.set_rng_state(state_dict["torch"])
        if state_dict["cuda"]:
            torch.cuda.set_rng_state_all(state_dict["cuda"])


def _identity(file: RankFile) -> dict[str, Any]:
    return {"schema": SCHEMA, "rank": file.rank, "world_size": file.world_size}


def _states_in(file: RankFile) -> dict[str, KeptState] | None:
    """The states in one rank's file, by the names of the objects; None if it cannot be used."""
    read = read_tensors(file.kept_path, _identity(file))
    if read is None:
        return None
    tensors, header = read
    objects = cast("dict[str, Packed]", header["objects"])
    of_object: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        number, _, entry = key.partition(":")
        of_object[number][entry] = tensor
    return {
        name: KeptState(packed, of_object[str(number)])
        for number, (name, packed) in enumerate(objects.items())
    }


def _present(name: str, thing: Stateful, entries: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of the object as it is, by their places. An optimizer that has made no step has
    none yet: these entries of its state are laid out as its parameters."""
    present: dict[str, Tensor] = {}
    _pack(thing.state_dict(), present, name)
    if isinstance(thing, Optimizer):
        parameters = [each for group in thing.param_groups for each in group["params"]]
        for entry in set(entries) - present.keys():
            number = entry.removeprefix(f"{name}.state.").partition(".")[0]
            if number.isdecimal() and int(number) < len(parameters):
                present[entry] = parameters[int(number)]
    return present


def _follow_rates(thing: Any) -> None:
    """A scheduler changes the learning rates that the optimizer has, so the restored one begins
    with those that it set last."""
    rates, optimizer = getattr(thing, "_last_lr", None), getattr(thing, "optimizer", None)
    if rates is None or not hasattr(optimizer, "param_groups"):
        return
    for group, rate in zip(cast(Any, optimizer).param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _pack(value: Any, tensors: dict[str, Tensor], place: str, depth: int = 0) -> Packed:
    """The value as JSON; its tensors are added to `tensors`, by their places. Raises RankStateError
    for one that cannot be written."""
    if value is None or type(value) in (bool, int, float, str):
        return cast(Packed, value)
    if depth > DEPTH_MAX:
        raise RankStateError(f"{place} has more than {DEPTH_MAX} containers within each other")
    if isinstance(value, Tensor):
        return _pack_tensor(value, tensors, place)
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        array: NDArray[Any] = np.asarray(cast(Any, value))
        if array.dtype.kind not in "biuf":
            raise RankStateError(f"{place} is an array of {array.dtype}, which cannot be kept")
        entry = _added(torch.from_numpy(np.array(array, order="C")), tensors, place)
        return {"array" if isinstance(value, np.ndarray) else "scalar": entry}
    for kind, cls in _MAPPINGS.items():
        if type(value) is cls:
            return {kind: [_pack_item(item, tensors, place, depth) for item in value.items()]}
    for kind, cls in _SEQUENCES.items():
        if type(value) is cls:
            each = enumerate(cast("Sequence[Any]", value))
            return {kind: [_pack(x, tensors, f"{place}.{at}", depth + 1) for at, x in each]}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise RankStateError(f"{place} is a {kind}: only tensors, arrays and plain values can be kept")


def _pack_tensor(value: Tensor, tensors: dict[str, Tensor], place: str) -> Packed:
    if value.layout != torch.strided or value.is_quantized:
        raise RankStateError(f"{place} is a tensor of {value.layout}, which cannot be kept")
    entry = _added(value, tensors, place)
    return {"sharded" if isinstance(value, DTensor) else "tensor": entry}


def _added(tensor: Tensor, tensors: dict[str, Tensor], place: str) -> str:
    """Add the tensor under its place, and return its entry. Names and keys may contain dots, so two
    places can have the same text: the later one gets a longer entry."""
    while place in tensors:
        place += "'"
    tensors[place] = tensor
    return place


def _pack_item(
    item: tuple[Any, Any], tensors: dict[str, Tensor], place: str, depth: int
) -> list[Packed]:
    key, value = item
    at = f"{place}.{key}"
    return [_pack(key, tensors, f"key {at}", depth + 1), _pack(value, tensors, at, depth + 1)]


def _unpack(packed: Packed, tensors: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Any:
    """The value that was packed. `present`: the tensors of the object as it is, by their places:
    those that are sharded show how."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](_pairs(content, tensors, present))
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_unpack(each, tensors, present) for each in content)
    if kind == "bytes":
        return base64.b64decode(content)
    tensor = tensors[content]
    match kind:
        case "tensor":
            return tensor
        case "sharded":
            return like(present[content], tensor)
        case "array":
            return tensor.numpy()
        case "scalar":
            return tensor.numpy()[()]
        case _:
            raise ValueError(f"a value of kind {kind!r}")


def _pairs(
    content: Iterable[Any], tensors: Mapping[str, Tensor], present: Mapping[str, Tensor]
) -> Any:
    pairs = [[_unpack(each, tensors, present) for each in pair] for pair in content]
    return dict(pairs)
