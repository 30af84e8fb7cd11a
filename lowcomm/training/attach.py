"""Attaches this process to its node as one rank: `attach()`, and the Peer that it returns.

The node's daemon started this process, or is started by it (own_daemon.py); LOWCOMM_SOCKET and
torchrun's variables lead to it. Must NOT import torch before a batch is made, nor touch a parameter
(`lowcomm/training/round_methods.py` does).
"""

import atexit
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from lowcomm.config.round_length import longest_round
from lowcomm.config.schema import NodeConfig, run_from_json, validate
from lowcomm.data.batches import Batches, rank_rows
from lowcomm.data.corpus import Corpus
from lowcomm.data.joined_corpus import open_joined
from lowcomm.data.lease import NodeLease, Share
from lowcomm.exit_codes import EXIT_FAILED
from lowcomm.methods import AnyMethod, RoundMethod
from lowcomm.training.launched_ranks import launched_ranks, number
from lowcomm.training.own_daemon import start_daemon
from peers.ipc import Attached, RankClient, Runs, TensorPlace
from peers.processes import TOKEN_VARIABLE
from protocols.types import SAMPLES_MAX, ConfigError, LowcommError

if TYPE_CHECKING:
    from torch import Tensor

    from lowcomm.loop_state.kept_objects import KeptObjects, Stateful
    from lowcomm.tensors.frozen import FrozenPart
    from lowcomm.training.item_batches import Collate, Dataset


class Peer:
    """This rank's access to the run. `attach()` makes it; a method and its training loop share
    it."""

    def __init__(self, client: RankClient, *, rank: int, world_size: int) -> None:
        """Raises ConfigError if the daemon's configuration is invalid."""
        configured = client.configured
        self.client = client
        self.rank = rank
        self.world_size = world_size
        self.run = run_from_json(configured.run)
        """The run's configuration, agreed by all peers."""
        node = validate(NodeConfig, json.loads(configured.node), where="this node's [node]")
        self.node = cast(NodeConfig, node)
        self.finished = False
        """The run is over: the parameters are the final ones, and `batches` has ended."""
        self.evaluation_due = False
        """The daemon asks for the loss of the present parameters; answer by `evaluated`."""
        self.reports = rank == 0
        """This rank sends the figures of `metrics` and `evaluated` for its node, as one rank does.
        In a pipeline set it on each rank: true on one that has the last stage, and so the loss."""
        self.lease = NodeLease()
        """For a method: the samples that this node may train on, and those that its steps have
        used."""
        self._kept: KeptObjects | None = None
        self._corpus_directory = Path(configured.corpus)
        self._joined = False

    @cached_property
    def corpus(self) -> Corpus:
        """The run's tokens, memory-mapped. Raises ConfigError if the run has none, or
        this node has other ones."""
        data = self.run.data
        if not data.has_corpus:
            raise ConfigError(
                f"run.data.source is {data.source!r}, so this run has no text: pass a dataset to "
                'peer.batches, or set run.data.source to "stdlib", "files", "datasets" or '
                '"tokens" when a run is founded'
            )
        with self.fitting():
            return open_joined(self.run, self.node, directory=self._corpus_directory)

    @property
    def kept(self) -> "KeptObjects":
        """For a method: the objects of the loop that go on after a restart of the ranks."""
        if self._kept is None:
            from lowcomm.loop_state.kept_objects import KeptObjects

            self._kept = KeptObjects()
        return self._kept

    def keep(self, name: str, thing: "Stateful", *, per_rank: bool = False) -> None:
        """Have an object of the loop go on where it was if the ranks start again: anything with
        `state_dict` and `load_state_dict` (a scheduler, a GradScaler, an averaged model, a loader,
        `lowcomm.RandomState()`). Call it before the loop; what the object's state was comes back at
        once, or when the method is made.

        Its state is written with the optimizer's, within `method.step()`: bring the object up to
        date before that call. A joiner begins with the object as it is. If the node starts again
        with another number of ranks, values that all ranks had alike and sharded tensors go on; an
        object with other values, of single ranks, begins as it is, and a warning names it. So does
        an object that is `per_rank`, as random generators, samplers and DataLoaders always are.
        Raises ConfigError if the name is taken, if the state has other values than tensors, arrays
        and plain ones, or if a saved state does not fit; and with a per-step method, where nodes
        that return make up for the others' steps without the loop.
        """
        with self.fitting():
            method = self.run.method
            if not isinstance(method, RoundMethod):
                raise ConfigError(
                    f"peer.keep({name!r}) is for methods of rounds, and run.method.name is "
                    f"{method.name!r}: pass `schedule=` to the method instead of a "
                    "scheduler"
                )
            self.kept.include(name, thing, per_rank=per_rank)

    @overload
    def batches(self, *, accumulate: int = 1, share: Share = None) -> Iterator["Tensor"]: ...
    @overload
    def batches(
        self,
        dataset: "Dataset | Iterable[Any]",
        *,
        collate_fn: "Collate | None" = None,
        num_workers: int = 0,
        prefetch: int | None = None,
        accumulate: int = 1,
        share: Share = None,
    ) -> Iterator[Any]: ...
    def batches(
        self,
        dataset: "Dataset | Iterable[Any] | None" = None,
        *,
        collate_fn: "Collate | None" = None,
        num_workers: int = 0,
        prefetch: int | None = None,
        accumulate: int = 1,
        share: Share = None,
    ) -> Iterator[Any]:
        """Batches for this rank, `accumulate` for each inner step, until the run is finished.

        Without a dataset: the run's text, int64 [rows, window + 1] on the CPU, where `rows` is this
        rank's share of `run.data.batch`; the first `window` tokens of a row are the input, its last
        `window` are the targets. With a dataset: `rows` of its items, joined by `collate_fn`
        (torch's default_collate). No two nodes, and no two ranks, get the same sample in one pass
        over the data, even if nodes join and leave.

        A map-style dataset is shuffled. An iterable one, which may have no length or no end, must
        yield the same items in the same order on all nodes, ranks and workers; its items come in
        that order. Each process that loads reads it from its beginning, and passes over items of
        other nodes, unless the dataset has `skip(n)`, which returns an iterable without the first n
        items, as in Hugging Face `datasets`.

        `num_workers`: processes that load items; 0: this one does. `prefetch`: batches that each of
        them loads ahead (2). `accumulate`: batches for each optimizer step and `method.step()`, the
        same on all ranks of the node; the node's contribution weighs so many times more. A loader
        of your own may run some batches ahead, the same number on all ranks. `share`: (number,
        count): the rows are that one of `count` equal parts of a batch, the same on all ranks that
        work on the same rows (tensor parallelism, pipelines). None: (rank, world_size).

        Raises LowcommError if the method is not made yet, because the daemon assigns data to this
        node when the method joins the run; ConfigError if there is not enough data, or a value does
        not fit.
        """
        with self.fitting():
            if dataset is None:
                if collate_fn is not None or num_workers or prefetch is not None:
                    raise ConfigError("collate_fn, num_workers and prefetch are for a dataset")
                self.reserve(accumulate=accumulate, share=share)
                return self._until_finished(map(_text_of(self), self._draws()))
            from lowcomm.training.item_batches import ItemOrder, Loading, StreamItems, is_stream

            loading = Loading(collate_fn=collate_fn, num_workers=num_workers, prefetch=prefetch)
            draws = self._draws()
            if is_stream(dataset):
                items: Any = StreamItems(cast("Iterable[Any]", dataset))
            else:
                items = cast("Dataset", dataset)
                draws = map(ItemOrder(len(items), seed=self.run.seed).items, draws)
            self.reserve(accumulate=accumulate, ahead=loading.ahead, share=share)
        rounds = isinstance(self.run.method, RoundMethod)
        return self._until_finished(loading.batches(items, draws, predictable=rounds))

    def reserve(self, *, accumulate: int = 1, ahead: int = 0, share: Share = None) -> None:
        """Before batches are drawn: each inner step uses `accumulate` of them, and up to `ahead`
        are drawn before their steps; `share` as in `batches`. Blocks until the daemon has leased
        that many. Raises LowcommError before the method is made; ConfigError if it cannot be."""
        if not self._joined:
            raise LowcommError("make the method before the batches: it gets this node's data")
        data = self.run.data
        if not data.is_leased:
            raise ConfigError(
                'run.data.source is "private", so no samples are leased: take batches from a '
                "DataLoader of your own until method.finished"
            )
        if accumulate < 1:
            raise ConfigError(f"accumulate must be at least 1, got {accumulate}")
        lease, run = self.lease, self.run
        lease.share = share
        if share is not None and not 0 <= share[0] < share[1]:
            raise ConfigError(
                f"share={share}: it is (number, count) of equal parts of run.data.batch, which "
                "count from 0"
            )
        self._share(np.empty((data.batch, 0), np.int64))  # All ranks raise, or none.
        if lease.reserved and lease.per_step != accumulate:
            raise ConfigError(
                f"accumulate is {accumulate} here, and {lease.per_step} for batches of before: "
                "keep it"
            )
        if not isinstance(run.method, RoundMethod):
            if accumulate > 1:
                raise ConfigError(
                    f"accumulate={accumulate} is for methods of rounds: with run.method.name = "
                    f"{run.method.name!r} all nodes make each step together, on one batch each; "
                    "raise run.data.batch, and call backward on parts of a batch"
                )
            return
        grows = accumulate > lease.per_step or ahead > lease.ahead
        lease.reserved, lease.per_step = True, accumulate
        lease.ahead = max(lease.ahead, ahead)
        if not grows or self.finished:
            return
        step_samples, more = accumulate * run.data.batch, lease.ahead * run.data.batch
        if (longest_round(run) + run.method.overlap_steps) * step_samples + more > SAMPLES_MAX // 8:
            raise ConfigError(
                f"accumulate={accumulate} and {lease.ahead} batches ahead are over "
                f"{SAMPLES_MAX // 8:,} samples in a round"
            )
        lease.renew(self.client.demand_samples(step_samples=step_samples, ahead=more))

    def method(self, name: str, *, program: str) -> AnyMethod:
        """For a method: the run's configuration of the method `name`. Raises ConfigError if the run
        has another method; `program` is the name of this one in the text."""
        method = self.run.method
        if method.name != name:
            raise ConfigError(
                f"run.method.name is {method.name!r}, but this program uses {program}"
            )
        return method

    def fitting(self) -> AbstractContextManager[None]:
        """For code that depends on the configuration alone: a ConfigError in this context would
        occur in every attempt, so the daemon ends the node with its text. The caller gets the error
        too."""
        return _fitting(self.client)

    def join(
        self,
        tensors: Sequence[TensorPlace],
        *,
        elements: int,
        frozen: Sequence["FrozenPart"] = (),
        parts: Iterable[Runs] = (),
    ) -> Attached:
        """For a method: report the layout, of which this rank writes `elements` elements, and the
        rank's parts of all tensors that no node trains; `parts`: what it reads and writes. Blocks
        until the run has accepted them; prints the reason and exits if the run refuses them. Raises
        ConfigError for a layout beyond the limits of protocols/types/limits.py."""
        with self.fitting():
            attached = self.client.attach(
                tensors,
                elements=elements,
                frozen=[part.spec for part in frozen],
                write_frozen=partial(_write_frozen, frozen),
                parts=tuple(parts) if self.node.other_hosts else (),
            )
        self._joined = True
        return attached

    def evaluate(self) -> None:
        """For a method: the daemon asks for the loss of the present parameters."""
        self.evaluation_due = True

    def finish(self, *, evaluate: bool) -> None:
        """For a method: the parameters are the run's final ones."""
        self.finished, self.evaluation_due = True, evaluate
        self.client.needs_daemon = False

    def metrics(self, *, step: int, tokens: int, loss: float, tokens_per_s: float) -> None:
        """Show these figures; never blocks. `step` and `tokens` (of all ranks) count from the start
        of this process. Where `reports` is false, the call has no effect."""
        if self.reports:
            self.client.metrics(step=step, tokens=tokens, loss=loss, tokens_per_s=tokens_per_s)

    def evaluated(self, *, loss: float, windows: int, sample: str) -> None:
        """Report the mean `loss` over `windows` held-out windows, and a text that the model has
        written. Every rank calls it; the one that `reports` sends it."""
        self.evaluation_due = False
        if self.reports:
            self.client.evaluated(loss=loss, windows=windows, sample=sample)

    def close(self) -> None:
        """Send the last messages and close the connection; idempotent. The rank makes no further
        step: if the run is not over, the node leaves it when the program has ended."""
        self.client.close(done=True)

    def close_at_exit(self) -> None:
        """As `close`, unless an exception ends the program: then the daemon takes this for a fault
        of the rank."""
        crashed = getattr(sys, "last_value", None) is not None  # Python sets it before exit calls.
        self.client.close(done=not crashed)

    def check_drawn(self) -> None:
        """For a method, at each of its steps. Raises ConfigError at the second step in a row for
        which the loop has drawn no batch: the run would count its tokens, though other nodes may
        train on the same samples."""
        lease, data = self.lease, self.run.data
        lease.undrawn_steps = 0 if lease.has_drawn else lease.undrawn_steps + 1
        if lease.undrawn_steps < 2 or not data.is_leased:
            return
        with self.fitting():
            raise ConfigError(
                "this loop draws no batches of the run, so nodes may train on the same samples: "
                "take its batches from peer.batches(dataset), or give lowcomm.Sampler(peer, "
                "dataset) to its DataLoader; if each node has other data, found the run with "
                'run.data.source = "private"'
            )

    def draw(self) -> list[int]:
        """For a loader: the samples of this rank's share of the next batch."""
        with self.fitting():  # The loop would draw as many in each attempt.
            data = self.run.data
            drawn = self.lease.draw(data.batch)
        return self._share(np.array(drawn, np.int64)).tolist()

    def _draws(self) -> Iterator[list[int]]:
        while not self.finished:
            yield self.draw()

    def _until_finished(self, batches: Iterator[Any]) -> Iterator[Any]:
        """These batches, without those that were loaded before the run was finished."""
        while not self.finished:
            yield next(batches)

    def _share(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rank_rows(rows, *(self.lease.share or (self.rank, self.world_size)))


def _text_of(peer: Peer) -> Callable[[list[int]], "Tensor"]:
    """Samples of the run's own text, by their numbers."""
    import torch

    run = peer.run
    text = Batches(peer.corpus.train, window=run.data.window, seed=run.seed)

    def of(samples: list[int]) -> "Tensor":
        with peer.fitting():  # A token may be outside the vocabulary.
            return torch.from_numpy(text.of(samples))

    return of


def attach(run: str | Path | None = None, *, join: str = "", overrides: Sequence[str] = ()) -> Peer:
    """Connect this process to its node's daemon, as the rank that the environment names.

    If no daemon started this process, start one as its child: it founds the run of the
    configuration file `run`, or joins that of the token `join` (a token, or @FILE; by default that
    of LOWCOMM_TOKEN; then `run` may be missing). `overrides` are as after --set: `node.name=beta`.
    Of the ranks of a launcher (torchrun) the first does so, the others find its daemon; node.ranks
    is their number unless the configuration says another one, which is an error. The node leaves
    the run when the first rank or the launcher ends, or any rank is killed. If a daemon started
    this process, all three are ignored.

    Blocks until the daemon knows the run (it may be waiting for a first peer). Until the run is
    finished, this process ends when the daemon does. Raises ConfigError if the file, the token, the
    environment or the lack of a daemon is at fault; LowcommError if the daemon is gone.
    """
    path, own_daemon = os.environ.get("LOWCOMM_SOCKET", ""), None
    if not path:
        own_daemon = _own_daemon(run, join=join, overrides=overrides)
        path = os.environ["LOWCOMM_SOCKET"]
    world_size = number("WORLD_SIZE", 1)
    rank = number("RANK", 0)
    if rank >= world_size:
        raise ConfigError(f"RANK is {rank} and WORLD_SIZE {world_size}: ranks count from 0")
    attempt = number("LOWCOMM_ATTEMPT", number("TORCHELASTIC_RESTART_COUNT", 0))
    try:
        client = RankClient(
            path, rank=rank, world_size=world_size, attempt=attempt, own_daemon=own_daemon
        )
    except OSError as error:
        raise LowcommError(f"no lowcomm daemon listens at {path}: {error}") from error
    with _fitting(client):
        if world_size > 1 and not os.environ.get("RANK"):
            raise ConfigError(
                f"node.ranks is {world_size}, and the program runs one process, since no launcher "
                "has set RANK: start it by one, as in `-- torchrun train.py`, or set node.ranks=1"
            )
        peer = Peer(client, rank=rank, world_size=world_size)
    atexit.register(peer.close_at_exit)  # Sends the last messages if the loop does not.
    return peer


def _own_daemon(
    run: str | Path | None, *, join: str, overrides: Sequence[str]
) -> Callable[[], int]:
    """Start a daemon, or find that of the first rank; from then on the environment is that of its
    rank. Returns a function that waits for the daemon's end, if it is ours, and gives its exit
    status."""
    if run is None and not (join or os.environ.get(TOKEN_VARIABLE)):
        raise ConfigError(
            "LOWCOMM_SOCKET is not set, so no lowcomm daemon started this process: "
            "start it as `lowcomm peer run.toml --new -- python train.py`, on further nodes as "
            "`lowcomm peer --join @FILE -- python train.py` (FILE: the token); or have it start "
            'a daemon by lowcomm.attach(run="run.toml"), on further nodes with join="@FILE"'
        )
    launched = launched_ranks()
    if launched is not None and launched.rank:
        os.environ.pop(TOKEN_VARIABLE, None)
        os.environ.update(launched.ask())
        return lambda: EXIT_FAILED
    with ExitStack() as stack:
        listening = None if launched is None else stack.enter_context(launched.listen())
        own = start_daemon(run, join=join, overrides=overrides, launched=launched)
        environment = own.environment()
        os.environ.update(environment)
        stack.pop_all()
    if launched is not None and listening is not None:
        launched.hand_out(listening, environment)
    atexit.register(own.exit_code)  # After the rank has closed its connection.
    return own.exit_code


def _write_frozen(frozen: Sequence["FrozenPart"], path: str) -> None:
    from lowcomm.tensors.frozen import write_frozen

    write_frozen(path, frozen)


@contextmanager
def _fitting(client: RankClient) -> Generator[None]:
    try:
        yield
    except ConfigError as error:
        client.unfit(str(error))
        raise
