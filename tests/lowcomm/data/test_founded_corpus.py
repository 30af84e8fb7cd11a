"""The corpus of a founder, and what the run's configuration takes from it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowcomm.config.schema import DataConfig, ModelConfig, NodeConfig, RunConfig
from lowcomm.data.build_progress import BuildProgress, BuildStoppedError
from lowcomm.data.corpus import Corpus
from lowcomm.data.founded_corpus import make_founded
from lowcomm.data.tokenizer import train_bpe
from protocols.types.errors import ConfigError

TOKENS = RunConfig(data=DataConfig(source="tokens", window=8, eval_window=8))
FILES = RunConfig(data=DataConfig(source="files", window=8, eval_window=8, held_out_below=128))


def found(run: RunConfig, where: Path, **node: str) -> tuple[RunConfig, Corpus | None]:
    """With the corpus `texts` in a folder, and the node's directory beside it."""
    config = NodeConfig(corpus=str(where / "texts"), **node)  # pyright: ignore
    return make_founded(run, config, BuildProgress(), directory=where / "corpus")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a folder of texts."""
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(f"text {number}, longer than a window")
    return tmp_path


def test_the_vocabulary_is_that_of_the_data(texts: Path) -> None:
    run, corpus = found(FILES, texts)
    assert corpus is not None
    assert (run.model.vocab_size, run.data.tokenizer) == (256, "")
    np.arange(2000, dtype="<u2").tofile(texts / "texts" / "x.bin")
    run, corpus = found(TOKENS, texts)
    assert corpus is not None
    assert run.model.vocab_size == 2048
    larger = replace(TOKENS, model=ModelConfig(vocab_size=5000))
    assert found(larger, texts)[0].model.vocab_size == 5000
    own, corpus = found(RunConfig(data=DataConfig(source="own")), texts)
    assert (own.model.vocab_size, corpus) == (256, None)


def test_a_digest_in_the_file_is_none_of_this_nodes_tokenizer(texts: Path) -> None:
    run = replace(FILES, data=replace(FILES.data, tokenizer="ab" * 32))
    run = replace(run, model=ModelConfig(vocab_size=300))
    with pytest.raises(ConfigError, match=r"but node\.tokenizer has '': leave it out"):
        found(run, texts)


def test_it_can_be_stopped(texts: Path) -> None:
    progress = BuildProgress()
    progress.request_stop()
    node = NodeConfig(corpus=str(texts / "texts"))
    with pytest.raises(BuildStoppedError):
        make_founded(FILES, node, progress, directory=texts / "corpus")


@pytest.mark.long
def test_the_tokenizer_gives_digest_and_vocabulary(texts: Path) -> None:
    path = texts / "tokenizer.json"
    made = train_bpe(["text"], vocab_size=260, out=path)
    run, corpus = found(FILES, texts, tokenizer=str(path))
    assert corpus is not None
    assert (run.data.tokenizer, run.model.vocab_size) == (made.fingerprint, made.vocab_size)
    small = replace(FILES, model=ModelConfig(vocab_size=256))
    with pytest.raises(ConfigError, match="vocab_size is 256, but the tokenizer has 260"):
        found(small, texts, tokenizer=str(path))
