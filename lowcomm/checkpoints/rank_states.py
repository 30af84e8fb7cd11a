"""The states of a node's ranks on disk: their directories, and which of them are complete.

    <node's directory>/rank-state/round-000012/rank-0-of-2.safetensors

Each rank writes a file of its own. Must NOT read one, nor import torch.
"""

import re
from pathlib import Path

RANK_STATES = "rank-state"
"""Folder in a node's directory with the state that each rank needs to continue from a
checkpoint."""
_FILE = re.compile(r"rank-(\d+)-of-(\d+)\.[a-z]+")
_NAME = re.compile(r"round-([0-9]+)")


def round_of(name: str) -> int:
    """The round of a rank state with this name; -1 if it is the name of none. Names of a million
    rounds or more do not sort as texts."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match is not None else -1


def complete_for(rank_state: Path) -> frozenset[int]:
    """The numbers of ranks for which the state is complete: each of so many has written its file.
    Files that a part of the ranks wrote do not fit together with those of an earlier round."""
    ranks: dict[int, set[int]] = {}
    for path in rank_state.glob("rank-*"):
        if match := _FILE.fullmatch(path.name):
            ranks.setdefault(int(match[2]), set()).add(int(match[1]))
    return frozenset(number for number, found in ranks.items() if found == set(range(number)))


def newest_rank_state(directory: Path, name: str) -> Path | None:
    """The newest complete rank state in a node's directory that is not newer than the one of this
    name; None if there is none."""
    states = {round_of(path.name): path for path in (directory / RANK_STATES).glob("round-*")}
    for round_ in sorted(states.keys() - {-1}, reverse=True):
        if round_ <= round_of(name) and complete_for(states[round_]):
            return states[round_]
    return None
