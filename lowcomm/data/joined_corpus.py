"""Makes a joining node's copy of the corpus, and compares it with the run's.

The daemon makes it. For a program of the user's own, which may use other data, it also notes what
the run has: a rank that asks for the corpus compares it then, and makes it if there is none. Must
NOT import torch.
"""

import fcntl
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lowcomm.config.schema import DataConfig, NodeConfig, RunConfig
from lowcomm.data.build_progress import BuildProgress
from lowcomm.data.corpus import Corpus, build_corpus
from lowcomm.data.manifest import difference
from lowcomm.data.tokenizer import Tokenizer
from protocols.types import ConfigError, RefusedError

EXPECTED = "expected.json"
LOCK = "lock"


@dataclass(frozen=True, slots=True)
class ExpectedCorpus:
    """The run's corpus, as its log has it."""

    digest: str
    marks: str
    """Marks of its files, in hex digits (manifest.py)."""
    node: str
    """Name of this node, for messages."""

    def note(self, directory: Path) -> None:
        """Let ranks make and compare the corpus when they use it."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / EXPECTED).write_text(json.dumps(asdict(self)), encoding="ascii")


def make_joined(
    config: DataConfig,
    node: NodeConfig,
    expected: ExpectedCorpus,
    *,
    directory: Path,
    progress: BuildProgress | None = None,
) -> Corpus:
    """Build or reuse this node's copy of the corpus. Raises RefusedError if it, or the tokenizer,
    is another one than the run's, ConfigError and BuildStoppedError."""
    tokenizer = Tokenizer(node.tokenizer) if config.tokenizer and node.tokenizer else None
    mine = tokenizer.fingerprint if tokenizer else ""
    if mine != config.tokenizer:
        here = f"{node.tokenizer} has {mine[:8]}" if mine else "node.tokenizer is not set"
        raise RefusedError(
            f"the run's tokenizer has the digest {config.tokenizer[:8]}, and on {expected.node} "
            f"{here}: set node.tokenizer to a copy of the run's tokenizer.json"
        )
    corpus = build_corpus(
        config, folder=node.corpus, directory=directory, tokenizer=tokenizer, progress=progress
    )
    if corpus.digest != expected.digest:
        raise RefusedError(
            f"this node's text is not the run's: on {expected.node} "
            f"{difference(corpus.files, bytes.fromhex(expected.marks))}; every node needs the same "
            "data (of the standard library: the same Python version)"
        )
    return corpus


def open_joined(run: RunConfig, node: NodeConfig, *, directory: Path) -> Corpus:
    """For a rank: the corpus that the daemon has made, or has noted; then it is made now, by one
    rank after the other. Raises ConfigError if it is another one than the run's, or cannot be made.
    """
    path = directory / EXPECTED
    if path.exists():
        expected = ExpectedCorpus(**json.loads(path.read_bytes()))
        try:
            with _alone(directory / LOCK):
                make_joined(run.data, node, expected, directory=directory)
        except RefusedError as error:  # Would occur in each attempt.
            raise ConfigError(str(error)) from error
    return Corpus.open(directory, vocab_size=run.model.vocab_size)


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """Wait until no other rank of this node is in this context."""
    with path.open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
