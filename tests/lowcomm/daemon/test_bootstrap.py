"""What a node makes before it takes part: its corpus, if it does not end meanwhile, and its outer
state."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lowcomm.config.schema import DataConfig, FileConfig, NodeConfig, RunConfig, run_to_json
from lowcomm.daemon import daemon as daemon_module
from lowcomm.daemon.bootstrap import _hold, _join_corpus
from lowcomm.daemon.daemon import Daemon
from lowcomm.data import corpus, founded_corpus
from lowcomm.data.corpus import MANIFEST, Corpus, build_corpus
from lowcomm.data.joined_corpus import open_joined
from lowcomm.data.manifest import file_marks
from lowcomm.startup.start_options import StartOptions
from peers.sockets.listener import BoundSocket, listen
from protocols.messages import log_entries as e
from protocols.types.errors import ConfigError, RefusedError
from protocols.types.ids import PeerId, TensorSpec
from tests.lowcomm.daemon.test_daemon import daemon

RUN = e.Run(77, run_to_json(RunConfig()), "c0", 1, 1, 1, b"", (1,), PeerId("beta.1f0c9a2e"))


def new_daemon(directory: Path, folder: Path, listening: BoundSocket) -> Daemon:
    """One that founds a run on the texts of a folder."""
    run = RunConfig(data=DataConfig(source="files"))
    config = FileConfig(run=run, node=NodeConfig(name="alpha", corpus=str(folder)))
    start = StartOptions(kind="new", command=("sleep", "100"))
    return Daemon(config, directory=directory, start=start, listening=listening)


def note_release(
    made: Daemon, monkeypatch: pytest.MonkeyPatch, order: list[str], free: threading.Event
) -> None:
    """The end of its lock on the directory goes into `order`, and sets `free`."""
    close = made._directory.close

    def released() -> None:
        order.append("released")
        free.set()
        close()

    monkeypatch.setattr(made._directory, "close", released)


@pytest.fixture
def listening() -> Iterator[BoundSocket]:
    bound = listen("127.0.0.1:0")
    yield bound
    bound.close()


@pytest.mark.asyncio
async def test_its_directory_is_locked_until_no_thread_builds_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: BoundSocket
) -> None:
    begun, free, order = threading.Event(), threading.Event(), list[str]()

    def endless(*_: object, **__: object) -> Iterator[bytes]:
        begun.set()
        yield from itertools.repeat(b"a text\n", 10**7)

    def build(*args: object, **options: object) -> Corpus:
        try:
            return build_corpus(*args, **options)  # pyright: ignore
        finally:
            free.wait(0.3)
            order.append("built")

    monkeypatch.setattr(corpus, "documents", endless)
    monkeypatch.setattr(founded_corpus, "build_corpus", build)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("a text")
    made = new_daemon(tmp_path / "alpha", tmp_path / "texts", listening)
    note_release(made, monkeypatch, order, free)
    life = asyncio.create_task(made.run())
    assert await asyncio.to_thread(begun.wait, 20)
    made.shutdown.leave("SIGINT")
    assert await life == 0
    assert order == ["built", "released"]
    assert list((tmp_path / "alpha" / "corpus").iterdir()) == []


@pytest.mark.asyncio
async def test_a_joiner_ends_its_checks_before_its_directory_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: BoundSocket
) -> None:
    begun, free, order = asyncio.Event(), threading.Event(), list[str]()

    async def enter_run(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(free.wait, 0.3)
            order.append("checked")

    monkeypatch.setattr(daemon_module, "enter_run", enter_run)
    made = new_daemon(tmp_path / "alpha", tmp_path, listening)
    note_release(made, monkeypatch, order, free)
    life = asyncio.create_task(made.run())
    await asyncio.to_thread(int)  # Its tasks begin.
    made.check_run(RUN)
    await begun.wait()
    made.shutdown.leave("SIGINT")
    assert await life == 0
    assert order == ["checked", "released"]


@pytest.mark.asyncio
@pytest.mark.parametrize("named", [True, False])
async def test_the_daemon_makes_the_corpus_of_a_joiner_with_a_program_that_has_one(
    named: bool, tmp_path: Path, listening: BoundSocket
) -> None:
    """Ranks have no time for it, and only they know whether they use it."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"text {number}, longer than a window")
    data = DataConfig(source="files", window=8, eval_window=8, held_out_below=64)
    founded = build_corpus(data, folder=str(folder), directory=tmp_path / "founded")
    agreed = RunConfig(data=data)
    run = replace(RUN, corpus_files=file_marks(founded.files))
    made = new_daemon(tmp_path / "alpha", folder if named else Path(), listening)
    try:
        context, directory = made.context, made.context.corpus_directory
        if not named:
            node = replace(context.node, corpus="")
            context.config = replace(context.config, node=node)
        same = replace(run, corpus_digest=founded.digest)
        await _join_corpus(context, agreed, same, program=True)
        assert (directory / MANIFEST).exists() == named
        if named:
            assert open_joined(agreed, context.node, directory=directory).digest == founded.digest
        other = replace(run, corpus_digest="ab" * 32)
        await _join_corpus(context, agreed, other, program=True)
        if named:
            with pytest.raises(ConfigError, match="this node's text is not the run's"):
                open_joined(agreed, context.node, directory=directory)
            with pytest.raises(RefusedError, match="this node's text is not the run's"):
                await _join_corpus(context, agreed, other, program=False)
    finally:
        made.context.checkpoint_schedule.close()
        made.context.event_log.close()
        made._wal.close()
        made._directory.close()


def holds(made: Daemon, elements: int, *, outer_state: str) -> Path | None:
    """The directory of its arrays."""
    context = made.context
    node = replace(context.node, outer_state=outer_state, memory_max_bytes=1 << 62)
    context.config = replace(context.config, node=node)
    _hold(context, made.ranks, RunConfig(), [TensorSpec(0, "w", (elements,), 0)])
    assert context.replica is not None
    return context.replica.arrays.directory


def test_arrays_lie_in_files_of_the_nodes_directory_if_it_says_so(tmp_path: Path) -> None:
    with daemon(tmp_path / "one") as one, daemon(tmp_path / "other") as other:
        assert holds(one, 1000, outer_state="memory") is None
        assert holds(other, 1000, outer_state="file") == tmp_path / "other"


def test_a_model_that_does_not_fit_on_the_disk_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    with daemon(tmp_path) as made:
        with pytest.raises(ConfigError, match=r"needs about 1441792\.00 GiB of disk, and .* free"):
            holds(made, 1 << 45, outer_state="file")
        assert made.context.replica is None
