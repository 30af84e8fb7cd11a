"""A run begins with the parameters of a folder, or says why it cannot."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from lowcomm.config.schema import ModelConfig, NodeConfig, RunConfig
from lowcomm.models.llama import Llama, build_model
from lowcomm.program.saved_values import SavedValues
from lowcomm.program.trained_model import make_model
from protocols.types.errors import ConfigError
from tests.lowcomm.replicas import LAYOUT, kept

MODEL = ModelConfig(hidden_size=16, layers=2, heads=4, kv_heads=2, intermediate_size=24)
HF: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def parameters(seed: int = 9) -> dict[str, Tensor]:
    return {name: x.detach() for name, x in build_model(MODEL, seed=seed).named_parameters()}


def saved(folder: Path, tensors: Mapping[str, Tensor], **others: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**HF, **others}), encoding="utf-8")
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def made(folder: Path, config: ModelConfig = MODEL) -> Llama:
    run = RunConfig(model=replace(config, init_from=str(folder)))
    return make_model(run, NodeConfig(), mesh=None, device=torch.device("cpu"))


def refused(folder: Path, config: ModelConfig = MODEL) -> str:
    with pytest.raises(ConfigError) as caught:
        made(folder, config)
    return str(caught.value)


def test_a_checkpoint_of_hugging_face_is_read_in_any_type(tmp_path: Path) -> None:
    given = {name: tensor.bfloat16() for name, tensor in parameters().items()}
    given["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    model = made(saved(tmp_path, given))
    for name, tensor in model.named_parameters():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, given[name].float())


def test_one_in_several_files_is_read_by_its_index(tmp_path: Path) -> None:
    tensors = parameters()
    saved(tmp_path, {}).joinpath("model.safetensors").unlink()
    names = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in names if names[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    save_file({"of another model": torch.ones(1)}, tmp_path / "adapter.safetensors")
    model = made(tmp_path)
    assert all(torch.equal(each, tensors[name]) for name, each in model.named_parameters())


def test_tied_embeddings_may_be_there_twice(tmp_path: Path) -> None:
    tensors = parameters()
    config = replace(MODEL, tied_embeddings=True)
    model = made(saved(tmp_path, tensors, tie_word_embeddings=True), config)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, tensors["model.embed_tokens.weight"])


def test_parts_are_read_alone_also_empty_ones(tmp_path: Path) -> None:
    tensors, name = parameters(), "model.layers.1.mlp.up_proj.weight"
    config = replace(MODEL, init_from=str(saved(tmp_path, tensors)))
    with SavedValues(config, {key: each.shape for key, each in tensors.items()}) as values:
        part = values.part(name, [slice(8, 24), slice(0, 16)])
        assert torch.equal(part, tensors[name][8:])
        assert values.part(name, [slice(24, 24), slice(0, 16)]).shape == (0, 16)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (
            {"num_hidden_layers": 4, "rms_norm_eps": 1e-6},
            "--set run.model.layers=4 --set run.model.norm_eps=1e-06",
        ),
        ({"rope_theta": 5e5}, "--set run.model.rope_theta=500000.0"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "rope_theta=500000.0"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "no scaled RoPE ('llama3')"),
        ({"model_type": "mistral"}, "model_type is 'mistral', and the built-in model has 'llama'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"head_dim": 8}, "head_dim is 8, and that of run.model is 4"),
        ({"max_position_embeddings": 128}, "trained for 128 positions, and run.model.context"),
    ],
)
def test_another_model_is_refused_with_the_way_out(
    others: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in refused(saved(tmp_path, parameters(), **others))


def test_other_tensors_than_those_of_the_model_are_refused(tmp_path: Path) -> None:
    tensors, name = parameters(), "model.norm.weight"
    kept = tensors.pop(name)
    assert f"it has no {name}, which run.model has" in refused(saved(tmp_path, tensors))
    tensors[name] = torch.ones(17)
    assert f"its {name} is [17], and that of run.model [16]" in refused(saved(tmp_path, tensors))
    tensors[name] = torch.ones(16, dtype=torch.int8)
    assert "has the type I8, which is no float" in refused(saved(tmp_path, tensors))
    tensors[name], tensors["score.weight"] = kept, torch.ones(2)
    assert "its 'score.weight' is not in run.model" in refused(saved(tmp_path, tensors))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "is neither a checkpoint of lowcomm, nor" in refused(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps(HF))
    assert "has no .safetensors file" in refused(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    assert "is not a JSON object" in refused(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    (tmp_path / "config.json").write_text(json.dumps(HF))
    assert "cannot read run.model.init_from" in refused(tmp_path)


def test_a_checkpoint_of_lowcomm_is_found_in_a_node_s_directory(tmp_path: Path) -> None:
    place = tmp_path / "alpha" / "checkpoints"
    kept(place, 2)
    outer, _ = kept(place, 3)
    round_3 = place / "round-000003"
    shapes = {spec.name: spec.shape for spec in LAYOUT}
    for folder in (tmp_path / "alpha", round_3):
        with SavedValues(replace(MODEL, init_from=str(folder)), shapes) as values:
            for spec in LAYOUT:
                window = [slice(0, size) for size in spec.shape]
                end = spec.offset + math.prod(spec.shape)
                flat = torch.from_numpy(outer[spec.fragment])[spec.offset : end]
                expected = flat.view(spec.shape)
                assert torch.equal(values.part(spec.name, window), expected)
    assert "it has no model.embed_tokens.weight" in refused(round_3)
    assert "name one of its nodes (alpha)" in refused(tmp_path)
    with (round_3 / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")
    assert "is corrupt" in refused(round_3)
    with pytest.raises(ConfigError, match="it has no model"):
        made(tmp_path / "alpha")  # The one before it is complete.
