"""The table of names by which a model's tensors are those of its Hugging Face counterpart.

It comes from the model's own state-dict adapter, which is given numbers of rows in place of values
and is seen to move them. Must NOT know a model, nor read a value.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lowcomm.tensors.run_names import RunNames, run_tensors
from protocols.types import ConfigError

log = logging.getLogger(__name__)

_FAILURES = (
    AssertionError,
    AttributeError,
    ConfigError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What an adapter raises for a model that it does not know, and we for what is no move of rows."""


class Adapter(Protocol):
    """As torchtitan's StateDictAdapter."""

    def to_hf(self, state_dict: dict[str, Any], /) -> dict[str, Any]: ...

    def from_hf(self, hf_state_dict: dict[str, Any], /) -> dict[str, Any]: ...


def hf_names(model: nn.Module, adapter: Adapter) -> RunNames | None:
    """The table for Method(names=...), or None with a warning: the adapter has no way back, or does
    more than to rename tensors, to split them, and to move their rows.

    `model`: the whole one, without wrappers, on the device "meta". The order is that of the
    adapter's `from_hf_map`, if it has one: the order of the counterpart's own parameters.
    """
    try:
        native = model.state_dict()
        if adapter.from_hf(adapter.to_hf(dict(native))).keys() != native.keys():
            raise ConfigError("it has no way back for some tensors")
        pieces: dict[str, str | list[tuple[str, slice]]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for own, parameter in model.named_parameters():
            shapes[own] = tuple(parameter.shape)
            for name, listed in _pieces(model, adapter, own, shapes[own]):
                if name in pieces:
                    raise ConfigError(f"it makes {name} of several parameters")
                pieces[name] = listed
        order = _order(getattr(adapter, "from_hf_map", {}))
        names = {name: pieces[name] for name in sorted(pieces, key=order)}
        run_tensors(shapes, names)
    except _FAILURES as error:
        log.warning(
            "the run has this model's own names, not those of Hugging Face: %s cannot be used: %r",
            type(adapter).__name__,
            error,
        )
        return None
    return names


def _pieces(
    model: nn.Module, adapter: Adapter, own: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, str | list[tuple[str, slice]]]]:
    """Each tensor to which the parameter `own` goes, with its rows there."""
    ones, size = [1 for _ in shape[1:]], prod(shape[1:])
    rows = torch.arange(shape[0], dtype=torch.int32).view(-1, *ones).expand(shape)
    moved = adapter.to_hf(_saved(model, own, rows))
    if len(moved) == 1 and all(each is rows for each in moved.values()):
        yield next(iter(moved)), own
        return
    columns = torch.arange(size, dtype=torch.int32).view(1, *shape[1:]).expand(shape)
    columns_moved = adapter.to_hf(_saved(model, own, columns))
    for name, numbers in moved.items():
        first = numbers.reshape(len(numbers), -1)[:, 0]
        moves_rows = torch.equal(numbers, first.view(-1, *ones).expand(numbers.shape))
        if not moves_rows or not torch.equal(columns_moved[name], columns[: len(numbers)]):
            raise ConfigError(f"it does not only move rows of {own}")
        yield name, [(own, each) for each in slices_of(first.numpy())]


def _saved(model: nn.Module, own: str, values: Tensor) -> dict[str, Any]:
    """What the model's state_dict has of a parameter that has these values: modules may give it
    another form there."""
    found: dict[str, Any] = {own: values}
    path = own.split(".")[:-1]
    for depth in reversed(range(len(path) + 1)):
        prefix = ".".join(path[:depth])
        module = model.get_submodule(prefix)
        for hook in cast("Any", module._state_dict_hooks).values():
            changed: Any = hook(module, found, f"{prefix}." if prefix else "", {})
            found = found if changed is None else changed
    return found


def slices_of(rows: NDArray[np.int32]) -> list[slice]:
    """Row numbers as slices with positive steps, of which each goes as far as it can."""
    found: list[slice] = []
    steps, begin = np.diff(rows), 0
    while begin < len(rows):
        step = int(steps[begin]) if begin < len(steps) else 1
        end = begin + 1
        if step > 0:
            changes = np.flatnonzero(steps[begin:] != step)
            end += int(changes[0]) if changes.size else len(steps) - begin
        found.append(slice(int(rows[begin]), int(rows[end - 1]) + 1, max(step, 1)))
        begin = end
    return found


def _order(templates: Iterable[str]) -> Callable[[str], tuple[int, int, int]]:
    """The key that sorts names as these templates come, in which {} is the number of a layer; the
    layers come one after the other."""
    places = {template: place for place, template in enumerate(templates)}
    layers = min((place for template, place in places.items() if "{}" in template), default=0)

    def key(name: str) -> tuple[int, int, int]:
        number = re.search(r"\d+", name)
        place = places.get(re.sub(r"\d+", "{}", name, count=1), len(places))
        return (place, 0, 0) if number is None else (layers, int(number[0]), place)

    return key
