"""The initial values of the built-in model's parameters, from the folder `run.model.init_from`.

The folder is a Hugging Face checkpoint of a Llama (config.json and safetensors files), a checkpoint
of lowcomm, or a node's directory with checkpoints. Each rank verifies a checkpoint of lowcomm, then
reads only the parts that it holds. Must NOT execute anything that a file contains.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    CUT,
    MODEL,
    CheckpointError,
    model_file,
    newest_checkpoint,
)
from lowcomm.config.schema import ModelConfig
from lowcomm.validation import shown
from protocols.types import ConfigError

HF_CONFIG, HF_INDEX = "config.json", "model.safetensors.index.json"
KEYS = (
    ("vocab_size", "vocab_size", None),
    ("hidden_size", "hidden_size", None),
    ("layers", "num_hidden_layers", None),
    ("heads", "num_attention_heads", None),
    ("kv_heads", "num_key_value_heads", "num_attention_heads"),
    ("intermediate_size", "intermediate_size", None),
    ("norm_eps", "rms_norm_eps", 1e-6),
    ("tied_embeddings", "tie_word_embeddings", False),
)
"""(key of `[run.model]`, key of config.json, its default there: a value, or another key)."""
FIXED = (
    ("model_type", "llama", None),
    ("hidden_act", "silu", "silu"),
    ("attention_bias", False, False),
    ("mlp_bias", False, False),
)
"""(key of config.json, the only value that this model can have, default)."""
ROPE_THETA = 10000.0
"""Default of config.json."""
FLOATS = ("F64", "F32", "F16", "BF16")
UNUSED = "rotary_emb.inv_freq"
"""Ends the names of tensors that older Hugging Face checkpoints have in addition."""


class SavedValues:
    """The parameters in a folder; call `part` within a `with` statement."""

    def __init__(self, config: ModelConfig, shapes: Mapping[str, Sequence[int]]) -> None:
        """`shapes`: of the model's parameters, by name. Raises ConfigError if there is no
        checkpoint in the folder, or one of another model."""
        from safetensors import SafetensorError, safe_open

        self._folder = Path(config.init_from).expanduser()
        self._files = ExitStack()
        self._file_of: dict[str, Any] = {}
        """An open file by the name of the parameter in it."""
        paths = _files_of(self._folder, config)
        try:
            for path in paths:
                opened: Any = cast(Any, safe_open)(path, framework="pt")  # Has no annotations.
                self._files.enter_context(opened)
                self._file_of |= dict.fromkeys(opened.keys(), opened)
            self._check(shapes, tied=config.tied_embeddings)
        except (OSError, SafetensorError) as error:
            self._files.close()
            raise ConfigError(f"cannot read run.model.init_from: {error}") from error
        except ConfigError:
            self._files.close()
            raise

    def __enter__(self) -> "SavedValues":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def part(self, name: str, window: Sequence[slice]) -> Tensor:
        """The values of a parameter in this window, of the type in the file, on the CPU."""
        if any(each.start == each.stop for each in window):
            return torch.empty([each.stop - each.start for each in window])
        return self._file_of[name].get_slice(name)[tuple(window)]

    def _check(self, shapes: Mapping[str, Sequence[int]], *, tied: bool) -> None:
        for name, shape in shapes.items():
            if name not in self._file_of:
                raise self._unfit(f"it has no {name}, which run.model has")
            found = self._file_of[name].get_slice(name)
            if list(found.get_shape()) != list(shape):
                raise self._unfit(
                    f"its {name} is {list(found.get_shape())}, and that of run.model {list(shape)}"
                )
            if found.get_dtype() not in FLOATS:
                raise self._unfit(f"its {name} has the type {found.get_dtype()}, which is no float")
        for name in self._file_of.keys() - shapes.keys():
            if not name.endswith(UNUSED) and not (tied and name == "lm_head.weight"):
                raise self._unfit(f"its {shown(name)} is not in run.model")

    def _unfit(self, why: str) -> ConfigError:
        return ConfigError(f"run.model.init_from = {shown(str(self._folder))} does not fit: {why}")


def _files_of(folder: Path, config: ModelConfig) -> list[Path]:
    """The files with the parameters. Raises ConfigError if there are none, or if a config.json
    describes another model."""
    try:
        if (folder / CUT).exists():
            return [model_file(folder)]
        if (folder / CHECKPOINTS).is_dir():
            path, skipped = newest_checkpoint(folder / CHECKPOINTS)
            if path is None:
                why = "; ".join(["it has no complete checkpoint", *skipped])
                raise ConfigError(f"run.model.init_from = {shown(str(folder))}: {why}")
            return [path / MODEL]  # Verified by newest_checkpoint.
    except CheckpointError as error:
        raise ConfigError(f"run.model.init_from: {error}") from error
    if (folder / HF_CONFIG).exists():
        _check_config(folder / HF_CONFIG, config)
        if found := list(_hf_files(folder)):
            return found
        raise ConfigError(
            f"run.model.init_from = {shown(str(folder))} has no .safetensors file: save the model "
            "again with save_pretrained(..., safe_serialization=True)"
        )
    nodes = sorted(path.parent.name for path in folder.glob(f"*/{CHECKPOINTS}"))
    hint = f"; it is a run's directory: name one of its nodes ({', '.join(nodes)})" if nodes else ""
    raise ConfigError(
        f"run.model.init_from = {shown(str(folder))} is neither a checkpoint of lowcomm, nor a "
        f"node's directory, nor a Hugging Face checkpoint with a {HF_CONFIG}{hint}"
    )


def _hf_files(folder: Path) -> Iterator[Path]:
    if (folder / HF_INDEX).exists():
        names = cast("dict[str, str]", _read_json(folder / HF_INDEX).get("weight_map", {}))
        # Names only, so that an index cannot lead out of the folder.
        yield from (folder / Path(name).name for name in sorted(set(names.values())))
    else:
        yield from sorted(folder.glob("*.safetensors"))


def _check_config(path: Path, config: ModelConfig) -> None:
    """Raise ConfigError if config.json describes a model that `config` does not."""
    found = _read_json(path)
    for key, value, default in FIXED:
        if found.get(key, default) != value:
            raise ConfigError(
                f"{path}: {key} is {found.get(key)!r}, and the built-in model has {value!r}"
            )
    rope = cast("dict[str, Any]", found.get("rope_parameters") or found.get("rope_scaling") or {})
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise ConfigError(f"{path}: the built-in model has no scaled RoPE ({kind!r})")
    theirs = {
        key: found.get(name, found.get(default) if isinstance(default, str) else default)
        for key, name, default in KEYS
    }
    theirs["rope_theta"] = rope.get("rope_theta", found.get("rope_theta", ROPE_THETA))
    mine = {key: getattr(config, key) for key in theirs} | {"vocab_size": config.embeddings}
    others = {key: value for key, value in theirs.items() if value != mine[key]}
    if others:
        settings = " ".join(
            f"--set run.model.{key}={json.dumps(value)}" for key, value in others.items()
        )
        raise ConfigError(f"{path} is of another model: found the run with {settings}")
    if found.get("head_dim") not in (None, config.hidden_size // config.heads):
        raise ConfigError(
            f"{path}: head_dim is {found['head_dim']}, and that of run.model is "
            f"{config.hidden_size // config.heads} (hidden_size / heads)"
        )
    longest = found.get("max_position_embeddings", config.context)
    if longest < config.context:
        raise ConfigError(
            f"{path}: the model was trained for {longest} positions, and run.model.context is "
            f"{config.context}"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return cast("dict[str, Any]", found)
