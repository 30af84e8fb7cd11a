"""The file of a model's frozen tensors in a node's directory, which completes its checkpoints.

    <node's directory>/frozen.safetensors    names, shapes, types and values as in the model

They never change, so the file is written once, by the ranks, while they attach: the daemon has no
copy of a frozen tensor. Must NOT import torch, nor know how ranks write.
"""

from pathlib import Path

from peers.storage import sync

FROZEN = "frozen.safetensors"
_WRITING = ".writing-frozen.safetensors"


def path_to_write(directory: Path) -> str:
    """The path to which the ranks write the file; "" if it is complete already."""
    return "" if (directory / FROZEN).exists() else str(directory / _WRITING)


def publish(directory: Path) -> None:
    """All ranks have written their parts and synced them: give the file its name. Does nothing if
    they had no room for it. Raises OSError."""
    written, final = directory / _WRITING, directory / FROZEN
    if written.exists() and not final.exists():
        written.rename(final)
        sync(directory)
