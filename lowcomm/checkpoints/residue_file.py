"""Residues of error feedback beside a checkpoint: this node's own part of the cut.

    <checkpoint>/residues.safetensors     one fp32 vector for each fragment, "0", "1", ...; the
                                          file's metadata has each vector's state and digest

Another node loads the checkpoint without them. A residue belongs to one state of its fragment and
is used with no other; a damaged residue is treated as missing. Must NOT decide when a residue
changes (outer_state/error_feedback.py).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash

from lowcomm.checkpoints.checkpoint import CheckpointError, FragmentCut
from lowcomm.config.schema import validate
from lowcomm.numerics.kernels import F32
from protocols.types import ConfigError

FILE = "residues.safetensors"
ORIGINS = "seal"
"""Key in the metadata of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Of:
    """The state of a fragment that one residue belongs to, and the residue's own digest."""

    version: int
    state_digest: str
    xxh3_128: str


def write_residues(
    directory: Path, fragments: Sequence[FragmentCut], residues: Sequence[F32]
) -> list[Path]:
    """Write the file into a checkpoint that is being made; return the paths to sync.

    `residues`: fp32, one for each fragment, at the version that the cut has. If there are none,
    nothing is written. Raises CheckpointError.
    """
    from safetensors import SafetensorError, numpy

    if not residues:
        return []
    origins = [
        asdict(_Of(version=cut.version, state_digest=cut.state_digest, xxh3_128=_digest(residue_P)))
        for cut, residue_P in zip(fragments, residues, strict=True)
    ]
    tensors = {str(fragment): residue_P for fragment, residue_P in enumerate(residues)}
    try:
        numpy.save_file(tensors, directory / FILE, metadata={ORIGINS: json.dumps(origins)})
    except SafetensorError as error:  # safetensors raises its own type, also for a full disk.
        raise CheckpointError(f"{FILE}: {error}") from error
    return [directory / FILE]


def find_residue(
    checkpoints: Path, fragment: int, version: int, state_digest: str, *, elements: int
) -> F32 | None:
    """The residue of exactly this state, fp32 [elements], if a checkpoint in this directory has it;
    otherwise None."""
    for path in sorted(checkpoints.glob(f"round-*/{FILE}"), reverse=True):
        found = _read(path, fragment, version, state_digest)
        if found is not None and found.shape == (elements,) and found.dtype == np.float32:
            return found
    return None


def _read(path: Path, fragment: int, version: int, state_digest: str) -> F32 | None:
    from safetensors import SafetensorError, safe_open

    try:
        with cast(Any, safe_open)(
            path, framework="numpy"
        ) as file:  # safetensors has no annotations.
            origins = cast(
                list[_Of], validate(list[_Of], json.loads(file.metadata()[ORIGINS]), where="")
            )
            of = origins[fragment]
            if (of.version, of.state_digest) != (version, state_digest):
                return None
            residue_P = cast(F32, file.get_tensor(str(fragment)))
    except (OSError, SafetensorError, ConfigError, ValueError, LookupError, TypeError):
        return None  # Damaged or not ours: beginning without one costs a little of a contribution.
    return residue_P if _digest(residue_P) == of.xxh3_128 else None


def _digest(residue_P: F32) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(residue_P).data)
