"""Names of a model's tensors, without the components that wrappers put into them.

torch.compile, activation checkpointing and data parallelism keep the wrapped module in an attribute
of their own. Nodes may wrap one model in different ways, so the attribute is no part of a name; a
user's own attribute of the same name is. Must NOT decide which tensors are exchanged.
"""

import sys
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from protocols.types import ConfigError

Model = nn.Module | Sequence[nn.Module]
"""A model, or the parts of it that a rank has (stages of a pipeline), in the model's order: each
tensor has the name that it has in the whole model."""
WRAPPERS = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",
        "_checkpoint_wrapped_module",
    ),
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module"),
    ("torch.nn.parallel.data_parallel", "DataParallel", "module"),
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "FullyShardedDataParallel",
        "_fsdp_wrapped_module",
    ),
)
"""(module of torch, class in it, attribute that holds the wrapped module)."""


def parts_of(model: Model) -> Sequence[nn.Module]:
    """The parts of a model; a model is its only part."""
    return [model] if isinstance(model, nn.Module) else model


def named_parameters(model: Model) -> list[tuple[str, nn.Parameter]]:
    """Name and parameter, in the order of `model.named_parameters()`; a tied one is listed once, by
    its first name.

    Raises ConfigError if two of them have the same name without their wrappers.
    """
    found: dict[nn.Parameter, str] = {}
    paths: dict[str, str] = {}
    for place, path, module in _all_modules(model):
        # A wrapper's own `named_parameters` edits names, of this module none.
        for own, parameter in module._parameters.items():
            if parameter is None or parameter in found:
                continue
            name = found[parameter] = place + own
            if name in paths:
                raise ConfigError(
                    f"parameters {paths[name]} and {path + own} are both named {name} without "
                    "their wrappers: rename one"
                )
            paths[name] = path + own
    return [(name, parameter) for parameter, name in found.items()]


def named_buffers(model: Model) -> list[tuple[str, nn.Module, str]]:
    """Name, module that has it and its name there, of each persistent buffer, in the order of
    `model.named_buffers()`; a tied one is listed once, by its first name. Its module may replace
    the tensor at any time, so look it up when you need it.

    Raises ConfigError if two of them have the same name without their wrappers.
    """
    found: dict[str, tuple[str, nn.Module, str]] = {}
    seen: set[Tensor] = set()
    for place, _, module in _all_modules(model):
        for own, buffer in module._buffers.items():
            if buffer is None or own in module._non_persistent_buffers_set or buffer in seen:
                continue
            seen.add(buffer)
            if place + own in found:
                raise ConfigError(
                    f"two buffers are both named {place + own} without their wrappers: rename one"
                )
            found[place + own] = (place + own, module, own)
    return list(found.values())


def _all_modules(model: Model) -> Iterator[tuple[str, str, nn.Module]]:
    """Each module of all parts once, as `_modules` yields it."""
    seen: set[nn.Module] = set()
    for part in parts_of(model):
        yield from _modules(part, seen)


def _modules(whole: nn.Module, seen: set[nn.Module]) -> Iterator[tuple[str, str, nn.Module]]:
    """Each module once, in the order of `named_modules()`, with the prefix of its tensors' names
    without wrappers and with them."""
    wrappers = _loaded_wrappers()
    attributes: dict[type, str] = {}  # A model has few classes.
    waiting = [("", "", whole)]
    while waiting:
        place, path, module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        yield place, path, module
        made = type(module)
        if made not in attributes:
            found = (name for kind, name in wrappers if issubclass(made, kind))
            attributes[made] = next(found, "")
        wrapped = attributes[made]
        for name, child in reversed(module._modules.items()):
            if child is not None:
                inner = place if name == wrapped else f"{place}{name}."
                waiting.append((inner, f"{path}{name}.", child))


def _loaded_wrappers() -> list[tuple[type[nn.Module], str]]:
    """The classes of wrappers, each with the attribute in which it keeps the wrapped module. A
    module of such a class exists only if its source is imported, which takes seconds."""
    return [
        (getattr(sys.modules[source], kind), attribute)
        for source, kind, attribute in WRAPPERS
        if source in sys.modules
    ]
