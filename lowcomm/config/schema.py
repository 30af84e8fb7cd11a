"""The two kinds of configuration, loaded and checked in one place.

`[run]` is agreed by all peers (the log has its text), `[node]` is each node's own. Must NOT
import torch: the daemon reads it, and so does every command.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from lowcomm.config.run_limits import check_limits
from lowcomm.methods import AnyMethod, DiLoCo, RoundMethod, StepMethod
from lowcomm.validation import check_values, shown, validate
from protocols.types.errors import ConfigError
from protocols.types.rules import ProtocolConfig

BYTE_VALUES = 256
"""Every source of data is text, taken byte by byte."""
_RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A small Llama: RMSNorm, RoPE, SwiGLU, no biases."""

    vocab_size: int = 256
    """256 for bytes."""
    hidden_size: int = 128
    """Width of the residual stream; a multiple of twice `heads`."""
    layers: int = 4
    """Number of decoder layers."""
    heads: int = 4
    """Attention heads of a layer."""
    kv_heads: int = 4
    """Fewer than `heads` is grouped-query attention."""
    intermediate_size: int = 344
    """Width of the SwiGLU layer."""
    context: int = 256
    """Longest sequence, tokens."""
    rope_theta: float = 10000.0
    """Base of the rotary position embedding's frequencies."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    tied_embeddings: bool = False
    """The output layer uses the matrix of the input embeddings."""
    embedding_std: float = 0.3
    """Standard deviation of the initial embeddings; the other matrices use 1 / sqrt(fan_in)."""

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "layers", "heads", "kv_heads", "intermediate_size")
        scales = ("rope_theta", "norm_eps", "embedding_std")
        check_values("run.model", self, positive=(*sizes, "context", *scales))
        if self.hidden_size % (2 * self.heads):
            raise ConfigError(
                f"run.model.hidden_size ({self.hidden_size}) must be a multiple of twice the "
                f"heads ({self.heads}): RoPE rotates pairs"
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"run.model.heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The inner optimizer and its schedule, by committed global inner steps."""

    name: str
    lr: float = 3e-3
    """Learning rate after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the mean of gradients and of their squares."""
    weight_decay: float = 0.1
    """AdamW's decoupled weight decay: in each step, this times the learning rate."""
    eps: float = 1e-8
    """Added to the denominator in AdamW."""
    grad_clip: float = 1.0
    """Clip the gradient's L2 norm to this; 0 switches it off."""
    warmup_steps: int = 30
    """Inner steps in which the learning rate rises linearly to `lr`."""
    lr_final: float = 0.1
    """The cosine ends at this fraction of `lr`, at the last outer step."""
    joiner_warmup_steps: int = 0
    """Ranks that come to a run under way with a fresh optimizer, on a new node or after a restart
    without what the last ones kept, go from 0 up to the schedule's rate over so many of their own
    steps; 0: at once."""

    def __post_init__(self) -> None:
        check_values(
            "run.optimizer",
            self,
            positive=("lr", "eps"),
            not_negative=("weight_decay", "grad_clip", "warmup_steps", "joiner_warmup_steps"),
        )
        if not 0 <= self.lr_final <= 1:
            raise ConfigError(f"run.optimizer.lr_final must be in [0, 1], got {self.lr_final}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"run.optimizer.betas must be in [0, 1), got {self.betas}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWConfig(OptimizerConfig):
    """AdamW for everything."""

    name: Literal["adamw"] = "adamw"


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonConfig(OptimizerConfig):
    """Muon for the matrices of the blocks, AdamW for everything else (MuLoCo). `lr` and
    `weight_decay` are of both: Muon's steps are scaled to the size that AdamW's have."""

    name: Literal["muon"] = "muon"
    momentum: float = 0.95
    """Muon's Nesterov momentum."""

    def __post_init__(self) -> None:
        OptimizerConfig.__post_init__(self)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"run.optimizer.momentum must be in [0, 1), got {self.momentum}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which windows of the corpus an inner step sees."""

    source: Literal["stdlib", "files"] = "stdlib"
    """`stdlib`: the Python standard library's own sources. `files`: the folder `[node] corpus`."""
    window: int = 256
    """Tokens a sample predicts."""
    batch: int = 16
    """Samples of one inner step of one node; its ranks share them equally."""
    held_out_below: int = 8
    """A file whose SHA-256 starts with a byte below this is held out (8: 3 %)."""
    eval_windows: int = 256
    """The held-out loss is the mean over this many windows of held-out text ..."""
    eval_window: int = 256
    """... of this many predicted tokens each: runs that train on other windows compare by it."""

    @property
    def step_tokens(self) -> int:
        """Of an inner step of one node: of a batch."""
        return self.batch * self.window

    def __post_init__(self) -> None:
        check_values("run.data", self, positive=("window", "batch", "eval_windows", "eval_window"))
        if not 1 <= self.held_out_below <= 255:
            raise ConfigError(
                f"run.data.held_out_below must be in [1, 255], got {self.held_out_below}: "
                "some files are to train on, some to evaluate on"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Agreed by all peers. Two peers with different values never train together."""

    name: str = "run"
    """For people; its directory is called so."""
    seed: int = 0
    """Of the initial parameters and the order of the data; below 2**63."""
    peers_min: int = 1
    """Rounds begin when this many members are in."""
    outer_steps: int = 100
    """The run is finished after this many commits of fragment 0, or with `run.method.qsr_alpha`
    after the fewer ones of as many inner steps; with a per-step method, after this many steps."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: AdamWConfig | MuonConfig = field(default_factory=AdamWConfig)
    method: AnyMethod = field(default_factory=DiLoCo)
    data: DataConfig = field(default_factory=DataConfig)
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)

    def __post_init__(self) -> None:
        if not _RUN_NAME.fullmatch(self.name):
            raise ConfigError(
                f"run.name names a directory: use up to 64 letters, digits, -, _ and ., not "
                f"beginning with a dot; got {shown(self.name)}"
            )
        check_values("run", self, positive=("peers_min", "outer_steps"), not_negative=("seed",))
        check_limits(self)
        for name in ("window", "eval_window"):
            if getattr(self.data, name) > self.model.context:
                raise ConfigError(
                    f"run.data.{name} ({getattr(self.data, name)}) is longer than "
                    f"run.model.context ({self.model.context})"
                )
        if isinstance(self.method, StepMethod) and isinstance(self.optimizer, MuonConfig):
            raise ConfigError(
                f'run.optimizer.name is "muon", but with run.method.name = "{self.method.name}" '
                'all nodes step together, by "adamw"'
            )
        if isinstance(self.method, StepMethod) and self.optimizer.joiner_warmup_steps:
            raise ConfigError(
                f"run.optimizer.joiner_warmup_steps is {self.optimizer.joiner_warmup_steps}, but "
                f'with run.method.name = "{self.method.name}" who joins gets the others\' moments '
                "too: leave it out"
            )
        if self.model.vocab_size < BYTE_VALUES:
            raise ConfigError(
                f"run.model.vocab_size must be at least {BYTE_VALUES}, for every byte of the text, "
                f"got {self.model.vocab_size}"
            )

    @property
    def total_inner_steps(self) -> int:
        """That the run will have committed at its end."""
        method = self.method
        if not isinstance(method, RoundMethod):
            return self.outer_steps
        # What is trained while a result is on its way, and then replaced, is in no other one.
        replaced = method.overlap_steps if method.discards_overlap else 0
        return self.outer_steps * (method.inner_steps - replaced) + replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One node's own business: nobody else has to agree."""

    name: str = ""
    """A short name for people; empty takes the host's name. The peer id is made from it."""
    ranks: int = 1
    """Training processes of this node. `run.data.batch` is a multiple of it."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the ranks train. With `cuda`, each rank takes one GPU."""
    listen: str = ""
    """HOST:PORT; port 0 takes a free one. Empty is a free port of this machine's own 127.0.0.1; for
    who joins a run on another machine, of the address from which that one is reached. "none":
    nowhere, as nobody can dial this node: it dials the others, and through them those like it."""
    advertise: str = ""
    """What others dial, where that is not `listen`: behind a gateway, or with 0.0.0.0 there. Port 0
    is the one we listen on."""
    metrics: str = ""
    """HOST:PORT at which Prometheus finds /metrics, in the clear and for whoever asks: on 127.0.0.1
    or a network that you trust. Port 0 takes a free one, which the node's events tell. Empty:
    none."""
    congestion: str = ""
    """TCP's congestion control of the connections for bulk, of those that this kernel has; empty is
    bbr, where there is one, and reno between nodes of one machine."""
    insecure: bool = False
    """No encryption, no certificates: for runs that stay on this machine, all of whose nodes say
    so."""
    port_range: tuple[int, int] = (20000, 29999)
    """MASTER_PORT of the node's own process group is taken from here."""
    directory: str = ""
    """Checkpoints, logs and the peer's identity; empty is runs/<run name>/<node name>."""
    corpus: str = ""
    """A folder of text files, when `[run.data] source` is "files"."""
    checkpoint_every_rounds: int = 10
    """Of a run whose method agrees on each step: copies of its state, of which there is one each
    `run.method.snapshot_every_steps`."""
    memory_max_bytes: int = 0
    """Refuse to start when the daemon would need more; 0: 90 % of what the
    machine has free."""
    hang_timeout_s: float = 60.0
    """Ranks whose step counter stands still this long while they train are restarted."""
    rank_restarts_max: int = 5
    """If the ranks fail more often than this in a row without progress, the node gives up."""

    def __post_init__(self) -> None:
        check_values(
            "node",
            self,
            positive=("ranks", "checkpoint_every_rounds", "hang_timeout_s"),
            not_negative=("memory_max_bytes", "rank_restarts_max"),
        )
        low, high = self.port_range
        if not 1024 <= low <= high <= 65535:
            raise ConfigError(
                f"node.port_range must be two ports within 1024-65535, low first, got {low}, {high}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """What a configuration file may hold. A joiner's may leave `[run]` out."""

    run: RunConfig | None = None
    node: NodeConfig = field(default_factory=NodeConfig)


def check_node(run: RunConfig, node: NodeConfig) -> None:
    """Raise ConfigError when this node cannot take part in this run."""
    if run.data.batch % node.ranks:
        raise ConfigError(
            f"run.data.batch ({run.data.batch}) must be a multiple of node.ranks ({node.ranks})"
        )


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> FileConfig:
    """Read a TOML file and `--set table.key=value` overrides (values as in TOML).

    Raises ConfigError with one line: where, what, and what would be right.
    """
    raw: dict[str, Any] = {}
    sources: list[str] = []
    if path is not None:
        raw = _read_toml(path)
        sources.append(str(path))
    if overrides:
        sources.append("--set")
    for override in overrides:
        _apply_override(raw, override)
    return cast(FileConfig, validate(FileConfig, raw, where=" and ".join(sources)))


def run_to_json(run: RunConfig) -> str:
    """The agreed configuration as typed with defaults filled in, in one canonical text."""
    return json.dumps(asdict(run), sort_keys=True, separators=(",", ":"))


def run_from_json(text: str) -> RunConfig:
    """The inverse of `run_to_json`; raises ConfigError for anything else."""
    try:
        raw = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the agreed [run] is not JSON: {error}") from error
    return cast(RunConfig, validate(RunConfig, raw, where="the agreed [run]"))


def first_difference(mine: Mapping[str, Any], agreed: Mapping[str, Any], at: str = "run") -> str:
    """Name the first key that differs, or "" when both are equal.

    Values are equal when their JSON texts are: 1, 1.0 and true are three values, a tuple is a list.
    """
    for key in sorted(set(mine) | set(agreed)):
        left, right = mine.get(key, _ABSENT), agreed.get(key, _ABSENT)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            below = first_difference(
                cast(Mapping[str, Any], left), cast(Mapping[str, Any], right), f"{at}.{key}"
            )
            if below:
                return below
        elif _json_text(left) != _json_text(right):
            return f"{at}.{key} is {_json_text(left)} here and {_json_text(right)} in the run"
    return ""


def _json_text(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, sort_keys=True)


def _refuse_constant(name: str) -> NoReturn:
    """What Python's JSON takes for a number beyond the standard: NaN and the infinities."""
    raise ValueError(f"{name} is no number")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except ValueError as error:  # Not TOML, not UTF-8, or an integer of over 4300 digits.
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _apply_override(raw: dict[str, Any], override: str) -> None:
    if "\n" in override or "\r" in override:
        raise ConfigError(f"--set {shown(override)}: a second line would set something else")
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or parts[0] not in ("run", "node"):
        raise ConfigError(
            f"--set {override}: write it as run.key=value or node.key=value, "
            "for example --set node.ranks=2"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise ConfigError(f"--set {key}: the value is nested too deeply") from None
    except ValueError:
        value = text  # A bare word: `--set node.name=alpha` without shell quoting.
    table = raw
    for part in parts[:-1]:
        below: object = table.setdefault(part, {})
        if not isinstance(below, dict):
            raise ConfigError(f"--set {override}: {part} is not a table")
        table = cast(dict[str, Any], below)
    table[parts[-1]] = value
