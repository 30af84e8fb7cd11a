"""What becomes of plain data that somebody else wrote: a checked dataclass, or one line."""

import math
from dataclasses import dataclass, field, fields

import pytest

from lowcomm.config.schema import (
    AdamWConfig,
    DataConfig,
    ModelConfig,
    NodeConfig,
    RunConfig,
    load_config,
)
from lowcomm.methods import DiLoCoMethod
from lowcomm.validation import SHOWN_CHARS_MAX, check_values, shown, validate
from protocols.types.errors import ConfigError
from protocols.types.rules import ProtocolConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    count: int = 1
    rate: float = 0.5
    pair: tuple[float, float] = (0.0, 1.0)
    text: str = ""
    flag: bool = False

    def __post_init__(self) -> None:
        check_values("leaf", self, positive=("count",), not_negative=("rate",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    leaf: Leaf = field(default_factory=Leaf)
    leaves: tuple[Leaf, ...] = ()
    maybe: Leaf | None = None


def refusal(raw: object, cls: type = Tree) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(cls, raw, where="the letter")
    return str(caught.value)


def typed(override: str) -> str:
    """Why a configuration with this one override is refused."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    return str(caught.value)


def test_plain_data_becomes_the_dataclass() -> None:
    raw = {"leaf": {"count": 2, "rate": 1}, "leaves": [{"pair": [0, 2]}], "maybe": None}
    made = validate(Tree, raw, where="")
    assert made == Tree(leaf=Leaf(count=2, rate=1.0), leaves=(Leaf(pair=(0.0, 2.0)),))
    assert isinstance(made, Tree)
    assert type(made.leaf.rate) is float  # Or the agreed text would be another one.


@pytest.mark.parametrize("raw", [3, [], None, "x"])
def test_at_the_top_there_is_no_key_to_name(raw: object) -> None:
    assert refusal(raw).startswith("the letter: Input should be a dictionary")


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        ({"leaf": {"count": "1"}}, "leaf.count"),
        ({"leaf": {"count": True}}, "leaf.count"),
        ({"leaf": {"count": 1.0}}, "leaf.count"),
        ({"leaf": {"flag": 1}}, "leaf.flag"),
        ({"leaf": {"rate": "1"}}, "leaf.rate"),
        ({"leaf": {"rate": False}}, "leaf.rate"),
        ({"leaf": {"text": 1}}, "leaf.text"),
        ({"leaves": [{}, {"pair": [0.0, "1"]}]}, "leaves.1.pair.1"),
    ],
)
def test_nothing_is_converted_and_the_place_is_named(raw: object, at: str) -> None:
    assert refusal(raw).startswith(f"the letter: {at}: Input should be a valid ")


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"x": 1}, "x; known here: leaf, leaves, maybe"),
        ({"leaf": {"x": 1}}, "leaf.x; known here: count, flag, pair, rate, text"),
        ({"maybe": {"x": 1}}, "maybe.x; known here: count, flag, pair, rate, text"),
        ({"leaves": [{}, {"x": 1}]}, "leaves.1.x; known here: count, flag, pair, rate, text"),
    ],
)
def test_an_unknown_key_is_named_with_the_known_ones_of_its_table(raw: object, key: str) -> None:
    assert refusal(raw) == f"the letter: unknown key {key}"


@pytest.mark.parametrize("key", ["a\nb", "\x1b[31m", "\ud800", "x" * 100_000])
def test_a_key_from_anybody_is_shown_on_one_short_line(key: str) -> None:
    text = refusal({"leaf": {key: 1}})
    assert text.isprintable()
    assert len(text) < 300


def test_what_the_dataclass_itself_refuses_says_where_too() -> None:
    assert refusal({"leaves": [{"count": 0}]}) == "the letter: leaf.count must be positive, got 0"
    assert refusal({"count": 0}, Leaf) == "the letter: leaf.count must be positive, got 0"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": 0}, "leaf.count must be positive, got 0"),
        ({"rate": -0.5}, "leaf.rate must not be negative, got -0.5"),
        ({"rate": float("nan")}, "leaf.rate must be a finite number, got nan"),
        ({"pair": (0.0, float("inf"))}, "leaf.pair must be a finite number, got (0.0, inf)"),
        ({"count": 2**63}, f"leaf.count must fit into 64 bits, got {2**63}"),
        ({"text": "a\tb"}, "leaf.text must be one line of printable text, got 'a\\tb'"),
        ({"text": "\u2028"}, "leaf.text must be one line of printable text, got '\\u2028'"),
    ],
)
def test_a_value_that_no_key_may_have_is_refused(changed: dict[str, object], message: str) -> None:
    assert refusal(changed, Leaf) == f"the letter: {message}"


def test_values_at_the_edge_are_taken() -> None:
    assert Leaf(count=2**63 - 1, rate=0.0, pair=(-1e308, 5e-324), text="a b\xe9").count == 2**63 - 1


def test_what_is_shown_is_short_and_one_line_whatever_it_is() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in ("x" * 10_000, "a\nb", 1 << 100_000, deep, {"k": [1] * 10_000}):
        text = shown(value)
        assert text.isprintable()
        assert len(text) <= SHOWN_CHARS_MAX + 3
    assert shown("ab") == "'ab'"
    while deep:  # Piece by piece: nobody recurses to free it.
        deep = deep.pop()  # type: ignore[assignment]


# Every table of the configuration is checked so.


@pytest.mark.parametrize(
    ("override", "key", "known"),
    [
        ("node.rank=2", "node.rank", "ranks"),
        ("run.sed=1", "run.sed", "seed"),
        ("run.model.hiden_size=8", "run.model.hiden_size", "hidden_size"),
        ("run.optimizer.lrate=1.0", "run.optimizer.lrate", "lr_final"),
        ("run.method.steps=1", "run.method.steps", "inner_steps"),
        ("run.data.files=1", "run.data.files", "source"),
        ("run.protocol.timeout_s=1.0", "run.protocol.timeout_s", "silence_timeout_s"),
    ],
)
def test_an_unknown_key_is_named_with_those_that_are_known(
    override: str, key: str, known: str
) -> None:
    text = typed(override)
    assert text.startswith(f"--set: unknown key {key}; known here: ")
    assert known in text.partition("known here: ")[2].split(", ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('node.ranks="30"', "node.ranks: Input should be a valid integer, got '30'"),
        ("node.ranks=true", "node.ranks: Input should be a valid integer, got True"),
        ("node.ranks=3.0", "node.ranks: Input should be a valid integer, got 3.0"),
        ("run.optimizer.lr=true", "run.optimizer.lr: Input should be a valid number, got True"),
        ('run.optimizer.lr="1"', "run.optimizer.lr: Input should be a valid number, got '1'"),
        ("run.model.tied_embeddings=1", "run.model.tied_embeddings: Input should be a valid bool"),
        ("node.name=3", "node.name: Input should be a valid string, got 3"),
        ("node.device=tpu", "node.device: Input should be 'cpu' or 'cuda', got 'tpu'"),
        ("run.model=3", "run.model: Input should be a dictionary or an instance of ModelConfig"),
        ("run.optimizer.betas=[0.9]", "run.optimizer.betas.1: Field required"),
        ("run.optimizer.betas=[0.9, 0.9, 0.9]", "run.optimizer.betas: Tuple should have at most 2"),
        ('run.optimizer.betas=[0.9, "0.9"]', "run.optimizer.betas.1: Input should be a valid numb"),
        ("node.port_range=[20000.0, 20001]", "node.port_range.0: Input should be a valid integer"),
        ("node.port_range=5", "node.port_range: Input should be a valid tuple, got 5"),
    ],
)
def test_a_value_of_a_wrong_type_is_never_converted(override: str, message: str) -> None:
    assert message in typed(override)


@pytest.mark.parametrize(
    ("override", "end"),
    [
        ("run.method.contribution_codec=int9", "got 'int9'. Did you mean 'int8'?"),
        ("run.method.result_codec=gahter", "got 'gahter'. Did you mean 'gather'?"),
        ("run.method.aggregate=trimmedmean", "got 'trimmedmean'. Did you mean 'trimmed_mean'?"),
        ("node.device=cdua", "Input should be 'cpu' or 'cuda', got 'cdua'. Did you mean 'cuda'?"),
        ("run.method.aggregate=zzz", "or 'centred_clipping', got 'zzz'"),
        ("run.method.contribution_codec=8", "or 'powersgd', got 8"),
    ],
)
def test_a_wrong_choice_is_refused_with_those_that_there_are_and_the_nearest(
    override: str, end: str
) -> None:
    key, text = override.partition("=")[0], typed(override)
    assert text.startswith(f"--set: {key}: Input should be ")
    assert text.endswith(end)


POSITIVE = {
    "run": ("peers_min", "outer_steps"),
    "run.model": (
        "hidden_size",
        "layers",
        "heads",
        "kv_heads",
        "intermediate_size",
        "context",
        "rope_theta",
        "norm_eps",
        "embedding_std",
    ),
    "run.optimizer": ("lr", "eps"),
    "run.method": ("inner_steps", "outer_lr"),
    "run.data": ("window", "batch", "eval_windows", "eval_window"),
    "run.protocol": tuple(x.name for x in fields(ProtocolConfig) if x.type is not bool),
    "node": (
        *("ranks", "checkpoint_every_rounds", "checkpoints_kept"),
        *("attach_timeout_s", "first_step_timeout_s", "hang_timeout_s"),
    ),
}


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table, keys in POSITIVE.items() for key in keys]
)
@pytest.mark.parametrize("value", ["0", "-1"])
def test_what_must_be_positive_is_neither_zero_nor_negative(
    table: str, key: str, value: str
) -> None:
    text = typed(f"{table}.{key}={value}")
    assert text.startswith(f"--set: {table}.{key} must be positive")
    assert text.endswith((f", got {value}", f", got {value}.0"))


FLOATS = {
    "run.model": ("rope_theta", "norm_eps", "embedding_std"),
    "run.optimizer": ("lr", "weight_decay", "eps", "grad_clip", "lr_final"),
    "run.method": (
        *("outer_lr", "outer_momentum", "momentum_clip", "feedback_decay"),
        *("trimmed_share", "weight_max", "qsr_alpha", "round_s"),
    ),
    "run.protocol": tuple(x.name for x in fields(ProtocolConfig) if x.type is float),
    "node": ("attach_timeout_s", "first_step_timeout_s", "hang_timeout_s"),
}


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table, keys in FLOATS.items() for key in keys]
)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_no_number_is_infinite_or_none(table: str, key: str, value: str) -> None:
    text = typed(f"{table}.{key}={value}")
    assert text.startswith(f"--set: {table}.{key} must be ")
    assert "finite" in text


def test_the_tests_know_every_float() -> None:
    tables = {
        "run": RunConfig,
        "run.model": ModelConfig,
        "run.optimizer": AdamWConfig,
        "run.method": DiLoCoMethod,
        "run.data": DataConfig,
        "run.protocol": ProtocolConfig,
        "node": NodeConfig,
    }
    floats = {
        table: {field.name for field in fields(cls) if field.type is float}
        for table, cls in tables.items()
    }
    assert {table: names for table, names in floats.items() if names} == {
        table: set(names) for table, names in FLOATS.items()
    }


def test_a_part_of_a_pair_must_be_finite_too_and_code_is_checked_like_files() -> None:
    text = typed("run.optimizer.betas=[0.9, nan]")
    assert text == "--set: run.optimizer.betas must be a finite number, got (0.9, nan)"
    with pytest.raises(ConfigError, match=r"^run\.optimizer\.lr must be a finite number, got nan"):
        AdamWConfig(lr=math.nan)
    with pytest.raises(ConfigError, match=r"^run\.protocol\.silence_timeout_s must be positive"):
        ProtocolConfig(silence_timeout_s=math.inf)
