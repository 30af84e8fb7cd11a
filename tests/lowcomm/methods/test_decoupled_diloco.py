"""Decoupled DiLoCo: its fragments, weights and refusals."""

from typing import Any

import pytest

from lowcomm.config.schema import load_config
from lowcomm.methods import DecoupledDiLoCoMethod
from lowcomm.methods.base import Parameter
from lowcomm.startup.agreement import common_grain
from protocols.types.errors import ConfigError
from protocols.types.ids import Contributor, PeerId

SIZES = (50, 7, 7, 30, 1, 20, 20, 9)
PARAMETERS = [Parameter(f"w{number}", (size,)) for number, size in enumerate(SIZES)]


def test_it_is_the_paper_by_default() -> None:
    method = DecoupledDiLoCoMethod()
    assert (method.inner_steps, method.fragments, method.overlap_steps) == (24, 24, 2)
    assert method.mixing == 0
    assert method.codec.name == "fp4"
    assert method.mean_codec is None, "by gather"
    assert common_grain(method) == 4096, "norms are taken of blocks of so many"


@pytest.mark.parametrize("fragments", [1, 2, 3, 8])
def test_fragments_are_of_about_the_same_size(fragments: int) -> None:
    found = DecoupledDiLoCoMethod(fragments=fragments).fragments_of(PARAMETERS)
    assert sorted(set(found)) == list(range(fragments))
    loads = [0] * fragments
    for fragment, size in zip(found, SIZES, strict=True):
        loads[fragment] += size
    assert max(loads) <= max(*SIZES, 4 / 3 * sum(SIZES) / fragments)


def test_fragments_are_the_same_on_every_node() -> None:
    """The largest first, into the smallest so far; of equal ones the first."""
    assert DecoupledDiLoCoMethod(fragments=3).fragments_of(PARAMETERS) == (0, 1, 2, 1, 1, 2, 2, 1)


def test_more_fragments_than_tensors_are_refused_with_how_many_there_may_be() -> None:
    with pytest.raises(ConfigError, match=r"fragments is 24, but this model has 8 .* at most 8"):
        DecoupledDiLoCoMethod().fragments_of(PARAMETERS)


@pytest.mark.parametrize(
    ("tokens", "steps", "wanted"),
    [(600, 3, 120_000), (601, 3, 120_400), (5, 0, 25), (1, 9, 1), (2**63, 1, 2**126)],
)
def test_a_node_counts_by_its_tokens_and_by_its_tokens_a_step(
    tokens: int, steps: int, wanted: int
) -> None:
    (found,) = DecoupledDiLoCoMethod().weights([Contributor(PeerId("p.0"), tokens, steps, "m")])
    assert found == wanted


def test_embeddings_are_averaged_and_all_else_goes_by_direction() -> None:
    method = DecoupledDiLoCoMethod()
    assert not method.by_direction("model.embed_tokens.weight")
    assert method.by_direction("model.layers.3.mlp.up_proj.weight")
    assert not DecoupledDiLoCoMethod(averaged=("norm", "head")).by_direction("model.norm.weight")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"fragments": 25}, r"fragments \(25\) must be at most 24: .* one is contributed"),
        ({"fragments": 0}, "fragments must be positive"),
        ({"inner_steps": 20}, r"fragments \(24\) must be at most 20: .* one is contributed"),
        ({"overlap_steps": 24}, r"must be below inner_steps \(24\), .*: at most 23"),
        ({"overlap_steps": -1}, "overlap_steps must not be negative"),
        ({"result_codec": "bf16"}, 'is "bf16", but decoupled_diloco .* or set "gather"'),
        ({"aggregate": "clipped_mean"}, "a mean of its own, of directions: leave it out"),
    ],
)
def test_what_does_not_go_together_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        DecoupledDiLoCoMethod(**said)


def test_it_is_chosen_by_its_name() -> None:
    typed = ["run.method.name=decoupled_diloco", 'run.method.averaged=["embed", "head"]']
    config = load_config(None, typed)
    assert config.run is not None
    assert config.run.method == DecoupledDiLoCoMethod(averaged=("embed", "head"))
