"""Maps the samples of a run to windows of the corpus.

The samples of a run are one endless sequence 0, 1, 2, ..., which visits the windows of the corpus
in passes: sample n belongs to pass n // num_windows, and is the window that the permutation of this
pass has at n % num_windows. Samples are leased to nodes (protocols/state/sample_ledger.py), so that
each pass visits every window once, whichever nodes join and leave.

Must NOT import torch, nor hold state that would have to be saved.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lowcomm.data.token_shards import TokenArray
from protocols.types import ConfigError

FEISTEL_ROUNDS = 6
"""With ideal round functions, four rounds make a permutation that looks random; this round function
is only a good one."""


class Batches:
    """Finds samples by their numbers; all of them take the same time."""

    def __init__(self, text: TokenArray, *, window: int, seed: int) -> None:
        """`text`: tokens, for example a memory map. `window`: number of tokens that a sample
        predicts.

        Windows lie end to end. Each reaches one token into the next one for its last target; tokens
        after the last complete window are not used. Raises ConfigError if no window is complete.
        """
        self.num_windows = (len(text) - 1) // window
        """Number of windows in one pass over the corpus."""
        if self.num_windows < 1:
            raise ConfigError(
                f"the corpus has {len(text)} tokens, but one sample takes {window + 1}: "
                "name a folder with more text"
            )
        self._text = text
        self._window = window
        self._seed = seed
        self._pass = -1
        self._keys = np.empty(0, dtype=np.uint64)

    def of(self, samples: Sequence[int]) -> NDArray[np.int64]:
        """Return the tokens of these samples: int64 [samples, window + 1]."""
        starts = self.windows(samples) * self._window
        places = starts[:, None] + np.arange(self._window + 1)
        return self._text[places].astype(np.int64, copy=False)

    def windows(self, samples: Sequence[int]) -> NDArray[np.int64]:
        """Return the windows of these samples: int64 [samples], each in [0, num_windows)."""
        passes = [divmod(sample, self.num_windows) for sample in samples]
        found = np.empty(len(passes), dtype=np.int64)
        for data_pass in sorted({number for number, _ in passes}):
            rows = [row for row, (number, _) in enumerate(passes) if number == data_pass]
            places = np.array([passes[row][1] for row in rows], dtype=np.int64)
            found[rows] = permuted(places, self.num_windows, keys=self._keys_of(data_pass))
        return found

    def _keys_of(self, data_pass: int) -> NDArray[np.uint64]:
        if data_pass != self._pass:
            # The keys of one pass are cached; a batch needs those of a second pass only at its end.
            self._keys, self._pass = permutation_keys(self._seed, data_pass), data_pass
        return self._keys


def rank_rows(batch_BT1: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """Return the rows of a node's batch (int64 [B, T + 1]) that one of its `world` ranks trains, as
    a view.

    Raises ConfigError if the ranks cannot share the batch equally: their gradients are averaged
    with equal weights.
    """
    rows = len(batch_BT1)
    if rows % world:
        raise ConfigError(
            f"run.data.batch ({rows}) must be a multiple of {world}: so many ranks share a batch "
            "equally (node.ranks, or the count in share=)"
        )
    share = rows // world
    return batch_BT1[rank * share : (rank + 1) * share]


def permuted(
    places_N: NDArray[np.int64], count: int, *, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Apply the permutation of [0, count) with these keys to places: int64 [N] to int64 [N].

    A Feistel network permutes [0, 4 ** half), the next larger square power of two. A number outside
    [0, count) is permuted again until it is inside, so that the map stays a permutation. Nothing is
    stored: the millionth place of a large corpus takes the same time as the first one.
    """
    half = max((max(count - 1, 1).bit_length() + 1) // 2, 1)
    found_N = _feistel(places_N.astype(np.uint64), half, keys)
    while (outside_N := found_N >= count).any():  # At most 3 of 4 numbers are.
        found_N[outside_N] = _feistel(found_N[outside_N], half, keys)
    return found_N.astype(np.int64)


def permutation_keys(seed: int, data_pass: int) -> NDArray[np.uint64]:
    """Return the keys of one pass: uint64 [FEISTEL_ROUNDS], equal on every machine.

    They are raw words of Philox, which numpy promises never to change; numpy's `permutation` may
    change.
    """
    return raw_words(seed, data_pass, FEISTEL_ROUNDS)


def raw_words(seed: int, stream: int, count: int) -> NDArray[np.uint64]:
    """Return pseudo-random words, uint64 [count]; each (seed, stream) gives independent ones."""
    key = np.array([seed % 2**64, stream], dtype=np.uint64)
    return np.random.Philox(key=key).random_raw(count)


def _feistel(
    numbers_N: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Permute numbers of [0, 4 ** half): a bijection for any round function."""
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left_N, right_N = numbers_N >> shift, numbers_N & mask
    for key in keys:
        mixed_N = (right_N ^ key) * np.uint64(0xBF58476D1CE4E5B9)  # As in splitmix64; it wraps.
        mixed_N ^= mixed_N >> np.uint64(29)
        mixed_N *= np.uint64(0x94D049BB133111EB)
        mixed_N ^= mixed_N >> np.uint64(32)
        left_N, right_N = right_N, left_N ^ (mixed_N & mask)
    return (left_N << shift) | right_N
