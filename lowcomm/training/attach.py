"""This process as one rank of its node: `attach()`, and the Peer that it returns.

The node's daemon started this process; it is found again by LOWCOMM_SOCKET and torchrun's
variables. Must NOT import torch before there is a batch to make, nor touch a parameter: that is
`lowcomm/training/round_methods.py`.
"""

import atexit
import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray

from lowcomm.config.schema import NodeConfig, run_from_json, validate
from lowcomm.data.batches import Batches, rank_rows
from lowcomm.data.corpus import Corpus
from lowcomm.data.lease import NodeLease
from lowcomm.methods import AnyMethod
from peers.ipc.messages import Attached, TensorPlace
from peers.ipc.rank_client import RankClient
from protocols.types.errors import ConfigError, LowcommError

if TYPE_CHECKING:
    from torch import Tensor


class Dataset(Protocol):
    """Map-style, as torch's: items are numbered from 0."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Peer:
    """This rank's side of the run. `attach()` makes it; a method and its training loop share it."""

    def __init__(self, client: RankClient, *, rank: int, world_size: int) -> None:
        """Raises ConfigError when what the daemon says is no configuration, or not for so many
        ranks."""
        configured = client.configured
        self.client = client
        self.rank = rank
        self.world_size = world_size
        self.run = run_from_json(configured.run)
        """Agreed by all peers."""
        node = validate(NodeConfig, json.loads(configured.node), where="this node's [node]")
        self.node = cast(NodeConfig, node)
        self.finished = False
        """The run is over: the parameters are its last ones, and `batches` has ended."""
        self.evaluation_due = False
        """The daemon wants to know how good the parameters are now; answer by `evaluated`."""
        self.lease = NodeLease()
        """For a method: what this node may train, and what its steps saw of it."""
        self._corpus_directory = Path(configured.corpus)
        self._joined = False
        # All ranks see a wrong number here, before any of them waits for the others.
        rank_rows(np.empty((self.run.data.batch, 0), np.int64), rank, world_size)

    @property
    def corpus(self) -> Corpus:
        """The run's text, mapped. Raises ConfigError if the daemon has not put it there."""
        return Corpus.open(self._corpus_directory)

    @overload
    def batches(self) -> Iterator["Tensor"]: ...
    @overload
    def batches(self, dataset: Dataset) -> Iterator[Any]: ...
    def batches(self, dataset: Dataset | None = None) -> Iterator[Any]:
        """What this rank trains on, one batch an inner step, until the run is finished.

        Without a dataset: the run's text, int64 [rows, window + 1] on the CPU, where `rows` is
        this rank's share of `run.data.batch`; the first `window` tokens of a row go in, its last
        `window` are predicted. With one: `rows` of its items, joined by torch's default_collate.
        No two nodes, and no two ranks, get the same sample in one pass over the data, whoever
        comes and goes. Take one batch for each `method.step()`; a loader may run some ahead.

        Raises LowcommError before the method is made, because with it the daemon says which part
        of the data is this node's; ConfigError if there is not enough data.
        """
        if not self._joined:
            raise LowcommError("make the method before the batches: it asks which data is ours")
        with self.fitting():
            make = self._text() if dataset is None else self._items(dataset)
        return self._until_finished(make)

    def method(self, name: str, *, program: str) -> AnyMethod:
        """For a method of this name, which `program` calls so: what the run says of it. Raises
        ConfigError if the run has another one."""
        method = self.run.method
        if method.name != name:
            raise ConfigError(
                f"run.method.name is {method.name!r}, but this program uses {program}"
            )
        return method

    def fitting(self) -> AbstractContextManager[None]:
        """For what depends on the configuration alone: a ConfigError in here would come in every
        attempt, so the node ends with its text. It goes on to the caller."""
        return _fitting(self.client)

    def join(self, tensors: Sequence[TensorPlace], *, elements: int) -> Attached:
        """For a method: report the layout, of which this rank writes `elements`. Blocks until
        the run has taken it; prints why and exits if the run refuses it. Raises ConfigError for a
        layout beyond the limits of protocols/types/limits.py."""
        with self.fitting():
            attached = self.client.attach(tensors, elements=elements)
        self._joined = True
        return attached

    def evaluate(self) -> None:
        """For a method: the daemon wants to know how good these parameters are."""
        self.evaluation_due = True

    def finish(self, *, evaluate: bool) -> None:
        """For a method: the parameters are the run's last ones."""
        self.finished, self.evaluation_due = True, evaluate

    def metrics(self, *, step: int, tokens: int, loss: float, tokens_per_s: float) -> None:
        """Show these figures; never blocks. `step` and `tokens` (of all ranks) count from the
        start of this process. Rank 0 speaks, other ranks may call it in vain."""
        if self.rank == 0:
            self.client.metrics(step=step, tokens=tokens, loss=loss, tokens_per_s=tokens_per_s)

    def evaluated(self, *, loss: float, windows: int, sample: str) -> None:
        """Report the mean `loss` over `windows` held-out windows, and what the model writes.
        Every rank calls it; rank 0 speaks."""
        self.evaluation_due = False
        if self.rank == 0:
            self.client.evaluated(loss=loss, windows=windows, sample=sample)

    def close(self) -> None:
        """Let the last messages out; idempotent. The daemon takes it for the end of this rank."""
        self.client.close()

    def _until_finished(self, make: Callable[[list[int]], Any]) -> Iterator[Any]:
        while not self.finished:
            yield make(self.lease.draw(self.run.data.batch))

    def _text(self) -> Callable[[list[int]], "Tensor"]:
        import torch

        text = Batches(self.corpus.train, window=self.run.data.window, seed=self.run.seed)
        return lambda samples: torch.from_numpy(self._share(text.of(samples)))

    def _items(self, dataset: Dataset) -> Callable[[list[int]], Any]:
        import torch.utils.data as torch_data

        if len(dataset) == 0:
            raise ConfigError("the dataset has no items")
        # Its items are found as the windows of a text would be: one of one-byte windows, which
        # are numbered like the items, and of which nothing is stored.
        items = Batches(
            np.broadcast_to(np.uint8(0), len(dataset) + 1), window=1, seed=self.run.seed
        )
        return lambda samples: torch_data.default_collate(
            [dataset[int(index)] for index in self._share(items.windows(samples))]
        )

    def _share(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rank_rows(rows, self.rank, self.world_size)


def attach() -> Peer:
    """Connect this process to its node's daemon, as the rank that the environment says.

    Blocks until the daemon knows the run (it may be waiting for a first peer). From now on this
    process ends when the daemon does. Raises ConfigError if no daemon started this process, or
    its environment makes no sense; LowcommError if the daemon is gone.
    """
    path = os.environ.get("LOWCOMM_SOCKET", "")
    if not path:
        raise ConfigError(
            "LOWCOMM_SOCKET is not set, so no lowcomm daemon started this process: "
            "start it as `lowcomm peer run.toml -- python train.py`"
        )
    world_size = _number("WORLD_SIZE", 1)
    rank = _number("RANK", 0)
    if rank >= world_size:
        raise ConfigError(f"RANK is {rank} and WORLD_SIZE {world_size}: ranks count from 0")
    attempt = _number("LOWCOMM_ATTEMPT", _number("TORCHELASTIC_RESTART_COUNT", 0))
    try:
        client = RankClient(path, rank=rank, world_size=world_size, attempt=attempt)
    except OSError as error:
        raise LowcommError(f"no lowcomm daemon listens at {path}: {error}") from error
    with _fitting(client):
        peer = Peer(client, rank=rank, world_size=world_size)
    atexit.register(peer.close)  # A loop that just ends still gets its last messages out.
    return peer


@contextmanager
def _fitting(client: RankClient) -> Generator[None]:
    try:
        yield
    except ConfigError as error:
        client.unfit(str(error))
        raise


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ConfigError(f"{variable} must be a number, got {text!r}")
    return int(text)
