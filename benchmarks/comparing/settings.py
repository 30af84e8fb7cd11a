"""One training run of the comparison, as data: all that changes its result, and its name.

Must NOT train, nor know which settings are compared (rows.py).
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import xxhash

from lowcomm.config.schema import AdamWConfig, DataConfig, ModelConfig, MuonConfig, RunConfig
from lowcomm.methods import AllReduce, AnyMethod, DecoupledDiLoCo, RoundMethod
from lowcomm.validation import validate
from protocols.types.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ENGINE = 1
"""Raise it when the same setting comes to another result: what was kept is then made again."""
FORMER_DEFAULTS: Mapping[tuple[type, str], Any] = {(DecoupledDiLoCo, "fragments"): 8}
"""Of keys whose default is another one now: names still leave out what they left out before."""
World = Literal["equal", "speeds", "churn"]
MODEL = ModelConfig(context=128)
"""0.86 M parameters."""
OPTIMIZER = AdamWConfig(lr=6e-3)
"""The learning rate that was best for all-reduce (docs/experiments.md)."""
DATA = DataConfig(window=128, batch=16, eval_window=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Nodes with a model each; the first steps of the run are the warm start that all have."""

    method: AnyMethod
    """After the warm start."""
    seed: int = 0
    """Of the initial parameters, the order of the data, and virtual time."""
    steps: int = 720
    """Inner steps of each node, those of the warm start too; a node at half speed makes half."""
    warm_steps: int = 300
    """Of them by all-reduce. 0: from scratch."""
    warm_optimizer: AdamWConfig = OPTIMIZER
    """Of the warm start: the same one for all points of all methods."""
    nodes: int = 4
    world: World = "equal"
    """`speeds`: nodes of several speeds. `churn`: a node is lost, and another one joins."""
    model: ModelConfig = MODEL
    optimizer: AdamWConfig | MuonConfig = OPTIMIZER
    data: DataConfig = DATA

    def __post_init__(self) -> None:
        if not 0 <= self.warm_steps < self.steps:
            raise ConfigError(
                f"warm_steps must be in [0, {self.steps}), got {self.warm_steps}: "
                "some steps are the method's own"
            )
        own = self.steps - self.warm_steps
        if not isinstance(self.method, RoundMethod):
            if self.world != "equal":
                raise ConfigError(f"{self.method.name} has no rounds: its world must be equal")
        elif self.method.qsr_alpha or self.method.round_s:
            raise ConfigError("qsr_alpha and round_s: here all rounds have inner_steps")
        elif own % self.method.inner_steps:
            raise ConfigError(
                f"{own} steps after the warm start are no whole rounds of "
                f"{self.method.inner_steps}: change steps or warm_steps"
            )
        _ = self.run  # What no run could be is no setting.

    @property
    def warm(self) -> "Setting":
        """Equal for all settings that begin with the same warm start."""
        return replace(self, method=AllReduce(), optimizer=self.warm_optimizer, world="equal")

    @property
    def run(self) -> RunConfig:
        """What daemons and ranks would be told of the steps after the warm start."""
        own, method = self.steps - self.warm_steps, self.method
        return RunConfig(
            outer_steps=own // method.inner_steps if isinstance(method, RoundMethod) else own,
            peers_min=self.nodes,
            seed=self.seed,
            model=self.model,
            optimizer=self.optimizer,
            method=method,
            data=self.data,
        )

    @property
    def step_tokens(self) -> int:
        """Of one inner step of one node."""
        return self.data.batch * self.data.window

    @property
    def own_tokens(self) -> int:
        """Of all nodes, after the warm start, if none is slow or lost."""
        return (self.steps - self.warm_steps) * self.nodes * self.step_tokens


def digest(setting: Setting) -> str:
    """16 hex digits. Only what differs from its default counts, so a key that a configuration
    gets later leaves results as they are; see `agrees` for a default that changes."""
    text = json.dumps({"engine": ENGINE, "setting": said(setting)}, sort_keys=True)
    return xxhash.xxh3_64_hexdigest(text.encode("ascii"))


def said(config: "DataclassInstance") -> dict[str, Any]:
    """The keys that differ from their defaults, and the name of a method."""
    found: dict[str, Any] = {}
    for one in fields(config):
        value = getattr(config, one.name)
        if is_dataclass(value) and not isinstance(value, type):
            found[one.name] = said(value)
        elif one.name == "name" or value != _default(config, one):
            found[one.name] = value
    return found


def recorded(setting: Setting) -> dict[str, Any]:
    """All keys, as JSON has them."""
    return json.loads(json.dumps(asdict(setting)))


def agrees(record: Mapping[str, Any], setting: Setting) -> bool:
    """Whether a record is of this setting, as defaults are now: each of its keys has this value."""
    return _within(record, recorded(setting))


def setting_of(record: Mapping[str, Any]) -> Setting:
    """The inverse of `recorded`. Raises ConfigError."""
    return cast(Setting, validate(Setting, record, where="the setting"))


def _default(config: "DataclassInstance", one: "Field[Any]") -> Any:
    former = FORMER_DEFAULTS.get((type(config), one.name))
    if former is not None:
        return former
    return one.default_factory() if one.default_factory is not MISSING else one.default


def _within(record: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    for key, value in record.items():
        if isinstance(value, Mapping) and isinstance(present.get(key), Mapping):
            if not _within(cast(Mapping[str, Any], value), present[key]):
                return False
        elif key not in present or present[key] != value:
            return False
    return True
