"""The corpus of a joiner: compared with the run's when it is used, and not before."""

from pathlib import Path

import pytest

from lowcomm.config.schema import DataConfig, NodeConfig, RunConfig
from lowcomm.data.corpus import MANIFEST, Corpus, build_corpus
from lowcomm.data.joined_corpus import ExpectedCorpus, make_joined, open_joined
from lowcomm.data.manifest import file_marks
from protocols.types.errors import ConfigError, RefusedError

CONFIG = DataConfig(source="files", window=8, eval_window=8, held_out_below=64)


def texts(folder: Path) -> NodeConfig:
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"text {number}, longer than a window")
    return NodeConfig(corpus=str(folder))


@pytest.fixture
def expected(tmp_path: Path) -> ExpectedCorpus:
    """That of the node that founded the run."""
    node = texts(tmp_path / "founder")
    corpus = build_corpus(CONFIG, folder=node.corpus, directory=tmp_path / "built")
    return ExpectedCorpus(corpus.digest, file_marks(corpus.files).hex(), "beta")


def opened(node: NodeConfig, directory: Path) -> Corpus:
    return open_joined(RunConfig(data=CONFIG), node, directory=directory)


def test_it_is_made_when_a_rank_uses_it(expected: ExpectedCorpus, tmp_path: Path) -> None:
    node, directory = texts(tmp_path / "copy"), tmp_path / "corpus"
    with pytest.raises(ConfigError, match="no complete corpus"):
        opened(node, directory)
    expected.note(directory)
    assert not (directory / MANIFEST).exists()
    assert opened(node, directory).digest == expected.digest
    made = (directory / MANIFEST).stat().st_ino
    assert len(opened(node, directory).train) > 0
    assert (directory / MANIFEST).stat().st_ino == made


def test_another_one_is_refused_with_the_names_of_node_and_file(
    expected: ExpectedCorpus, tmp_path: Path
) -> None:
    node, directory = texts(tmp_path / "copy"), tmp_path / "corpus"
    (tmp_path / "copy" / "07.txt").write_text("another text 7, longer than a window")
    expected.note(directory)
    message = r"on beta 07\.txt \(36 bytes\) has another content in the run; every node needs"
    with pytest.raises(ConfigError, match=message):
        opened(node, directory)
    with pytest.raises(RefusedError, match=message):
        make_joined(CONFIG, node, expected, directory=directory)
    (tmp_path / "copy" / "07.txt").unlink()
    with pytest.raises(ConfigError, match="on beta 1 of 40 files of the run are not here"):
        opened(node, directory)


def test_the_run_has_a_tokenizer_and_this_node_none(
    expected: ExpectedCorpus, tmp_path: Path
) -> None:
    config = DataConfig(source="files", tokenizer="ab" * 32)
    message = "has the digest abababab, and on beta node.tokenizer is not set: set node.tokenizer"
    with pytest.raises(RefusedError, match=message):
        make_joined(config, NodeConfig(), expected, directory=tmp_path / "corpus")
