"""A node's choices change how the model is computed, and not what it is."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from lowcomm.config.schema import ModelConfig, NodeConfig, RunConfig
from lowcomm.models.llama import Llama, build_model
from lowcomm.program.trained_model import add_gradients, make_model
from lowcomm.tensors.names import named_parameters

MODEL = ModelConfig(hidden_size=16, layers=2, heads=4, kv_heads=2, intermediate_size=24, context=32)
RUN = RunConfig(seed=5, model=replace(MODEL, context=256))
CPU = torch.device("cpu")
TOKENS = torch.randint(0, 256, (5, 33), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """Of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def made(node: NodeConfig | None = None, *, mesh: DeviceMesh | None = None) -> Llama:
    return make_model(RUN, node or NodeConfig(), mesh=mesh, device=CPU)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(model: nn.Module, *, at_once: int = 0) -> tuple[float, dict[str, Tensor]]:
    loss = add_gradients(model, TOKENS, at_once=at_once, device=CPU)
    assert not loss.requires_grad
    found = {name: each.grad for name, each in named_parameters(model)}
    return loss.item(), {name: whole(grad) for name, grad in found.items() if grad is not None}


def close(found: dict[str, Tensor], expected: dict[str, Tensor], *, share: float) -> None:
    """Each gradient differs by less than this share of its norm."""
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        assert found[name].dtype == torch.float32
        assert (found[name] - grad).norm() < share * grad.norm(), name


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_that_gets_storage_last_has_the_bits_of_one_made_whole(tied: bool) -> None:
    run = replace(RUN, model=replace(RUN.model, tied_embeddings=tied))
    expected = build_model(run.model, seed=run.seed)
    found = make_model(run, NodeConfig(), mesh=None, device=CPU)
    ours, theirs = dict(found.named_parameters()), dict(expected.named_parameters())
    assert ours.keys() == theirs.keys()
    assert ("lm_head.weight" in ours) == (not tied)
    assert all(torch.equal(each, theirs[name]) for name, each in ours.items())
    assert torch.equal(found(TOKENS), expected(TOKENS))


def test_parts_of_a_batch_give_the_gradient_of_the_whole_batch() -> None:
    loss, expected = gradients(made())
    found_loss, found = gradients(made(), at_once=2)  # Of 5 samples.
    assert found_loss == pytest.approx(loss, rel=1e-6)
    close(found, expected, share=1e-5)
    _, same = gradients(made(), at_once=5)
    assert all(torch.equal(same[name], grad) for name, grad in expected.items())


def test_activations_that_are_computed_again_give_the_same_bits() -> None:
    loss, expected = gradients(made())
    found_loss, found = gradients(made(NodeConfig(activation_checkpointing=True)))
    assert found_loss == loss
    assert all(torch.equal(found[name], grad) for name, grad in expected.items())


def test_a_block_keeps_its_input_only() -> None:
    kept: dict[bool, int] = {}
    for chosen in (False, True):
        model = made(NodeConfig(activation_checkpointing=chosen))
        sizes: list[int] = []

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(TOKENS[:, :-1])
        kept[chosen] = sum(sizes)
    assert kept[True] < kept[False] / 3


def test_bf16_keeps_parameters_gradients_and_results_in_fp32(mesh: DeviceMesh) -> None:
    loss, expected = gradients(made())
    model = made(NodeConfig(compute="bf16", activation_checkpointing=True), mesh=mesh)
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    seen: list[torch.dtype] = []
    block = next(iter(model.model.layers))
    hook = block.register_forward_hook(lambda _, __, result: seen.append(result.dtype))
    found_loss, found = gradients(model, at_once=2)
    hook.remove()
    assert set(seen) == {torch.bfloat16}
    assert found_loss == pytest.approx(loss, rel=1e-2)
    assert found_loss != loss
    close(found, expected, share=0.1)
    with torch.no_grad():
        assert model(TOKENS).dtype == torch.float32


@pytest.mark.long
@pytest.mark.deadline(400)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo reads it.
def test_a_compiled_model_computes_the_same_and_evaluates_as_it_is_written(
    mesh: DeviceMesh,
) -> None:
    loss, expected = gradients(made())
    for node, places, share in (
        (NodeConfig(compile=True), None, 1e-5),
        (NodeConfig(compile=True, activation_checkpointing=True, compute="bf16"), mesh, 0.1),
    ):
        model = made(node, mesh=places)
        found_loss, found = gradients(model)
        assert found_loss == pytest.approx(loss, rel=share)
        close(found, expected, share=share)
        if node.compute == "fp32":
            with torch.no_grad():
                assert torch.equal(model(TOKENS), made()(TOKENS))
