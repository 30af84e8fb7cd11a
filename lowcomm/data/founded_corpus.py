"""Makes the corpus of the node that founds a run, and completes the run's configuration by it.

Must NOT import torch.
"""

from dataclasses import replace
from pathlib import Path

from lowcomm.config.schema import BYTE_VALUES, NodeConfig, RunConfig
from lowcomm.data.build_progress import BuildProgress
from lowcomm.data.corpus import Corpus, build_corpus
from lowcomm.data.tokenizer import Tokenizer
from protocols.types import ConfigError


def make_founded(
    run: RunConfig, node: NodeConfig, progress: BuildProgress, *, directory: Path
) -> tuple[RunConfig, Corpus | None]:
    """(`run` with the digest of its tokenizer and the vocabulary of its data; its corpus in
    `directory`, if it has one). Raises ConfigError and BuildStoppedError."""
    if not run.data.has_corpus:
        return _with_vocabulary(run, BYTE_VALUES), None
    tokenizer = Tokenizer(node.tokenizer) if node.tokenizer and run.data.has_texts else None
    digest = tokenizer.fingerprint if tokenizer else ""
    if run.data.tokenizer not in ("", digest):
        raise ConfigError(
            f"run.data.tokenizer is {run.data.tokenizer}, but node.tokenizer has {digest!r}: "
            "leave it out"
        )
    run = replace(run, data=replace(run.data, tokenizer=digest))
    if tokenizer is not None and 0 < run.model.vocab_size < tokenizer.vocab_size:
        raise ConfigError(
            f"run.model.vocab_size is {run.model.vocab_size}, but the tokenizer has "
            f"{tokenizer.vocab_size} tokens: leave it out"
        )
    corpus = build_corpus(
        run.data, folder=node.corpus, directory=directory, tokenizer=tokenizer, progress=progress
    )
    if tokenizer is not None:
        return _with_vocabulary(run, tokenizer.vocab_size), corpus
    known = run.model.vocab_size or corpus.vocab_size(progress)
    return _with_vocabulary(run, known), corpus


def _with_vocabulary(run: RunConfig, known: int) -> RunConfig:
    return replace(run, model=replace(run.model, vocab_size=run.model.vocab_size or known))
