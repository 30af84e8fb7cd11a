"""The parameters of a model, and their layout in fragments, without the model.

Must NOT import torch.
"""

import math
from collections.abc import Sequence

from lowcomm.config.schema import ModelConfig, NodeConfig, RunConfig
from lowcomm.methods.base import Parameter, RoundMethod, StepMethod
from lowcomm.models.shapes import llama_shapes
from protocols.types import ConfigError, TensorSpec

BLOCK_ELEMENTS_MIN = 48
"""Fewest parameters of a block of `stated_parameters`: matrices of two columns."""


def configured_parameters(model: ModelConfig) -> list[Parameter]:
    """The parameters of the built-in model, in its order; a tied output layer counts once."""
    return [Parameter(name, shape) for name, shape in llama_shapes(model).items()]


def founded_parameters(run: RunConfig, node: NodeConfig) -> list[Parameter]:
    """The parameters of the built-in model in a run that such a node founds. Raises ConfigError if
    they do not follow from its file."""
    if not run.data.has_corpus:
        raise ConfigError(
            f'run.data.source is "{run.data.source}", so the model is that of a program: give its '
            "size, as in --params 1.3b"
        )
    if not knows_vocabulary(run, node):
        raise ConfigError(
            "the size of the vocabulary is known when the run is founded: for a plan before that "
            "write run.model.vocab_size into the file, or give --params, as in --params 1.3b"
        )
    return configured_parameters(run.model)


def knows_vocabulary(run: RunConfig, node: NodeConfig) -> bool:
    """Whether the file tells the number of token values; else the data do."""
    are_bytes = run.data.tokens_are_bytes and not node.tokenizer
    return bool(run.model.vocab_size) or are_bytes


def stated_parameters(count: int, *, layers: int) -> list[Parameter]:
    """The parameters of a transformer of which only their number and the number of its blocks are
    known: equal blocks of about 12 times the width squared. Raises ConfigError."""
    if layers < 1 or count < BLOCK_ELEMENTS_MIN * layers:
        raise ConfigError(
            f"{count} parameters in {layers} layers: give at least one layer, and at least "
            f"{BLOCK_ELEMENTS_MIN} parameters for each"
        )
    found: list[Parameter] = []
    for layer in range(layers):
        size = count * (layer + 1) // layers - count * layer // layers
        width = math.isqrt(size // 12)
        rows, rest = divmod(size, width)
        name = f"model.layers.{layer}"
        found += [
            Parameter(f"{name}.self_attn.weight", (rows // 3, width)),
            Parameter(f"{name}.mlp.weight", (rows - rows // 3, width)),
        ]
        if rest:
            found.append(Parameter(f"{name}.norm.weight", (rest,)))
    return found


def layout_of(
    parameters: Sequence[Parameter], method: RoundMethod | StepMethod
) -> tuple[TensorSpec, ...]:
    """The layout of these parameters in a run of this method. Raises ConfigError if the method
    cannot divide them."""
    divided = isinstance(method, RoundMethod)
    fragments = method.fragments_of(parameters) if divided else (0,) * len(parameters)
    found, ends = list[TensorSpec](), dict[int, int]()
    for fragment, each in zip(fragments, parameters, strict=True):
        offset = ends.get(fragment, 0)
        found.append(TensorSpec(fragment, each.name, each.shape, offset))
        ends[fragment] = offset + each.elements
    return tuple(found)


def count_blocks(parameters: Sequence[Parameter]) -> int:
    """The number of blocks into which `streaming_diloco` can divide the model."""
    numbered = {each.name.split(".")[2] for each in parameters if ".layers." in each.name}
    return max(len(numbered), 1)
