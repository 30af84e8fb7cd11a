"""The configuration tables `[run]` and `[node]`: their keys, defaults, loading and checks.

All peers agree on `[run]` (the log has its text); `[node]` is each node's own. Must NOT import
torch: the daemon and every command read configurations.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from lowcomm.config.run_limits import check_limits
from lowcomm.methods import AnyMethod, DiLoCoMethod, RoundMethod, StepMethod
from lowcomm.validation import check_values, shown, validate
from protocols.types import ConfigError, ProtocolConfig

SAMPLE_TEMPERATURE = 0.8
"""Temperature of texts that a model writes, if none is given."""
BYTE_VALUES = 256
"""Number of different tokens if the bytes of a text are its tokens."""
Source = Literal["", "stdlib", "files", "datasets", "tokens", "own", "private"]
_RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A small Llama: RMSNorm, RoPE, SwiGLU, no biases."""

    vocab_size: int = 0
    """Number of token values. 0: that of the data when the run is founded: 256 of bytes, that of
    the tokenizer, or the largest token in shards and one, rounded up to a multiple of 64."""
    hidden_size: int = 128
    """Width of the residual stream; a multiple of twice `heads`."""
    layers: int = 4
    """Number of decoder layers."""
    heads: int = 4
    """Attention heads of a layer."""
    kv_heads: int = 4
    """Fewer kv heads than `heads` mean grouped-query attention."""
    intermediate_size: int = 344
    """Width of the SwiGLU layer."""
    context: int = 256
    """Length of the longest sequence, in tokens."""
    rope_theta: float = 10000.0
    """Base of the rotary position embedding's frequencies."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    tied_embeddings: bool = False
    """The output layer uses the matrix of the input embeddings."""
    embedding_std: float = 0.3
    """Standard deviation of the initial embeddings; that of other matrices is 1 / sqrt(fan_in)."""
    init_from: str = ""
    """Folder with the initial parameters, which only the node that founds the run reads. A
    checkpoint of lowcomm (`checkpoints/round-000100`), a node's directory (its newest
    checkpoint), or a Hugging Face checkpoint of a Llama with these sizes, in safetensors files.
    Empty: random values by `run.seed`."""

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "layers", "heads", "kv_heads", "intermediate_size")
        scales = ("rope_theta", "norm_eps", "embedding_std")
        check_values(
            "run.model",
            self,
            positive=(*sizes, "context", *scales),
            not_negative=("vocab_size",),
        )
        if self.hidden_size % (2 * self.heads):
            raise ConfigError(
                f"run.model.hidden_size ({self.hidden_size}) must be a multiple of twice the "
                f"heads ({self.heads}): RoPE rotates pairs"
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"run.model.heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )

    @property
    def embeddings(self) -> int:
        """Number of token values that the model knows."""
        return self.vocab_size or BYTE_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The inner optimizer, and its learning-rate schedule by inner steps of the whole run."""

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
    """The gradient is clipped to this L2 norm; 0: no clipping."""
    warmup_steps: int = 30
    """Inner steps in which the learning rate rises linearly to `lr`."""
    lr_final: float = 0.1
    """The cosine schedule ends at this fraction of `lr`, at the last outer step."""
    joiner_warmup_steps: int = 0
    """If ranks join a running run with a fresh optimizer (on a new node, or after a restart without
    a saved optimizer state), their learning rate rises linearly from near 0 to the schedule's rate
    over so many of their own steps; 0: no warm-up."""

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
    """AdamW for all parameters."""

    name: Literal["adamw"] = "adamw"


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonConfig(OptimizerConfig):
    """Muon for the matrices of the blocks, AdamW for all other parameters (MuLoCo). `lr` and
    `weight_decay` apply to both: Muon's steps are scaled to the size of AdamW's steps."""

    name: Literal["muon"] = "muon"
    momentum: float = 0.95
    """Muon's Nesterov momentum."""

    def __post_init__(self) -> None:
        OptimizerConfig.__post_init__(self)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"run.optimizer.momentum must be in [0, 1), got {self.momentum}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The corpus, its samples for training and its held-out text."""

    source: Source = ""
    """`stdlib`: the sources of Python's standard library. `files`: the text files and JSON lines of
    the folder `[node] corpus`. `datasets`: a text column of a Hugging Face dataset, which each node
    reads once as a stream, and of which it keeps the tokens. `tokens`: shards of tokens, mapped
    where they are: the `.bin` files of `[node] corpus`, of nanoGPT (raw) or of llm.c and
    modded-nanogpt (with a header). `own`: no text; the programs of all nodes have the same dataset,
    and each item is leased to one node. `private`: no text, and no samples are leased: the program
    of each node has other data than other nodes, and only numbers of tokens are shared. Empty:
    `stdlib` if the founding node runs the built-in program, `own` if it runs a program of its
    own."""
    window: int = 256
    """Number of tokens that a sample predicts."""
    batch: int = 16
    """Number of samples (or items of your own dataset) in an inner step of one node; its ranks
    share them equally."""
    held_out_below: int = 8
    """A text file, JSON line or row is held out for evaluation if the first byte of its text's
    SHA-256 is below this (8: 3 %). Of shards: those with a name such as `val.bin` or
    `fineweb_val_000.bin`, or in a folder `val`; if there are none, so many of 256 parts of all
    tokens, at the end."""
    text_key: str = "text"
    """Key of the text in files of JSON lines (`.jsonl`, `.ndjson`, also `.gz`), or the column of a
    dataset."""
    dataset: str = ""
    """With source `datasets`: a dataset of the Hugging Face Hub, as NAME, NAME:CONFIG, or either
    one with @REVISION, so that later changes make no difference. A node may read a copy instead
    (`node.corpus`). Needs the extra `datasets`."""
    dataset_split: str = "train"
    """Split of the dataset. Held-out rows are chosen from it, as `held_out_below` says."""
    dataset_rows: int = 0
    """Only so many rows from the beginning of the split are read. 0: all."""
    shard_type: Literal["uint16", "uint32"] = "uint16"
    """Type of the tokens in shards without a header."""
    tokenizer: str = ""
    """Digest of the tokenizer of a text, which the founding node fills in (`node.tokenizer`).
    Empty: the bytes of the text are its tokens."""
    eval_windows: int = 256
    """The held-out loss is the mean over this many windows of held-out text."""
    eval_window: int = 256
    """Number of predicted tokens in each of these windows. It does not depend on `window`, so that
    the losses of runs with different windows can be compared."""
    eval_every_rounds: int = 0
    """One of the nodes that contributed measures the held-out loss each time after so many rounds,
    and at the end of the run; the report draws it. With methods that overlap rounds, it is before
    the end the loss of that node's own parameters, which its ranks have trained further. 0, and
    with per-step methods: only at the end."""

    @property
    def has_corpus(self) -> bool:
        """Whether the run has a corpus, which must be the same on all nodes that use it."""
        return self.source not in ("own", "private")

    @property
    def has_texts(self) -> bool:
        """Whether the corpus is made from texts, which a tokenizer may encode."""
        return self.source in ("stdlib", "files", "datasets")

    @property
    def tokens_are_bytes(self) -> bool:
        return self.source != "tokens" and not self.tokenizer

    @property
    def is_leased(self) -> bool:
        """Whether each sample is leased to one node."""
        return self.source != "private"

    @property
    def step_tokens(self) -> int:
        """Number of tokens in an inner step of one node, which trains on one batch."""
        return self.batch * self.window

    def __post_init__(self) -> None:
        sizes = ("window", "batch", "eval_windows", "eval_window")
        counts = ("eval_every_rounds", "dataset_rows")
        check_values("run.data", self, positive=sizes, not_negative=counts)
        if not 1 <= self.held_out_below <= 255:
            raise ConfigError(
                f"run.data.held_out_below must be in [1, 255], got {self.held_out_below}: "
                "both training and evaluation need files"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The configuration that all peers agree on. Two peers with different values never train
    together."""

    name: str = "run"
    """Name of the run for people, and of its directory."""
    seed: int = 0
    """Seed of the built-in program's initial parameters, and of the order of the data; at least 0,
    below 2**63. The run begins with the parameters of the node that founds it."""
    peers_min: int = 1
    """The first round begins when the run has this many members."""
    tokens: Literal["voters", "operators"] = "voters"
    """Issuers of join tokens besides the run's operators: each node that votes, as long as it does;
    or none ("operators": a token is made where an operator's key is)."""
    revocations: Literal["voters", "operators"] = "voters"
    """Revocations that count besides those that an operator's key signed: of each node that votes;
    or none ("operators": revoke where such a key is)."""
    steering: Literal["voters", "operators"] = "voters"
    """The same for `lowcomm pause`, `continue`, `kick` and `set`."""
    outer_steps: int = 100
    """The run is finished after this many commits of fragment 0. With `run.method.qsr_alpha` rounds
    grow longer, and fewer commits have as many inner steps. With a per-step method, the run is
    finished after this many steps."""
    buffers: Literal["average", "local"] = "average"
    """Persistent buffers of a model, such as the statistics of BatchNorm: with every round nodes
    take the mean of floating ones, and integers from the node with the most tokens (`average`); or
    each node keeps its own (`local`). Per-step methods need `local` if there are floating ones."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: AdamWConfig | MuonConfig = field(default_factory=AdamWConfig)
    method: AnyMethod = field(default_factory=DiLoCoMethod)
    data: DataConfig = field(default_factory=DataConfig)
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)

    def __post_init__(self) -> None:
        if not _RUN_NAME.fullmatch(self.name):
            raise ConfigError(
                f"run.name names a directory: use up to 64 letters, digits, -, _ and ., not "
                f"beginning with a dot; got {shown(self.name)}"
            )
        check_values("run", self, positive=("peers_min", "outer_steps"), not_negative=("seed",))
        check_limits(
            self.method,
            peers_min=self.peers_min,
            outer_steps=self.outer_steps,
            batch=self.data.batch,
            step_tokens=self.data.step_tokens,
        )
        for name in ("window", "eval_window"):
            if getattr(self.data, name) > self.model.context:
                raise ConfigError(
                    f"run.data.{name} ({getattr(self.data, name)}) is longer than "
                    f"run.model.context ({self.model.context})"
                )
        if isinstance(self.method, StepMethod) and isinstance(self.optimizer, MuonConfig):
            raise ConfigError(
                f'run.optimizer.name is "muon", but with run.method.name = "{self.method.name}" '
                'all nodes take each step together, which needs "adamw"'
            )
        if isinstance(self.method, StepMethod) and self.optimizer.joiner_warmup_steps:
            raise ConfigError(
                f"run.optimizer.joiner_warmup_steps is {self.optimizer.joiner_warmup_steps}, but "
                f'with run.method.name = "{self.method.name}" a joiner gets the optimizer '
                "moments of the others: leave it out"
            )
        if self.data.tokens_are_bytes and self.model.embeddings < BYTE_VALUES:
            raise ConfigError(
                f"run.model.vocab_size must be at least {BYTE_VALUES}, for every byte of the text, "
                f"got {self.model.vocab_size}"
            )

    def for_joiners(self) -> "RunConfig":
        """This configuration without a folder of initial parameters, which only the founder reads:
        the log has it so, and ranks that get their parameters from the run."""
        return replace(self, model=replace(self.model, init_from=""))

    def with_source(self, source: Source) -> "RunConfig":
        """This configuration, with that source of data if it names none."""
        return self if self.data.source else replace(self, data=replace(self.data, source=source))

    def with_data_of(self, other: "RunConfig") -> "RunConfig":
        """This configuration, with the other's source of data, tokenizer and vocabulary, each if
        this one says nothing of it."""
        mine, model = self.with_source(other.data.source), self.model
        tokenizer = mine.data.tokenizer or other.data.tokenizer
        vocab_size = model.vocab_size or other.model.vocab_size
        return replace(
            mine,
            data=replace(mine.data, tokenizer=tokenizer),
            model=replace(model, vocab_size=vocab_size),
        )

    @property
    def total_inner_steps(self) -> int:
        """Number of inner steps that the run will have committed at its end."""
        method = self.method
        if not isinstance(method, RoundMethod):
            return self.outer_steps
        # Steps that are trained while a result is under way, and then discarded, do not count.
        replaced = method.overlap_steps if method.discards_overlap else 0
        return self.outer_steps * (method.inner_steps - replaced) + replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The configuration of one node, which may differ from that of other nodes."""

    name: str = ""
    """A short name for people, with which the peer id begins; empty: the host's name."""
    ranks: int = 1
    """Number of training processes of this node. `run.data.batch` is a multiple of it. If a program
    under torchrun starts the daemon, the default is the number of its processes."""
    other_hosts: tuple[int, ...] = ()
    """Number of those ranks that run on each further host of this node, where `lowcomm ranks`
    starts them; the others run on the daemon's host. Methods of rounds only. For rank states,
    frozen tensors and the run's text, the hosts share a file system with `directory`."""
    other_hosts_listen: str = ""
    """HOST:PORT at which the daemon awaits the further hosts; they use HOST as MASTER_ADDR too."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device on which the built-in program trains. With `cuda`, each rank takes one GPU. A program
    of your own chooses its device by itself."""
    compute: Literal["fp32", "bf16"] = "fp32"
    """Type in which the built-in program computes. With `bf16`, parameters, sums of gradients and
    the optimizer stay fp32."""
    micro_batch: int = 0
    """Number of samples that a rank of the built-in program computes at once; it adds up the
    gradients of its part of `run.data.batch`. Fewer need less memory. 0: the whole part."""
    activation_checkpointing: bool = False
    """The built-in program keeps only the input of each block for the backward pass, and computes
    the rest again there: less memory, and a third more computation."""
    compile: bool = False
    """The built-in program compiles the blocks with torch.compile, for training only. The first
    step of each process then takes a minute or longer: see `first_step_timeout_s`."""
    listen: str = ""
    """HOST:PORT that this node listens on; port 0: a free one. Empty: a free port of 127.0.0.1 or,
    if the node joins a run on another machine, of the address from which it reaches that machine.
    "none": the node does not listen, since no node can dial it; it dials the others, and reaches
    other nodes with "none" through them."""
    advertise: str = ""
    """HOST:PORT that other nodes dial, if it is not `listen`: behind a gateway, or if `listen` is
    0.0.0.0. Port 0: the port that this node listens on."""
    metrics: str = ""
    """HOST:PORT at which the daemon serves /metrics for Prometheus, unencrypted and to any client:
    use 127.0.0.1 or a network that you trust. Port 0: a free one, which the node's event log names.
    Empty: no metrics."""
    congestion: str = ""
    """TCP congestion control of the bulk connections, one that this kernel has. Empty: reno between
    nodes of one machine, otherwise bbr, if the kernel has it."""
    insecure: bool = False
    """Neither encryption nor certificates: only for runs on this machine, and if all nodes of the
    run set it."""
    port_range: tuple[int, int] = (20000, 29999)
    """MASTER_PORT of the node's own process group is a free port of this range; both ends count."""
    directory: str = ""
    """Directory of the node's identity, keys, log, events and checkpoints; a relative path starts
    at the current directory. Empty: `runs/RUN/NAME` (the names of run and node), for a joiner
    without `[run]` `runs/joined/NAME`, for a witness `runs/witnessed/NAME`; with the configuration
    file of `lowcomm init`, `NAME` beside that file. The directory belongs to one node of one run:
    `lowcomm resume` uses it again, another run or a second daemon is refused."""
    corpus: str = ""
    """If `[run.data] source` is "files": a folder, nested at will. Hidden files and files that are
    no text are skipped; `.gz` files are unpacked. If it is "tokens": a `.bin` file, a folder, or a
    pattern such as "data/fineweb_*.bin". If it is "datasets": a folder with a copy of the dataset
    (Parquet, JSON lines, text, CSV); empty: the Hub's own is read. Folders may have other places on
    other nodes."""
    tokenizer: str = ""
    """A tokenizer.json of Hugging Face, by which a text is made tokens: equal on all nodes.
    `lowcomm tokenizer train` makes one. It needs the extra `tokenizers`. Empty: bytes are tokens.
    With source "tokens" it only serves to show samples."""
    checkpoint_every_rounds: int = 10
    """Rounds from one checkpoint to the next. In a run with a per-step method: copies of the state,
    which are made each `run.method.snapshot_every_steps` steps."""
    checkpoints_kept: int = 2
    """Number of complete checkpoints on the disk; older ones are deleted. The newest complete one
    is never deleted, whatever becomes of the next."""
    outer_state: Literal["memory", "file"] = "memory"
    """Place of the daemon's large arrays and of its memory shared with the ranks. With `file`, they
    lie in files without names in `directory`, which take 32 to 96 bytes of disk for each parameter
    (DiLoCo: 44), and the kernel keeps in memory as much as fits. Results are the same bits. The
    daemon waits for the disk, so use a fast one."""
    memory_max_bytes: int = 0
    """If the daemon needs more bytes of memory than this, it refuses to start. 0: 90 % of the
    machine's free memory."""
    attach_timeout_s: float = 300.0
    """Your program must call `lowcomm.attach()` within so many seconds, or `hang_timeout_s` if that
    is larger; otherwise the node ends."""
    first_step_timeout_s: float = 1800.0
    """The ranks are restarted if the first step of a rank's process, which `torch.compile` may make
    slow, takes so many seconds, or `hang_timeout_s` if that is larger."""
    hang_timeout_s: float = 60.0
    """The ranks are restarted if a rank makes no step for so many seconds while it trains: set it
    above the longest evaluation. Building the model, and what an order asks for (evaluations of the
    built-in program, snapshots) may take 600 seconds, or this value if it is larger. Other nodes do
    not wait so long: they go on without this node when a rank has stalled, that is made no step for
    four times the longest of its last steps, and for 1.5 seconds at least. If a signal has stopped
    that rank, the ranks are restarted after 8 seconds of the stall."""
    rank_restarts_max: int = 5
    """The node gives up after this many restarts of its ranks in a row without a usable
    contribution, or after three attempts in a row that failed in the same way at the same step."""

    def __post_init__(self) -> None:
        check_values(
            "node",
            self,
            positive=(
                *("ranks", "checkpoint_every_rounds", "checkpoints_kept"),
                *("attach_timeout_s", "first_step_timeout_s", "hang_timeout_s"),
            ),
            not_negative=("memory_max_bytes", "micro_batch", "rank_restarts_max"),
        )
        low, high = self.port_range
        if not 1024 <= low <= high <= 65535:
            raise ConfigError(
                f"node.port_range must be two ports within 1024-65535, low first, got {low}, {high}"
            )
        elsewhere = self.other_hosts
        if elsewhere and (min(elsewhere) < 1 or sum(elsewhere) >= self.ranks):
            raise ConfigError(
                f"node.other_hosts must be positive numbers of ranks, together less than "
                f"node.ranks ({self.ranks}), got {list(elsewhere)}"
            )
        if bool(elsewhere) != bool(self.other_hosts_listen):
            raise ConfigError(
                "node.other_hosts and node.other_hosts_listen need each other: set, for example, "
                'node.other_hosts=[1] and node.other_hosts_listen="10.0.0.1:29400"'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """The content of a configuration file. The file of a joiner may leave `[run]` out."""

    run: RunConfig | None = None
    node: NodeConfig = field(default_factory=NodeConfig)


def check_node(run: RunConfig, node: NodeConfig) -> None:
    """Raise ConfigError if this node cannot take part in this run with the built-in program. The
    ranks of another program may work on the same rows (tensor parallelism, pipelines)."""
    if run.data.batch % node.ranks:
        raise ConfigError(
            f"run.data.batch ({run.data.batch}) must be a multiple of node.ranks ({node.ranks})"
        )


def load_config(
    path: Path | None, overrides: Sequence[str] = (), *, ranks: int | None = None
) -> FileConfig:
    """Read a TOML file, and apply `--set table.key=value` overrides (values as in TOML). `ranks`:
    `node.ranks` if neither sets it.

    Raises ConfigError with one line: the place, the error, and a correct value.
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
    if ranks is not None and isinstance(node := raw.setdefault("node", {}), dict):
        cast(dict[str, Any], node).setdefault("ranks", ranks)
    return cast(FileConfig, validate(FileConfig, raw, where=" and ".join(sources)))


def is_run_key(override: str) -> bool:
    """Whether `--set override` sets a key of `[run]`."""
    return override.lstrip().startswith("run.")


def with_node_keys(config: FileConfig, overrides: Sequence[str]) -> FileConfig:
    """The configuration of a node that starts again, with these `--set node.key=value`. Raises
    ConfigError, also for a key of `[run]`, which all nodes have agreed on."""
    raw = cast(dict[str, Any], json.loads(json.dumps(asdict(config))))
    for override in overrides:
        if is_run_key(override):
            raise ConfigError(
                f"--set {override}: a node that starts again can change keys of [node] only; keys "
                "of [run] change for all nodes, while the run goes on (see `lowcomm set --help`)"
            )
        _apply_override(raw, override)
    return cast(FileConfig, validate(FileConfig, raw, where="--set")) if overrides else config


def run_to_json(run: RunConfig) -> str:
    """Return the configuration with all defaults filled in, as canonical JSON."""
    return json.dumps(asdict(run), sort_keys=True, separators=(",", ":"))


def run_from_json(text: str) -> RunConfig:
    """Invert `run_to_json`. Raises ConfigError if the text is not a valid `[run]`."""
    try:
        raw = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the agreed [run] is not JSON: {error}") from error
    return cast(RunConfig, validate(RunConfig, raw, where="the agreed [run]"))


def first_difference(mine: Mapping[str, Any], agreed: Mapping[str, Any], at: str = "run") -> str:
    """Describe the first key with different values; "" if both configurations are equal.

    Values are equal if their JSON texts are: 1, 1.0 and true differ, a tuple equals a list.
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
    """Refuse NaN and the infinities, which Python's JSON reader accepts beyond the standard."""
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
        raise ConfigError(f"--set {shown(override)}: an override must be one line")
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
