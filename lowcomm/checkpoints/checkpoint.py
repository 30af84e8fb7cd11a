"""Checkpoints: one cut of the run on disk, complete or not present (I6).

    <directory>/round-000012/model.safetensors     outer parameters, named and shaped as in the
                                                   model: exporting is copying
                             momentum.safetensors  outer momentum under the same names; in a
                                                   stepwise run the other arrays of the state
                             cut.json              the cut; sizes and digests of the files; its
                                                   own digest
                             log.msgpack           the state of the log at the cut: with it a node
                                                   that has lost its log begins another one
                             residues.safetensors  residues of this peer, if any (residue_file.py)

A checkpoint is written to a hidden directory beside its final one (`cut.json` last), synced, then
renamed, so a crash at any moment leaves the previous checkpoint. Only one process and thread writes
to a directory. Must NOT import torch, unpickle anything, or choose the cut that a run continues
from.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgpack
import xxhash

from lowcomm.checkpoints.tensor_files import (
    CheckpointError,
    Layout,
    LayoutEntry,
    beside,
    nothing,
    read_arrays,
    write_arrays,
)
from lowcomm.config.schema import validate
from lowcomm.numerics.arrays import IN_MEMORY, LargeArrays
from lowcomm.numerics.operations import F32
from lowcomm.numerics.state_digests import state_digest
from peers.storage import make_empty, sync
from protocols.messages import Snapshot
from protocols.state import gossip_pairs
from protocols.types import ALL_REMAIN, ConfigError, Remaining
from protocols.wire import decode_image

CHECKPOINTS = "checkpoints"
"""Folder in a node's directory with its checkpoints."""
SCHEMA = 3
MODEL, MOMENTUM, CUT = "model.safetensors", "momentum.safetensors", "cut.json"
LOG = "log.msgpack"

_NAME = re.compile(r"round-(\d{6,})(\.old)?")
_WRITING = ".writing-"


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentCut:
    """The position of one fragment at the cut."""

    version: int
    """Its last committed round."""
    inner_step: int
    """Committed inner steps, counted over the whole run."""
    tokens: int
    """Committed tokens."""
    state_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCut:
    """The part of a cut that belongs to this peer; another peer loads the checkpoint without it."""

    peer: str
    incarnation: int
    data_slot: int
    rank_state: str
    """Name of the directory with the snapshot of the ranks; "" if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCut:
    """The run at one index of its log."""

    log_index: int
    lineage: str
    run_digest: str
    fragments: tuple[FragmentCut, ...]
    own: PeerCut
    remaining: Remaining = ALL_REMAIN
    """The samples that are not committed at that round."""
    arrays: tuple[str, ...] = ()
    """A stepwise run's state is one vector; these are the names of its arrays, the parameters
    first. Each array has the shapes of the parameters. In a run of rounds: empty."""

    def __post_init__(self) -> None:
        assert self.fragments, "a cut has at least fragment 0"

    @property
    def round(self) -> int:
        """The round that names the checkpoint: the version of fragment 0, the anchor."""
        return self.fragments[0].version


class FragmentArrays(NamedTuple):
    """The outer state of one fragment: one-dimensional fp32 arrays with as many elements as its
    layout."""

    outer: F32
    momentum: F32
    """Empty in all fragments if the method keeps no momentum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileDigest:
    size_bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The content of `cut.json`, except the digest over all of it."""

    schema: int
    cut: CheckpointCut
    layout: tuple[tuple[LayoutEntry, ...], ...]
    model: _FileDigest
    momentum: _FileDigest
    log: _FileDigest | None = None
    """None if an earlier version of lowcomm wrote the checkpoint, without a log file."""


def write_checkpoint(
    directory: Path,
    cut: CheckpointCut,
    layout: Layout,
    outer: Sequence[F32],
    momentum: Sequence[F32],
    own: Callable[[Path], Iterable[Path]] = lambda _: (),
    *,
    log: bytes = b"",
) -> Path:
    """Write `<directory>/round-<cut.round>` durably, and return its path.

    `outer` and `momentum` hold one array for each fragment, as in FragmentArrays; they must not
    change meanwhile. `own` writes this peer's own files into the checkpoint, and returns the paths
    to sync. `log`: the result of `pack_log` at the cut, if the log is known. An older checkpoint of
    the same round is replaced. Raises CheckpointError if the disk refuses, if the layout does not
    fit the arrays, or if the arrays' digest is not the cut's; an earlier checkpoint then stays.
    """
    assert len(cut.fragments) == len(layout) == len(outer) == len(momentum)
    final = directory / f"round-{cut.round:06d}"
    temporary = directory / (_WRITING + final.name)
    kept = (
        beside(layout, cut.arrays[1:]) if any(array.size for array in momentum) else nothing(layout)
    )
    try:
        make_empty(temporary)
        record = _Record(
            schema=SCHEMA,
            cut=cut,
            layout=tuple(tuple(entries) for entries in layout),
            model=_written(temporary / MODEL, layout, outer),
            momentum=_written(temporary / MOMENTUM, kept, momentum),
            log=_log_written(temporary / LOG, log) if log else None,
        )
        _check_states(cut, map(FragmentArrays, outer, momentum))
        body = asdict(record)
        (temporary / CUT).write_bytes(_canonical({**body, "digest": _digest(body)}))
        for path in (temporary / CUT, *own(temporary)):
            sync(path)
        sync(temporary)
        _publish(temporary, final)
    except (OSError, CheckpointError) as error:
        shutil.rmtree(temporary, ignore_errors=True)  # Half a file would only fill a full disk.
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"cannot write {final}: {why}") from error
    return final


def newest_checkpoint(directory: Path) -> tuple[Path | None, list[str]]:
    """Find the complete checkpoint of the highest round, and verify every byte of it.

    Also returns one line about each newer checkpoint that was passed over, and about each
    unfinished one. Raises CheckpointError if the directory itself cannot be read.
    """
    reasons = [f"{path.name}: its write did not finish" for path in _unfinished(directory)]
    for path in _candidates(directory):
        try:
            _inspect(path, digests=True)
        except CheckpointError as error:
            reasons.append(f"{path.name}: {error}")
        else:
            return path, reasons
    return None, reasons


def read_checkpoint(
    path: Path, arrays: LargeArrays = IN_MEMORY
) -> tuple[CheckpointCut, Layout, tuple[FragmentArrays, ...]]:
    """Load a checkpoint into fresh arrays, made by `arrays`: one pair for each fragment.

    Raises CheckpointError unless the files' digests and each fragment's state digest are right.
    """
    try:
        record = _inspect(path, digests=True)
        outer = read_arrays(path / MODEL, record.layout, arrays)
        kept = beside(record.layout, record.cut.arrays[1:])
        momentum = read_arrays(path / MOMENTUM, kept, arrays, may_lack=True)
        state = tuple(map(FragmentArrays, outer, momentum))
        _check_states(record.cut, state)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return record.cut, record.layout, state


def inspect_checkpoint(path: Path) -> tuple[CheckpointCut, Layout]:
    """Verify every byte of a checkpoint, and return its cut and layout without its arrays. Raises
    CheckpointError if the checkpoint is not complete."""
    try:
        record = _inspect(path, digests=True)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return record.cut, record.layout


def read_cut(path: Path) -> CheckpointCut:
    """Read a checkpoint's cut, without its arrays. Raises CheckpointError if the checkpoint is not
    complete."""
    return _inspect(path, digests=False).cut


def pack_log(snapshot: Snapshot, term: int) -> bytes:
    """Pack the state of the log at the cut and the newest term of that time, for
    `write_checkpoint`."""
    fields = [term, snapshot.index, snapshot.term, snapshot.image]
    return cast(bytes, msgpack.packb(fields))


def model_file(path: Path) -> Path:
    """The file with the parameters of a complete checkpoint, verified byte by byte, with the names
    and shapes of the model. Raises CheckpointError."""
    inspect_checkpoint(path)
    return path / MODEL


def read_log(path: Path) -> tuple[Snapshot, int]:
    """Read the arguments of `pack_log` back from a checkpoint. Raises CheckpointError if the
    checkpoint is not complete, or its log cannot be read."""
    if _inspect(path, digests=False).log is None:
        raise CheckpointError(
            f"{path} has no {LOG}, because an earlier version of lowcomm wrote it: the state of "
            "its run's log is not known"
        )
    try:
        raw = cast(object, msgpack.unpackb((path / LOG).read_bytes()))
        match raw:
            case [int(term), int(index), int(of), bytes(image)]:
                decode_image(image)
                return Snapshot(index, of, image), term
            case _:
                raise CheckpointError(f"{path / LOG} has other fields than this version writes")
    except (OSError, ValueError) as error:  # A WireError is a ValueError too.
        raise CheckpointError(f"{path / LOG}: {error}") from error


def prune(directory: Path, keep: int) -> list[str]:
    """Delete all but the `keep` newest complete checkpoints; return the names of the deleted ones.

    The newest complete checkpoint is verified byte by byte and always kept, as is anything newer;
    of older ones only the sizes are checked. If no checkpoint is complete, nothing is deleted;
    otherwise unfinished ones are deleted too. Raises CheckpointError if the disk refuses.
    """
    assert keep >= 1, "the newest complete checkpoint is never deleted"
    newest, _ = newest_checkpoint(directory)
    if newest is None:
        return []
    candidates = _candidates(directory)
    kept, doomed = 1, _unfinished(directory)
    for path in candidates[candidates.index(newest) + 1 :]:
        if kept < keep and _complete(path, digests=False):
            kept += 1
        else:
            doomed.append(path)
    for path in doomed:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise CheckpointError(f"cannot delete {path}: {error.strerror}") from error
    return [path.name for path in doomed]


def _candidates(directory: Path) -> list[Path]:
    """Paths that are named like a checkpoint, newest first. A `.old` one was replaced by the one of
    the same name."""
    named = [(path, _NAME.fullmatch(path.name)) for path in _listed(directory)]
    found = [(int(match[1]), match[2] is None, path) for path, match in named if match]
    return [path for *_, path in sorted(found, reverse=True)]


def _unfinished(directory: Path) -> list[Path]:
    return [path for path in _listed(directory) if path.name.startswith(_WRITING)]


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {directory}: {error.strerror}") from error


def _complete(path: Path, *, digests: bool) -> bool:
    try:
        _inspect(path, digests=digests)
    except CheckpointError:
        return False
    return True


def _inspect(path: Path, *, digests: bool) -> _Record:
    """Read `cut.json`, and compare the sizes of the files with it; with `digests`, every byte
    too."""
    try:
        record = _decode((path / CUT).read_bytes())
        _check_file(path / MODEL, record.model, digests=digests)
        _check_file(path / MOMENTUM, record.momentum, digests=digests)
        if record.log is not None:
            _check_file(path / LOG, record.log, digests=digests)
    except OSError as error:
        name = Path(str(error.filename)).name
        raise CheckpointError(f"{name}: {error.strerror}") from error
    return record


def _check_file(path: Path, expected: _FileDigest, *, digests: bool) -> None:
    size_bytes = path.stat().st_size
    if size_bytes != expected.size_bytes:
        raise CheckpointError(f"{path.name} has {size_bytes} bytes, expected {expected.size_bytes}")
    if digests and _file_digest(path) != expected.xxh3_128:
        raise CheckpointError(f"{path.name} is corrupt: its digest differs from the one in {CUT}")


def _decode(text: bytes) -> _Record:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{CUT} is corrupt: not JSON") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{CUT} is corrupt: not a JSON object")
    body = cast(dict[str, Any], raw)
    if body.pop("digest", None) != _digest(body):
        raise CheckpointError(f"{CUT} is corrupt: its digest does not match its content")
    if body.get("schema") != SCHEMA:
        raise CheckpointError(f"{CUT} has schema {body.get('schema')}; this version reads {SCHEMA}")
    try:
        return cast(_Record, validate(_Record, body, where=CUT))
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def _canonical(record: object) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def _digest(body: object) -> str:
    return xxhash.xxh3_128_hexdigest(_canonical(body))


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _written(path: Path, layout: Layout, arrays: Sequence[F32]) -> _FileDigest:
    write_arrays(path, layout, arrays)
    sync(path)
    return _FileDigest(size_bytes=path.stat().st_size, xxh3_128=_file_digest(path))


def _log_written(path: Path, log: bytes) -> _FileDigest:
    path.write_bytes(log)
    sync(path)
    return _FileDigest(size_bytes=len(log), xxh3_128=_file_digest(path))


def _digest_of(state: FragmentArrays) -> str:
    """The digest of a stepwise run's state, as lowcomm/outer_state/step_replica.py computes it over
    the whole vector."""
    found = xxhash.xxh3_128()
    for array in state:
        found.update(array.data)
    return found.hexdigest()


def _check_states(cut: CheckpointCut, arrays: Iterable[FragmentArrays]) -> None:
    for fragment, (place, state) in enumerate(zip(cut.fragments, arrays, strict=True)):
        if place.state_digest == gossip_pairs.state_digest(place.version):
            continue  # A digest of the round number only; the files' own digests were checked.
        digest = _digest_of(state) if cut.arrays else state_digest(state.outer, state.momentum)
        if place.state_digest != digest:
            raise CheckpointError(
                f"the state of fragment {fragment} has digest {digest}, "
                f"the cut says {place.state_digest}"
            )


def _publish(temporary: Path, final: Path) -> None:
    """Rename a checkpoint into place. A directory cannot replace one that is not empty in one step,
    so a complete checkpoint of the same name is first moved aside, where `newest_checkpoint` still
    finds it."""
    old = final.with_name(final.name + ".old")
    if final.exists() and _complete(final, digests=True):
        if old.exists():
            shutil.rmtree(old)
        final.rename(old)
    elif final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    sync(final.parent)
    if old.exists():
        shutil.rmtree(old)
