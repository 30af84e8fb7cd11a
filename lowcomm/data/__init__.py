"""The training text and its samples.

Each node draws its own samples. In: files of text or of tokens, a tokenizer, and ranges of samples
that the log has leased to a node. Out: batches for ranks, held-out tokens for evaluation, and the
digest of the corpus that all peers must share. Must NOT import torch, and must not decide which
node gets which samples: the leader does.

Start reading: batches.py, then corpus.py and lease.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.data.batches import Batches
    from lowcomm.data.corpus import Corpus, build_corpus
    from lowcomm.data.lease import NodeLease

__all__ = ["Batches", "Corpus", "NodeLease", "build_corpus"]

__getattr__ = lazy_exports(
    __name__,
    {
        "batches": "Batches",
        "corpus": "Corpus build_corpus",
        "lease": "NodeLease",
    },
)
