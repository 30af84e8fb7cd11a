"""The optimizer state of a rank on disk, with which a restart continues.

    <directory>/rank-1-of-2.safetensors    local shards; "exp_avg:model.norm.weight" and the like

Works for any torch.optim.Optimizer that keeps tensors and plain values for each parameter. The file
contains neither the parameters (the daemon has them) nor the learning rates (the schedule has
them). Must NOT unpickle anything, or load a state that does not fit exactly.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from lowcomm.checkpoints.rank_states import complete_for
from lowcomm.tensors.gpu_copies import HostCopies
from lowcomm.tensors.placement import local_of
from peers.storage import sync
from protocols.types import LowcommError

SCHEMA = 1
HEADER = "lowcomm"

Parameters = Mapping[str, nn.Parameter]
"""All parameters that the optimizer steps, by their names in the model."""
Optimizers = Optimizer | Sequence[Optimizer]
"""One optimizer of a rank, or several that step different parameters (one for each stage of a
pipeline, or AdamW beside Muon)."""


Content = tuple[Path, dict[str, Tensor], dict[str, str]]
"""A file's path, tensors and metadata."""


class RankStateError(LowcommError):
    """This optimizer's state cannot be written. The text names the entry and the reason."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """The file of one rank's state, and its directory."""

    directory: Path
    rank: int
    world_size: int

    @property
    def path(self) -> Path:
        return self.directory / f"rank-{self.rank}-of-{self.world_size}.safetensors"

    @property
    def kept_path(self) -> Path:
        """The file of the objects that the loop keeps (kept_objects.py)."""
        return self.directory / f"kept-{self.rank}-of-{self.world_size}.safetensors"

    @property
    def is_of_all(self) -> bool:
        """Whether every rank of the node has written its file. Otherwise none loads its own."""
        return self.world_size in complete_for(self.directory)


class KeptContent(Protocol):
    """The kept objects of a rank (kept_objects.py)."""

    def content(self, file: RankFile) -> tuple[dict[str, Tensor], dict[str, str]]: ...


class RankSaver:
    """Writes the states of one rank's optimizer and kept objects in a thread of its own, while
    training goes on."""

    def __init__(self, parameters: Parameters, optimizer: Optimizers, kept: KeptContent) -> None:
        self._parameters, self._optimizer, self._kept = parameters, optimizer, kept
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rank-state")
        self._last: Future[None] | None = None
        self._copies, self._kept_copies = HostCopies(), HostCopies()

    def save(self, file: RankFile, then: Callable[[Exception | None], None]) -> None:
        """Copy the present state, after the last one is written; then begin to write this rank's
        files: complete and synced, or not at all. Makes the directory if needed. Calls `then` in
        the thread at the end, with the error if there is one.

        Raises RankStateError if the optimizer keeps anything but tensors and plain values.
        """
        self.wait()
        tensors, header = _state(file, self._parameters, self._optimizer)
        kept, metadata = self._kept.content(file)
        contents = [(file.path, self._copies.of(tensors), {HEADER: json.dumps(header)})]
        if metadata:
            # The other file comes last: it says that the state is complete.
            contents.insert(0, (file.kept_path, self._kept_copies.of(kept), metadata))
        self._last = self._thread.submit(_write, contents, then)

    def wait(self) -> None:
        """Wait until the last file is written."""
        if self._last is not None:
            self._last.result()


def _write(contents: Sequence[Content], then: Callable[[Exception | None], None]) -> None:
    failed: Exception | None = None
    try:
        for path, tensors, metadata in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, metadata)
    except (OSError, RankStateError) as error:
        failed = error
    then(failed)


def _state(
    file: RankFile, parameters: Parameters, optimizer: Optimizers
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors themselves, not copies, and the header of their file."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    sharded: list[str] = []
    states: dict[Tensor, dict[str, Any]] = {}
    for each in optimizers_of(optimizer):
        states |= each.state
    for name, parameter in parameters.items():
        for key, value in states.get(parameter, {}).items():
            entry = f"{key}:{name}"
            if isinstance(value, DTensor):
                if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
                    raise RankStateError(f"{entry} is sharded, but not as its parameter is")
                sharded.append(entry)
                tensors[entry] = value.to_local().detach().contiguous()
            elif isinstance(value, Tensor):
                tensors[entry] = value.detach().contiguous()
            elif value is None or isinstance(value, bool | int | float | str):
                values[entry] = value
            else:
                raise RankStateError(f"{entry} is a {type(value).__name__}, which cannot be saved")
    header = identity(file, parameters, optimizer)
    header |= {"values": values, "sharded": sharded}
    _check_apart(tensors)
    return tensors, header


def load_rank_state(file: RankFile, parameters: Parameters, optimizer: Optimizers) -> bool:
    """Load into `optimizer` the state that a rank like this one saved. Returns whether that
    succeeded.

    False, and an unchanged optimizer, if there is no such file, if it is damaged, or if it comes
    from another rank, world size, class of optimizer, or set of parameters and shapes.
    """
    read = read_tensors(file.path, identity(file, parameters, optimizer))
    if read is None:
        return False
    tensors, header = read
    try:
        for entry in cast("list[str]", header["sharded"]):
            tensors[entry] = like(parameters[split_entry(entry)[1]], tensors[entry])
        entries: dict[str, Any] = {**tensors, **header["values"]}
        if any(split_entry(entry)[1] not in parameters for entry in entries):
            return False
    except (ValueError, KeyError, TypeError):
        return False
    give_state(entries, parameters, optimizer)
    return True


def give_state(entries: Mapping[str, Any], parameters: Parameters, optimizer: Optimizers) -> None:
    """Replace the state of `optimizer` by these entries, such as "exp_avg:model.norm.weight"."""
    state: dict[str, dict[str, Any]] = {}
    for entry, value in entries.items():
        key, name = split_entry(entry)
        state.setdefault(name, {})[key] = value
    names = {parameter: name for name, parameter in parameters.items()}
    for each in optimizers_of(optimizer):
        stepped = [parameter for group in each.param_groups for parameter in group["params"]]
        # torch's own loader moves each tensor to the optimizer's device (a fused step: the GPU).
        each.load_state_dict(
            {
                "state": {
                    number: state[names[parameter]]
                    for number, parameter in enumerate(stepped)
                    if names[parameter] in state
                },
                "param_groups": each.state_dict()["param_groups"],
            }
        )


def _check_apart(tensors: Mapping[str, Tensor]) -> None:
    """Raise RankStateError for tensors that share memory: a restart would part them."""
    at: dict[int, str] = {}
    for entry, tensor in tensors.items():
        if tensor.numel() and at.setdefault(tensor.data_ptr(), entry) != entry:
            raise RankStateError(f"{entry} and {at[tensor.data_ptr()]} share memory")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write the file under a temporary name, sync it, and rename it: `path` is always a complete
    file. Raises OSError, and RankStateError for tensors that share memory."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        safetensors.torch.save_file(tensors, temporary, metadata)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except SafetensorError as error:  # Raised also if the disk is full.
        raise OSError(str(error)) from error
    except RuntimeError as error:
        raise RankStateError(f"{path.name} cannot hold these tensors: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_tensors(
    path: Path, identity: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the header of a file that `write_tensors` wrote; None if there is no such
    file, if it is damaged, or if its header has other values than `identity`."""
    try:
        with cast(Any, safe_open(path, framework="pt")) as opened:
            header: dict[str, Any] = json.loads(opened.metadata()[HEADER])
            if any(header[key] != value for key, value in identity.items()):
                return None
            entries = opened.keys()  # Not a mapping's.
            return {entry: opened.get_tensor(entry) for entry in entries}, header
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def identity(file: RankFile, parameters: Parameters, optimizer: Optimizers) -> dict[str, Any]:
    """Values that must be equal for a state to fit, in the form in which JSON returns them."""
    kinds = dict.fromkeys(type(each) for each in optimizers_of(optimizer))
    return {
        "schema": SCHEMA,
        "rank": file.rank,
        "world_size": file.world_size,
        "optimizer": " and ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds),
        "parameters": {
            name: [list(parameter.shape), list(local_of(parameter).shape)]
            for name, parameter in parameters.items()
        },
    }


def optimizers_of(optimizer: Optimizers) -> Sequence[Optimizer]:
    """The optimizers; a single one is alone."""
    return [optimizer] if isinstance(optimizer, Optimizer) else optimizer


def split_entry(entry: str) -> tuple[str, str]:
    """State key and parameter name; only the name may contain a colon."""
    key, _, name = entry.partition(":")
    return key, name


@torch.no_grad()
def like(parameter: Tensor, local: Tensor) -> Tensor:
    """A tensor that is sharded like `parameter` and has `local` as its shard. Raises ValueError if
    the shape does not fit."""
    made = torch.empty_like(parameter, dtype=local.dtype)
    if not isinstance(made, DTensor) or made.to_local().shape != local.shape:
        raise ValueError("another shard")
    made.to_local().copy_(local)
    return made
