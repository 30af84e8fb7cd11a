"""Arrays of a model in safetensors files, named and shaped as its parameters: what checkpoints hold.

Must NOT import torch, nor know what a checkpoint is (checkpoint.py).
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from lowcomm.outer import F32
from protocols.errors import LowcommError

LayoutEntry = tuple[str, tuple[int, ...], int]
"""A parameter's name, its shape, and its offset in the fragment (elements)."""
Layout = Sequence[Sequence[LayoutEntry]]
"""For each fragment its parameters, densely packed."""


class CheckpointError(LowcommError):
    """A checkpoint that cannot be written or must not be trusted: which, and why."""


