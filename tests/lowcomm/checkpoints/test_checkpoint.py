"""I6: the newest complete checkpoint is always loadable; a torn one is recognised and skipped."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy
from safetensors import safe_open

from lowcomm.checkpoints import checkpoint
from lowcomm.checkpoints.checkpoint import (
    CheckpointCut,
    CheckpointError,
    FragmentCut,
    LayoutEntry,
    PeerCut,
    newest_checkpoint,
    prune,
    read_checkpoint,
    write_checkpoint,
)
from lowcomm.numerics.operations import F32
from lowcomm.numerics.state_digests import state_digest
from protocols.state import gossip_pairs
from tests.marks import few

LAYOUT: list[list[LayoutEntry]] = [
    [("model.embed.weight", (3, 4), 0), ("model.scale", (), 12), ("lm_head.weight", (2, 5), 13)],
    [("model.norm.weight", (6,), 0)],
]
SIZES = (23, 6)
FILES = ("cut.json", "model.safetensors", "momentum.safetensors")


def arrays(seed: int) -> tuple[list[F32], list[F32]]:
    """Any bits at all, NaNs and denormals included, other ones for each seed."""
    words = np.random.default_rng(seed).integers(0, 2**32, 2 * sum(SIZES), np.uint32)
    a, b, c, d = np.split(words.view(np.float32), np.cumsum([*SIZES, *SIZES])[:-1])
    return [a, b], [c, d]


def cut_at(round: int, outer: list[F32], momentum: list[F32]) -> CheckpointCut:  # noqa: A002
    return CheckpointCut(
        log_index=1000 + round,
        lineage="fedcba9876543210",
        run_digest="0123456789abcdef" * 2,
        fragments=tuple(
            FragmentCut(
                version=round - fragment,
                inner_step=20 * round,
                tokens=2**40 + round,
                state_digest=state_digest(outer[fragment], momentum[fragment]),
            )
            for fragment in (0, 1)
        ),
        own=PeerCut(peer="alpha.1f0c9a2e", incarnation=3, data_slot=1, rank_state="ranks-12"),
    )


def write(directory: Path, round: int, seed: int | None = None) -> Path:  # noqa: A002
    outer, momentum = arrays(round if seed is None else seed)
    return write_checkpoint(directory, cut_at(round, outer, momentum), LAYOUT, outer, momentum)


def bits(*lists: list[F32]) -> list[bytes]:
    return [array.tobytes() for each in lists for array in each]


def loaded(path: Path) -> list[bytes]:
    """The bits that are in it, in the order of `bits(*arrays(seed))`."""
    _, _, found = read_checkpoint(path)
    return bits([each.outer for each in found], [each.momentum for each in found])


def flip(path: Path, at: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def truncate(path: Path, size_bytes: int) -> None:
    os.truncate(path, size_bytes)


TEARS: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: (path / "cut.json").unlink(), "cut.json: No such file or directory"),
    (lambda path: (path / "model.safetensors").unlink(), "model.safetensors: No such file"),
    (lambda path: (path / "momentum.safetensors").unlink(), "momentum.safetensors: No such"),
    (lambda path: [(path / name).unlink() for name in FILES], "cut.json: No such file"),
    (lambda path: truncate(path / "cut.json", 0), "cut.json is corrupt: not JSON"),
    (lambda path: truncate(path / "cut.json", 100), "cut.json is corrupt: not JSON"),
    (lambda path: (path / "cut.json").write_text("[]"), "cut.json is corrupt: not a JSON obj"),
    (lambda path: (path / "cut.json").write_text("{}"), "cut.json is corrupt: its digest"),
    (lambda path: truncate(path / "model.safetensors", 0), "has 0 bytes, expected "),
    (lambda path: truncate(path / "model.safetensors", 300), "has 300 bytes, expected "),
    (lambda path: truncate(path / "momentum.safetensors", 9000), "has 9000 bytes, expected "),
    (lambda path: flip(path / "model.safetensors", -1), "model.safetensors is corrupt"),
    (lambda path: flip(path / "momentum.safetensors", 20), "momentum.safetensors is corrupt"),
    (lambda path: (shutil.rmtree(path), path.touch()), "cut.json: Not a directory"),
]


def rewrite(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change the content of a cut.json as another version of us might have written it."""
    record = json.loads((path / "cut.json").read_bytes())
    del record["digest"]
    change(record)
    record["digest"] = checkpoint._digest(record)
    (path / "cut.json").write_bytes(checkpoint._canonical(record))


def writer(mode: str, directory: Path) -> subprocess.Popen[str]:
    script = Path(__file__).parents[1] / "checkpoint_writer.py"
    return subprocess.Popen(
        [sys.executable, str(script), mode, str(directory)],
        env=os.environ | {"PYTHONPATH": str(script.parents[2])},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    outer, momentum = arrays(12)
    cut = cut_at(12, outer, momentum)
    path = write_checkpoint(tmp_path / "checkpoints", cut, LAYOUT, outer, momentum)
    assert path == tmp_path / "checkpoints" / "round-000012"
    assert newest_checkpoint(tmp_path / "checkpoints") == (path, [])
    cut_read, layout, found = read_checkpoint(path)
    assert cut_read == cut
    assert layout == tuple(map(tuple, LAYOUT))
    assert bits([each.outer for each in found]) == bits(outer)
    assert bits([each.momentum for each in found]) == bits(momentum)
    found[0].outer[0] = 1  # Fresh arrays: the caller trains on them.
    assert sorted(each.name for each in path.iterdir()) == sorted(FILES)


def test_all_is_on_the_disk_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut would show: no other test sees a missing fsync."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        calls.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        calls.append(f"{source.name} -> {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    write(tmp_path / "new", 1)
    hidden = ".writing-round-000001"
    assert calls == [
        ".",  # Its entry "new".
        f"new/{hidden}/model.safetensors",
        f"new/{hidden}/momentum.safetensors",
        f"new/{hidden}/cut.json",
        f"new/{hidden}",
        f"{hidden} -> round-000001",
        "new",
    ]


def test_the_model_file_is_an_export(tmp_path: Path) -> None:
    outer, _ = arrays(1)
    path = write(tmp_path, 1)
    tensors = safetensors_numpy.load_file(path / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: shape for entries in LAYOUT for name, shape, _ in entries
    }
    assert tensors["lm_head.weight"].tobytes() == outer[0][13:].tobytes()
    assert tensors["model.norm.weight"].tobytes() == outer[1].tobytes()
    with cast(Any, safe_open)(path / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}  # Or transformers refuses to load it.


def test_the_newest_is_the_highest_round_not_the_last_name(tmp_path: Path) -> None:
    for number in (999_999, 1_000_000, 7):
        write(tmp_path, number)
    assert newest_checkpoint(tmp_path) == (tmp_path / "round-1000000", [])


def test_nowhere_and_nothing(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) == (None, [])
    assert newest_checkpoint(tmp_path / "missing") == (None, [])
    assert prune(tmp_path / "missing", keep=1) == []
    with pytest.raises(CheckpointError, match=r"round-000001: cut\.json: No such file"):
        read_checkpoint(tmp_path / "round-000001")


@pytest.mark.parametrize(("tear", "reason"), TEARS)
def test_a_torn_checkpoint_is_skipped_with_its_reason(
    tmp_path: Path, tear: Callable[[Path], object], reason: str
) -> None:
    complete, torn = write(tmp_path, 1), write(tmp_path, 2)
    tear(torn)
    newest, reasons = newest_checkpoint(tmp_path)
    assert newest == complete
    assert len(reasons) == 1
    assert reasons[0].startswith("round-000002: ")
    assert reason in reasons[0]
    assert loaded(complete) == bits(*arrays(1))
    with pytest.raises(CheckpointError, match="round-000002"):
        read_checkpoint(torn)


@pytest.mark.parametrize("name", few(FILES, count=2))
def test_every_flipped_byte_and_every_truncation_is_noticed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 1)
    file = path / name
    whole = file.read_bytes()
    chance = random.Random(name)
    for at in range(len(whole)):
        flip(file, at, bit=chance.randrange(8))
        assert not checkpoint._complete(path, digests=True), f"byte {at} flipped"
        file.write_bytes(whole[:at])
        assert not checkpoint._complete(path, digests=True), f"cut off at {at}"
        file.write_bytes(whole)
    assert loaded(path) == bits(*arrays(1))


def test_a_failed_read_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    rewrite(path, lambda record: record.update(cut={"log_index": "1"}, layout=7))
    with pytest.raises(CheckpointError, match=r"cut\.json: ") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_another_schema_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    rewrite(path, lambda record: record.update(schema=4, news=True))
    with pytest.raises(CheckpointError, match="has schema 4; this version reads 3"):
        read_checkpoint(path)


def test_arrays_of_another_state_are_refused(tmp_path: Path) -> None:
    """The files are whole, but they are not what the cut says."""
    path, other = write(tmp_path, 1), write(tmp_path, 2)
    theirs = json.loads((other / "cut.json").read_bytes())
    shutil.copy(other / "momentum.safetensors", path)
    rewrite(path, lambda record: record.update(momentum=theirs["momentum"]))
    with pytest.raises(CheckpointError, match="the state of fragment 0 has digest"):
        read_checkpoint(path)


def test_a_state_that_nobody_else_has_may_be_named_by_its_round(tmp_path: Path) -> None:
    outer, momentum = arrays(4)
    cut = cut_at(4, outer, momentum)
    named = tuple(
        replace(each, state_digest=gossip_pairs.state_digest(each.version))
        for each in cut.fragments
    )
    path = write_checkpoint(tmp_path, replace(cut, fragments=named), LAYOUT, outer, momentum)
    assert loaded(path) == bits(outer, momentum)
    wrong = tuple(replace(each, state_digest=gossip_pairs.state_digest(9)) for each in named)
    with pytest.raises(CheckpointError, match="the cut says"):
        write_checkpoint(tmp_path, replace(cut, fragments=wrong), LAYOUT, outer, momentum)


def test_an_unfinished_write_is_named_ignored_and_cleared_away(tmp_path: Path) -> None:
    complete = write(tmp_path, 1)
    shutil.copytree(complete, tmp_path / ".writing-round-000002")  # All but the rename.
    reasons = [".writing-round-000002: its write did not finish"]
    assert newest_checkpoint(tmp_path) == (complete, reasons)
    assert newest_checkpoint(tmp_path) == (complete, reasons)
    path = write(tmp_path, 2)
    assert newest_checkpoint(tmp_path) == (path, [])
    assert loaded(path) == bits(*arrays(2))


def test_a_namesake_is_replaced_and_until_then_found(tmp_path: Path) -> None:
    path = write(tmp_path, 4)
    assert write(tmp_path, 4, seed=77) == path
    assert loaded(path) == bits(*arrays(77))
    assert list(tmp_path.iterdir()) == [path]
    aside = path.rename(tmp_path / "round-000004.old")  # A crash between the two renames.
    assert newest_checkpoint(tmp_path) == (aside, [])
    write(tmp_path, 4, seed=78)
    assert newest_checkpoint(tmp_path) == (path, [])
    assert loaded(path) == bits(*arrays(78))
    assert list(tmp_path.iterdir()) == [path]
    shutil.copytree(path, aside)  # A crash before the one aside was deleted.
    write(tmp_path, 4, seed=79)
    assert list(tmp_path.iterdir()) == [path]
    flip(path / "model.safetensors", -1)
    write(tmp_path, 4, seed=80)
    assert loaded(path) == bits(*arrays(80))


def test_a_crash_between_two_names_leaves_the_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = write(tmp_path, 4), os.rename

    def crash(source: Path, target: Path) -> None:
        if source.name.startswith(".writing"):
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 4, seed=77)
    found, _ = newest_checkpoint(tmp_path)
    assert found is not None
    assert found == path.with_name("round-000004.old")
    assert loaded(found) == bits(*arrays(4))


def test_prune_keeps_the_newest_complete_ones(tmp_path: Path) -> None:
    paths = [write(tmp_path, number) for number in range(1, 7)]
    (tmp_path / "ranks-12").mkdir()
    (tmp_path / ".writing-round-000009").mkdir()
    flip(paths[5] / "model.safetensors", -1)  # Newer than the newest complete: left for a person.
    truncate(paths[3] / "model.safetensors", 50)  # Does not count as kept.
    assert prune(tmp_path, keep=2) == [
        ".writing-round-000009",
        "round-000004",
        "round-000002",
        "round-000001",
    ]
    left = ["ranks-12", "round-000003", "round-000005", "round-000006"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    assert prune(tmp_path, keep=1) == ["round-000003"]
    assert prune(tmp_path, keep=1) == []
    assert newest_checkpoint(tmp_path)[0] == paths[4]


def test_prune_deletes_nothing_when_nothing_is_complete(tmp_path: Path) -> None:
    for number in (1, 2):
        flip(write(tmp_path, number) / "model.safetensors", -1)
    assert prune(tmp_path, keep=1) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cut_of_other_arrays_is_not_written(tmp_path: Path) -> None:
    before = write(tmp_path, 1)
    outer, momentum = arrays(2)
    cut = cut_at(2, outer, momentum)
    momentum[1][0] = 1
    with pytest.raises(CheckpointError, match="the state of fragment 1 has digest"):
        write_checkpoint(tmp_path, cut, LAYOUT, outer, momentum)
    assert newest_checkpoint(tmp_path) == (before, [])
    assert list(tmp_path.iterdir()) == [before]


def test_a_cut_without_fragments_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        replace(cut_at(1, *arrays(1)), fragments=())


def test_a_directory_that_cannot_be_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"^cannot write .*round-000001: Not a directory$"):
        write(tmp_path / "file", 1)
    with pytest.raises(CheckpointError, match=r"^cannot read .*file: Not a directory$"):
        newest_checkpoint(tmp_path / "file")


def test_a_full_disk_is_one_clear_line_and_leaves_the_one_before(tmp_path: Path) -> None:
    process = writer("full", tmp_path)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.startswith(f"cannot write {tmp_path}/round-000002: model.safetensors: ")
    assert "File too large" in said
    assert "\n" not in said


def test_a_crash_before_any_file_operation_leaves_a_loadable_one(tmp_path: Path) -> None:
    process = writer("crash", tmp_path)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0  # It asserts the rest.
    assert int(said) >= 25, "it no longer dies at each of the operations"


@pytest.mark.long
def test_kill_9_at_random_moments_leaves_a_loadable_one(tmp_path: Path) -> None:
    chance, newest, unfinished = random.Random(9), Path(), 0
    for _ in range(14):
        process = writer("endless", tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0, 0.08))
        process.kill()
        process.communicate(timeout=60)
        path, reasons = newest_checkpoint(tmp_path)
        assert path is not None, reasons
        assert read_checkpoint(path)[0].round >= int(newest.name[6:12] or 0)
        newest = path
        unfinished += bool(reasons)
    assert unfinished > 0, "no kill hit a write: this test can not fail"
