"""One training run of the comparison, as data: all parameters that change its result, and its name.

Must NOT train, nor know which settings are compared (rows.py).
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import xxhash

from lowcomm.config import AdamWConfig, DataConfig, ModelConfig, MuonConfig, RunConfig
from lowcomm.methods import AllReduceMethod, AnyMethod, DecoupledDiLoCoMethod, RoundMethod
from lowcomm.validation import validate
from protocols.types import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ENGINE = 1
"""Increase it if the same setting gives another result: kept results are then made again."""
FORMER_DEFAULTS: Mapping[tuple[type, str], Any] = {(DecoupledDiLoCoMethod, "fragments"): 8}
"""Former defaults of keys: names omit these values, so that kept outcomes keep their names."""
World = Literal["equal", "speeds", "churn"]
MODEL = ModelConfig(context=128)
"""0.86 M parameters."""
OPTIMIZER = AdamWConfig(lr=6e-3)
"""The learning rate of all-reduce, if a row does not name another one (docs/log.md)."""
DATA = DataConfig(window=128, batch=16, eval_window=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run of nodes with a model each; its first steps are the warm start that all settings
    share."""

    method: AnyMethod
    """The method after the warm start."""
    seed: int = 0
    """Seed of the initial parameters, the order of the data, and virtual time."""
    steps: int = 720
    """Inner steps of each node, warm start included; a node at half speed makes half of them."""
    warm_steps: int = 300
    """Number of these steps that are by all-reduce; 0: no warm start."""
    warm_optimizer: AdamWConfig = OPTIMIZER
    """Optimizer of the warm start, the same one for all points of all methods."""
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
                "the method needs steps of its own"
            )
        own = self.steps - self.warm_steps
        if not isinstance(self.method, RoundMethod):
            if self.world != "equal":
                raise ConfigError(f"{self.method.name} has no rounds: its world must be equal")
        elif self.method.qsr_alpha or self.method.round_s:
            raise ConfigError(
                "qsr_alpha and round_s cannot be set here: all rounds have inner_steps steps"
            )
        elif own % self.method.inner_steps:
            raise ConfigError(
                f"{own} steps after the warm start are no whole rounds of "
                f"{self.method.inner_steps}: change steps or warm_steps"
            )
        _ = self.run  # Raises ConfigError if no run could have this configuration.

    @property
    def warm(self) -> "Setting":
        """The setting of the warm start, equal for all settings that begin with the same one."""
        return replace(self, method=AllReduceMethod(), optimizer=self.warm_optimizer, world="equal")

    @property
    def run(self) -> RunConfig:
        """The configuration that daemons and ranks would get for the steps after the warm start."""
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
        """Tokens of one inner step of one node."""
        return self.data.batch * self.data.window

    @property
    def own_tokens(self) -> int:
        """Tokens of all nodes after the warm start, if no node is slow or lost."""
        return (self.steps - self.warm_steps) * self.nodes * self.step_tokens


def digest(setting: Setting) -> str:
    """The setting's name, 16 hex digits. Only values that differ from their defaults count, so
    results keep their names if a configuration gets a new key; see `agrees` for a default that
    changes."""
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
    """All keys and values of the setting, as JSON types."""
    return json.loads(json.dumps(asdict(setting)))


def agrees(record: Mapping[str, Any], setting: Setting) -> bool:
    """Is this the record of the setting, with today's defaults? Each of its keys must have the same
    value."""
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
