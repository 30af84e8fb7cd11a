"""Tables of names from the state-dict adapter of another project."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lowcomm.integrations.hf_names import hf_names, slices_of
from lowcomm.tensors import node_shards, write_shards

HEADS, HEAD, WIDTH, LAYERS = 4, 6, 5, 11
GROUPS = 2
"""Each has two heads of queries, one of keys and one of values, in the fused matrix."""


class Fused(nn.Module):
    """One matrix, which is saved as three."""

    def __init__(self) -> None:
        super().__init__()
        self.wqkv = nn.Linear(WIDTH, GROUPS * 4 * HEAD, bias=False)
        self.register_state_dict_post_hook(self._split)

    @staticmethod
    def _split(_module: nn.Module, state: dict[str, Tensor], prefix: str, _local: Any) -> None:
        fused = state.pop(f"{prefix}wqkv.weight").view(GROUPS, 4, HEAD, WIDTH)
        for name, part in (("q", fused[:, :2]), ("k", fused[:, 2]), ("v", fused[:, 3])):
            state[f"{prefix}{name}.weight"] = part.reshape(-1, WIDTH)


class Model(nn.Module):
    """More layers than one digit counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {
                str(number): nn.ModuleDict({"norm": nn.RMSNorm(WIDTH), "mixer": Fused()})
                for number in range(LAYERS)
            }
        )
        self.tokens = nn.Embedding(7, WIDTH)
        self.square = nn.Linear(WIDTH, WIDTH, bias=False)


class Adapter:
    """As torchtitan's of llama3: names, and the rows of the two halves of each head."""

    def __init__(self) -> None:
        self.from_hf_map = {
            "model.embed.weight": "tokens.weight",
            "model.layers.{}.q.weight": "layers.{}.mixer.q.weight",
            "model.layers.{}.k.weight": "layers.{}.mixer.k.weight",
            "model.layers.{}.v.weight": "layers.{}.mixer.v.weight",
            "model.layers.{}.rotary": None,
            "model.layers.{}.norm.weight": "layers.{}.norm.weight",
            "head.weight": "square.weight",
        }

    def to_hf(self, state_dict: dict[str, Any], /) -> dict[str, Any]:
        return self._renamed(state_dict, {v: k for k, v in self.from_hf_map.items() if v}, 2)

    def from_hf(self, hf_state_dict: dict[str, Any], /) -> dict[str, Any]:
        return self._renamed(hf_state_dict, self.from_hf_map, HEAD // 2)

    def _renamed(self, state: dict[str, Any], names: Any, inner: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, values in state.items():
            number = "".join(each for each in key if each.isdecimal())
            name = names[key.replace(number, "{}") if number else key]
            moved = values
            if key.endswith((".q.weight", ".k.weight")):
                moved = values.view(-1, HEAD // inner, inner, WIDTH).transpose(1, 2)
                moved = moved.reshape(-1, WIDTH)
            found[name.replace("{}", number)] = moved
        return found


class Partial(Adapter):
    def to_hf(self, state_dict: dict[str, Any], /) -> dict[str, Any]:
        return super().to_hf({k: v for k, v in state_dict.items() if k != "square.weight"})


class Turned(Adapter):
    def to_hf(self, state_dict: dict[str, Any], /) -> dict[str, Any]:
        found = super().to_hf(state_dict)
        return {k: v.t() if k == "head.weight" else v for k, v in found.items()}


class Mirrored(Adapter):
    def to_hf(self, state_dict: dict[str, Any], /) -> dict[str, Any]:
        found = super().to_hf(state_dict)
        return {k: v.flip(1) if k == "head.weight" else v for k, v in found.items()}


class Joined(Adapter):
    def to_hf(self, state_dict: dict[str, Any], /) -> dict[str, Any]:
        found = super().to_hf(state_dict)
        return {"model.embed.weight" if k == "head.weight" else k: v for k, v in found.items()}


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Model()


def test_a_node_writes_what_the_adapter_would_save_bit_by_bit() -> None:
    adapter, model = Adapter(), Model()
    names = hf_names(on_meta(), adapter)
    parts = node_shards(model, rank=0, names=names)
    layer = [each for each in adapter.from_hf_map if "{}" in each and "rotary" not in each]
    expected = [
        "model.embed.weight",
        *(each.replace("{}", str(number)) for number in range(LAYERS) for each in layer),
        "head.weight",
    ]
    assert [place.name for place in parts.layout] == expected
    saved = adapter.to_hf(model.state_dict())
    written = b"".join(saved[name].numpy().tobytes() for name in expected)
    buffer = memoryview(bytearray(len(written)))
    write_shards(parts.shards, buffer)
    assert bytes(buffer) == written


@pytest.mark.parametrize("made", [Partial, Turned, Mirrored, Joined])
def test_what_is_no_move_of_rows_leaves_the_names_as_they_are(
    made: type[Adapter], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert hf_names(on_meta(), made()) is None
    assert f"not those of Hugging Face: {made.__name__} cannot be used" in caplog.text


def test_rows_are_few_slices() -> None:
    def of(*rows: int) -> list[slice]:
        return slices_of(np.array(rows, np.int32))

    assert of(*range(7)) == [slice(0, 7, 1)]
    assert of(0, 2, 4, 1, 3, 5, 6) == [slice(0, 5, 2), slice(1, 6, 2), slice(6, 7, 1)]
    assert of(5, 4, 4, 8) == [slice(5, 6, 1), slice(4, 5, 1), slice(4, 9, 4)]
    assert of(3) == [slice(3, 4, 1)]
    assert of() == []
