"""The static split: which window of the corpus each sample of each node is.

The samples of a run are one endless sequence g = 0, 1, 2, ... It runs over the windows of the
corpus in passes: sample g belongs to data_pass g // num_windows and is the window that this pass'
own permutation has at g % num_windows. The node that holds split slot s takes g = s, s + SLOTS,
s + 2 * SLOTS, ... So no two slots ever share a sample, each pass visits every window once over all
SLOTS slots, and a node's position in its data is a step number and nothing else. What the slots
that nobody holds would take is not trained in that pass.

Must NOT import torch, nor hold state that would have to be saved.
"""

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ConfigError

SLOTS = 16
"""Slots of the split, held or not; so a member that joins or leaves moves nobody else's samples."""


class Batches:
    """The batches of one split slot, by step number."""

    def __init__(
        self, text: NDArray[np.uint8], *, window: int, batch: int, seed: int, slot: int
    ) -> None:
        """`text`: uint8 [bytes], for example a memory map. `window`: tokens a sample predicts.

        Windows lie end to end; each reaches one byte into the next for its last target, and the
        bytes after the last whole one are not used. Raises ConfigError if there is no whole one.
        """
        assert 0 <= slot < SLOTS
        self.num_windows = (len(text) - 1) // window
        """Windows in one pass over the corpus."""
        if self.num_windows < 1:
            raise ConfigError(
                f"the corpus has {len(text)} bytes, but one sample takes {window + 1}: "
                "name a folder with more text"
            )
        self._text = text
        self._window = window
        self._batch = batch
        self._seed = seed
        self._slot = slot
        self._pass = -1
        self._order = np.empty(0, dtype=np.int64)

    def node_batch(self, step: int) -> NDArray[np.int64]:
        """All samples of the node's inner step `step` (from 0): int64 [batch, window + 1]."""
        starts = self.windows(step) * self._window
        return self._text[starts[:, None] + np.arange(self._window + 1)].astype(np.int64)

    def windows(self, step: int) -> NDArray[np.int64]:
        """Which windows of the corpus they are: int64 [batch], each in [0, num_windows)."""
        # Python's integers: g has no bound, and g // num_windows must not wrap.
        first = step * self._batch
        samples = ((first + row) * SLOTS + self._slot for row in range(self._batch))
        return np.array([self._window_of(sample) for sample in samples], dtype=np.int64)

    def _window_of(self, sample: int) -> np.int64:
        data_pass, index = divmod(sample, self.num_windows)
        if data_pass != self._pass:
            # One pass is kept; a batch looks at the next one only where a pass ends inside it.
            self._order = permutation(self._seed, data_pass, self.num_windows)
            self._pass = data_pass
        return self._order[index]


def rank_rows(batch_BT1: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """The rows of a node's batch that one of its `world` ranks trains: a view of equal share.

    Raises ConfigError if the ranks cannot share the batch equally: their gradients are averaged
    with equal weights.
    """
    rows = len(batch_BT1)
    if rows % world:
        raise ConfigError(
            f"run.data.batch ({rows}) must be a multiple of node.ranks ({world}): "
            "the ranks share a batch equally"
        )
    share = rows // world
    return batch_BT1[rank * share : (rank + 1) * share]


def permutation(seed: int, data_pass: int, count: int) -> NDArray[np.int64]:
    """The order of the windows in one pass: int64 [count], the same on every machine.

    Made from Philox' raw words, which numpy promises never to change; its `permutation` may.
    """
    return np.argsort(raw_words(seed, data_pass, count), kind="stable")


def raw_words(seed: int, stream: int, count: int) -> NDArray[np.uint64]:
    """`count` pseudo-random 64-bit words, uint64 [count]; each (seed, stream) is independent."""
    key = np.array([seed % 2**64, stream], dtype=np.uint64)
    return np.random.Philox(key=key).random_raw(count)
