"""The state of a kept object for one rank, of what another number of ranks wrote of it.

A value that all ranks had alike stays as it is. A sharded tensor is cut as the object's own one is.
A plain tensor of a module that differs between ranks (a buffer) is that of rank 0, as in
lowcomm/tensors/model_buffers.py. Any other value that differs belongs to single ranks (a random
generator, the position of a loader): no part of the object's state is used then, because a part of
a state fits nothing. Must NOT read a file, nor guess a layout.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lowcomm.loop_state.resharded_state import joined
from lowcomm.tensors.placement import box_of
from protocols.types import LowcommError

Packed = None | bool | int | float | str | list[Any] | dict[str, Any]
"""A value as JSON: plain values as they are, and any other as {its kind: its content}."""
OF_TENSORS = ("tensor", "sharded", "array", "scalar")
"""Kinds of which the content is the name of a tensor."""


class PerRankError(LowcommError):
    """A state that belongs to single ranks. The text names the value that differs, and how."""


class KeptState(NamedTuple):
    """The state of one object in one rank."""

    packed: Packed
    tensors: Mapping[str, Tensor]
    """The local parts of its tensors, by the names that are in `packed`."""


def state_of_all(
    ranks: Sequence[KeptState], thing: object, present: Mapping[str, Tensor]
) -> KeptState:
    """The state of `thing` for this rank, of the states that all ranks of another number wrote.

    `present`: the object's own tensors by the same names; they show which part of a sharded one is
    this rank's. Raises PerRankError if there is no such state, ValueError for damaged ones.
    """
    merging = _Merging(ranks, present, has_buffers=isinstance(thing, nn.Module))
    return KeptState(merging.merged([rank.packed for rank in ranks], "it"), merging.tensors)


class _Merging:
    def __init__(
        self, ranks: Sequence[KeptState], present: Mapping[str, Tensor], *, has_buffers: bool
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        """The tensors of the merged state."""
        self._ranks, self._present, self._has_buffers = ranks, present, has_buffers

    def merged(self, values: Sequence[Packed], place: str) -> Packed:
        """The one value of the values that the ranks have in the same place."""
        first = values[0]
        if not isinstance(first, dict):
            if any(type(x) is not type(first) or repr(x) != repr(first) for x in values):
                raise PerRankError(f"{place} differs between its ranks")
            return first
        kinds = {tuple(value) if isinstance(value, dict) else () for value in values}
        if len(kinds) > 1:
            raise PerRankError(f"{place} differs between its ranks")
        ((kind, content),) = first.items()
        contents = [cast("dict[str, Any]", value)[kind] for value in values]
        if kind in OF_TENSORS:
            if any(each != content for each in contents):
                raise PerRankError(f"{content} is in a part of its ranks only")
            return self._tensor(kind, content)
        if kind == "bytes":
            return {kind: self.merged(contents, place)}
        if len({len(each) for each in contents}) > 1:
            raise PerRankError(f"{place} has different lengths in its ranks")
        return {kind: [self._item(x, place) for x in zip(*contents, strict=True)]}

    def _item(self, values: Sequence[Any], place: str) -> Any:
        """An item of a sequence, or a pair of a mapping: a list of key and value."""
        if not isinstance(values[0], list):
            return self.merged(values, place)
        keys, others = zip(*values, strict=True)
        key = self.merged(keys, f"a key of {place}")
        return [key, self.merged(others, f"{place}.{key}")]

    @torch.no_grad()
    def _tensor(self, kind: str, entry: str) -> Packed:
        parts = [rank.tensors[entry] for rank in self._ranks]
        own = self._present.get(entry)
        if kind == "sharded":
            if own is None:
                raise PerRankError(f"{entry} is sharded, and the object has no such tensor now")
            whole = joined(parts, tuple(own.shape), entry)
        elif all(_equal(part, parts[0]) for part in parts) or self._has_buffers:
            whole = parts[0]
        else:
            raise PerRankError(f"{entry} differs between its ranks")
        if kind in ("array", "scalar"):
            self.tensors[entry] = whole
            return {kind: entry}
        if not isinstance(own, DTensor) or own.shape != whole.shape:
            self.tensors[entry] = whole
            return {"tensor": entry}
        box = zip(*box_of(entry, own), strict=True)
        part = tuple(slice(first, first + size) for first, size in box)
        self.tensors[entry] = whole[(..., *part)].contiguous()
        return {"sharded": entry}


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether they have the same bits."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return torch.equal(*bits)
