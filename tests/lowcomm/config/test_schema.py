"""What a person may type, what is refused and in which words, and what peers compare."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowcomm.config.schema import (
    AdamWConfig,
    DataConfig,
    FileConfig,
    ModelConfig,
    NodeConfig,
    RunConfig,
    check_node,
    first_difference,
    load_config,
    run_from_json,
    run_to_json,
    with_node_keys,
)
from lowcomm.methods import DiLoCoMethod
from protocols.types.errors import ConfigError
from protocols.types.rules import ProtocolConfig

# Differs from the defaults in every table and in every type of leaf.
OTHER_RUN = RunConfig(
    name="other",
    seed=7,
    peers_min=3,
    outer_steps=5,
    model=ModelConfig(hidden_size=64, heads=2, kv_heads=1, tied_embeddings=True, rope_theta=5e5),
    optimizer=AdamWConfig(lr=1.0, betas=(0.8, 0.99), warmup_steps=0),
    method=DiLoCoMethod(inner_steps=10, outer_momentum=0.9),
    data=DataConfig(source="files", window=128, held_out_below=16, eval_window=64),
    protocol=ProtocolConfig(heartbeat_interval_s=0.25, silence_timeout_s=3.0),
)


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    return str(caught.value)


def test_without_a_file_the_node_has_its_defaults_and_there_is_no_run() -> None:
    assert load_config(None) == FileConfig(run=None, node=NodeConfig())


def test_an_empty_run_table_is_a_run_of_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "[run]")).run == RunConfig()


def test_a_file_sets_keys_of_every_table(tmp_path: Path) -> None:
    text = """
    [run]
    name = "other"
    seed = 7
    peers_min = 3
    outer_steps = 5
    [run.model]
    hidden_size = 64
    heads = 2
    kv_heads = 1
    tied_embeddings = true
    rope_theta = 500_000
    [run.optimizer]
    lr = 1
    betas = [0.8, 0.99]
    warmup_steps = 0
    [run.method]
    inner_steps = 10
    outer_momentum = 0.9
    [run.data]
    source = "files"
    window = 128
    held_out_below = 16
    eval_window = 64
    [run.protocol]
    heartbeat_interval_s = 0.25
    silence_timeout_s = 3.0
    [node]
    ranks = 2
    port_range = [30000, 30010]
    """
    node = NodeConfig(ranks=2, port_range=(30000, 30010))
    assert load_config(write(tmp_path, text)) == FileConfig(run=OTHER_RUN, node=node)


def test_a_whole_number_for_a_float_is_the_same_agreed_text(tmp_path: Path) -> None:
    runs = [load_config(write(tmp_path, f"[run.optimizer]\nlr = {lr}")).run for lr in ("1", "1.0")]
    assert runs[0] is not None
    assert runs[1] is not None
    assert run_to_json(runs[0]) == run_to_json(runs[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run", "is not TOML: Expected"),
        ("[node]\nranks = 2\nranks = 2", "is not TOML: Cannot overwrite"),
        ("[nodes]\nranks = 2", ": unknown key nodes; known here: node, run"),
        ("[node]\nranks = 2.0", ": node.ranks: Input should be a valid integer, got 2.0"),
        ("run = 3", ": run: Input should be a dictionary or an instance of RunConfig, got 3"),
        ("run = " + "[" * 100_000, " is nested too deeply"),
        ("run = " + "1" * 5000, "is not TOML: Exceeds the limit"),
        ("[run]\nseed = 2026-01-01", ": run.seed: Input should be a valid integer, got datetime"),
        ("[run.optimizer]\nlr = 0", ": run.optimizer.lr must be positive, got 0"),
        (
            "[run.protocol]\nround_grace_s = 0",
            ": run.protocol.round_grace_s must be positive and finite, got 0",
        ),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}{message}" if message[0] == ":" else str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(path)


@pytest.mark.parametrize(
    ("name", "why"), [("none.toml", "No such file or directory"), ("", "Is a directory")]
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, name: str, why: str) -> None:
    path = tmp_path / name
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"cannot read {path}: {why}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run.model.hidden_size=124"], "hidden_size (124) must be a multiple of twice the heads"),
        (["run.model.kv_heads=3"], "heads (4) must be a multiple of kv_heads (3)"),
        (["run.optimizer.lr_final=1.5"], "run.optimizer.lr_final must be in [0, 1], got 1.5"),
        (["run.optimizer.lr_final=-0.1"], "run.optimizer.lr_final must be in [0, 1], got -0.1"),
        (["run.optimizer.weight_decay=-0.1"], "run.optimizer.weight_decay must not be negative"),
        (["run.optimizer.grad_clip=-1"], "run.optimizer.grad_clip must not be negative"),
        (["run.optimizer.warmup_steps=-1"], "run.optimizer.warmup_steps must not be negative"),
        (["run.optimizer.betas=[0.9, 1.0]"], "betas must be in [0, 1), got (0.9, 1.0)"),
        (["run.optimizer.betas=[-0.1, 0.9]"], "betas must be in [0, 1), got (-0.1, 0.9)"),
        (["run.method.outer_momentum=1.0"], "outer_momentum must be in [0, 1), got 1.0"),
        (["run.method.outer_momentum=-0.1"], "outer_momentum must be in [0, 1), got -0.1"),
        (["run.data.held_out_below=0"], "held_out_below must be in [1, 255], got 0"),
        (["run.data.held_out_below=256"], "held_out_below must be in [1, 255], got 256"),
        (["run.seed=-1"], "run.seed must not be negative, got -1"),
        ([f"run.seed={2**63}"], f"run.seed must fit into 64 bits, got {2**63}"),
        (["run.seed=0x" + "f" * 9999], "run.seed must fit into 64 bits, got something too large"),
        (["node.rank_restarts_max=-1"], "node.rank_restarts_max must not be negative, got -1"),
        (["node.memory_max_bytes=-1"], "node.memory_max_bytes must not be negative, got -1"),
        (["run.model.vocab_size=255"], "run.model.vocab_size must be at least 256"),
        (["run.model.vocab_size=-1"], "run.model.vocab_size must not be negative, got -1"),
        (["run.data.shard_type=int32"], "run.data.shard_type: Input should be 'uint16' or"),
        (["run.data.window=512"], "run.data.window (512) is longer than run.model.context (256)"),
        (
            ["run.model.context=255", "run.data.window=16"],
            "run.data.eval_window (256) is longer than run.model.context (255)",
        ),
        (["node.port_range=[1023, 2000]"], "low first, got 1023, 2000"),
        (["node.port_range=[2000, 65536]"], "low first, got 2000, 65536"),
        (["node.port_range=[3000, 2000]"], "low first, got 3000, 2000"),
        (["node.other_hosts=[1]", "node.ranks=2"], "need each other: set, for example"),
        (["node.other_hosts=[2]", "node.ranks=2"], "together less than node.ranks (2), got [2]"),
        (["node.other_hosts=[0]", "node.ranks=2"], "must be positive numbers of ranks"),
        (
            ["node.directory=a\0b"],
            "node.directory must be one line of printable text, got 'a\\x00b'",
        ),
        (["node.corpus=\udcff"], "node.corpus must be one line of printable text, got '\\udcff'"),
        (
            ["run.protocol.heartbeat_interval_s=1.0", "run.protocol.silence_timeout_s=2.9"],
            "--set: run.protocol.silence_timeout_s must be at least 3 heartbeats (3.0), got 2.9",
        ),
    ],
)
def test_an_impossible_value_says_what_would_be_right(overrides: list[str], message: str) -> None:
    assert message in refusal(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["run.model.hidden_size=128", "run.model.heads=64", "run.model.kv_heads=64"],
        ["run.optimizer.lr_final=1.0", "run.optimizer.betas=[0.0, 0.0]"],
        ["run.optimizer.grad_clip=0", "run.optimizer.weight_decay=0"],
        ["run.method.outer_momentum=0.0"],
        ["run.data.window=256", "run.data.eval_window=256", "run.model.context=256"],
        ["run.data.held_out_below=1"],
        ["run.data.held_out_below=255"],
        [f"run.seed={2**63 - 1}"],
        ["node.memory_max_bytes=0", "node.rank_restarts_max=0"],
        ["run.model.vocab_size=256"],
        ["run.model.vocab_size=65", "run.data.source=tokens"],
        ["run.model.vocab_size=65", f'run.data.tokenizer="{"a" * 64}"'],
        ["run.protocol.heartbeat_interval_s=0.6", "run.protocol.silence_timeout_s=1.8"],
        ["node.port_range=[1024, 1024]"],
        ["node.port_range=[65535, 65535]"],
        ["node.ranks=3", "node.other_hosts=[1, 1]", 'node.other_hosts_listen="10.0.0.1:2"'],
    ],
)
def test_a_value_at_the_edge_is_taken(overrides: list[str]) -> None:
    load_config(None, overrides)


@pytest.mark.parametrize("name", ["a", "_", "-x", "Run-2.1_b", "0" * 64])
def test_a_run_may_be_called_like_a_directory(name: str) -> None:
    assert RunConfig(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "a/b", "a b", "a\n", "0" * 65, "h\xe9", "\ud800", "\0", "\u0661"]
)
def test_a_run_may_not_be_called_like_anything_else(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^run\.name names a directory: ") as caught:
        RunConfig(name=name)
    assert str(caught.value).endswith(repr(name))
    with pytest.raises(ConfigError, match=r"^the agreed \[run\]: run\.name names a directory"):
        run_from_json(json.dumps({"name": name}))


def test_the_ranks_of_a_node_share_a_batch_equally() -> None:
    run = RunConfig(data=DataConfig(batch=8))
    check_node(run, NodeConfig(ranks=4))
    with pytest.raises(ConfigError) as caught:
        check_node(run, NodeConfig(ranks=3))
    assert str(caught.value) == "run.data.batch (8) must be a multiple of node.ranks (3)"


def test_the_file_is_named_and_so_is_an_override_on_top_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, "[run]\noutput = 1")
    with pytest.raises(ConfigError, match=r"run\.toml and --set: unknown key run\.output; known"):
        load_config(path, ["run.seed=1"])


def test_overrides_win_over_the_file_and_the_last_one_over_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path, '[run]\nseed = 1\nname = "kept"\n[node]\nranks = 2')
    config = load_config(path, ["run.seed=2", "run.seed = 3", "run.model.layers=2"])
    assert config.run == RunConfig(name="kept", seed=3, model=ModelConfig(layers=2))
    assert config.node == NodeConfig(ranks=2)


@pytest.mark.parametrize("value", ["alpha", '"alpha"', "'alpha'"])
def test_a_bare_word_is_text(value: str) -> None:
    assert load_config(None, [f"node.name={value}"]).node.name == "alpha"


def test_the_ranks_of_a_launcher_are_those_of_the_node_unless_it_says_otherwise(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.toml"
    assert load_config(None, ranks=2).node.ranks == 2
    assert load_config(None, ["node.ranks=3"], ranks=2).node.ranks == 3
    file.write_text("[node]\nranks = 1", encoding="utf-8")
    assert load_config(file, ranks=2).node.ranks == 1
    file.write_text("node = 1", encoding="utf-8")
    with pytest.raises(ConfigError, match="node"):
        load_config(file, ranks=2)


def test_an_override_may_hold_an_equals_sign_or_nothing() -> None:
    node = load_config(None, ["node.name=a=b", "node.listen="]).node
    assert (node.name, node.listen) == ("a=b", "")


@pytest.mark.parametrize("override", ["node.ranks", "ranks=2", "node=2", "nodes.ranks=2", "", "="])
def test_an_override_that_names_no_key_shows_how_to_write_one(override: str) -> None:
    assert refusal(override) == (
        f"--set {override}: write it as run.key=value or node.key=value, "
        "for example --set node.ranks=2"
    )


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    assert refusal("run.seed=1", "run.seed.x=2") == "--set run.seed.x=2: seed is not a table"
    with pytest.raises(ConfigError, match="run is not a table"):
        load_config(write(tmp_path, "run = 3"), ["run.seed=1"])


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize(
    "override", ["run.seed=1{}peers_min = 9", "run.name='a'{}", "run{}.seed=1"]
)
def test_an_override_is_one_line(override: str, end: str) -> None:
    text = refusal(override.format(end))
    assert text.startswith(("--set 'run", '--set "run'))
    assert text.isprintable()
    assert text.endswith(": an override must be one line")


def test_an_override_that_is_too_much_for_the_reader_is_refused() -> None:
    assert refusal("run.seed=" + "[" * 100_000) == "--set run.seed: the value is nested too deeply"
    message = "--set: run.seed: Input should be a valid integer, got "
    assert refusal("run.seed=" + "1" * 9999).startswith(message + "'111")
    assert (
        refusal("run.seed" + ".x" * 9999 + "=1") == message + "something too large to show (dict)"
    )


def test_a_node_that_starts_again_takes_other_keys_of_its_own() -> None:
    before = FileConfig(run=RunConfig(seed=3), node=NodeConfig(ranks=2, corpus="here"))
    after = with_node_keys(before, ["node.ranks=1", "node.port_range=[2000, 3000]"])
    expected = replace(before.node, ranks=1, port_range=(2000, 3000))
    assert after == FileConfig(run=before.run, node=expected)
    assert with_node_keys(FileConfig(), []) == FileConfig()
    with pytest.raises(ConfigError, match=r"--set run\.seed=1: .* keys of \[node\] only"):
        with_node_keys(before, ["run.seed=1"])
    with pytest.raises(ConfigError, match=r"unknown key node\.rankz"):
        with_node_keys(before, ["node.rankz=1"])


def test_total_inner_steps_are_those_of_all_outer_steps() -> None:
    assert OTHER_RUN.total_inner_steps == 50


@pytest.mark.parametrize("run", [RunConfig(), OTHER_RUN], ids=["defaults", "other"])
def test_the_agreed_text_comes_back_as_the_same_run(run: RunConfig) -> None:
    text = run_to_json(run)
    assert run_from_json(text) == run
    assert run_to_json(run_from_json(text)) == text


def test_the_agreed_text_is_canonical() -> None:
    text = run_to_json(OTHER_RUN)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert text.isascii()


def test_a_text_that_leaves_keys_out_means_their_defaults() -> None:
    assert run_from_json('{"model":{"layers":2}}') == RunConfig(model=ModelConfig(layers=2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the agreed [run] is not JSON"),
        ("{", "the agreed [run] is not JSON"),
        ('{"seed":' + "1" * 5000 + "}", "the agreed [run] is not JSON"),
        ("[" * 100_000, "the agreed [run] is not JSON"),
        ('{"seed":' * 100_000, "the agreed [run] is not JSON"),
        ('{"optimizer":{"lr":NaN}}', "the agreed [run] is not JSON: NaN is no number"),
        ('{"optimizer":{"lr":Infinity}}', "the agreed [run] is not JSON: Infinity is no number"),
        ('{"optimizer":{"lr":1e999}}', "run.optimizer.lr must be a finite number, got inf"),
        ('{"optimizer":{"lr":1' + "0" * 400 + "}}", "optimizer.lr: Input should be a valid number"),
        (
            "[]",
            "the agreed [run]: Input should be a dictionary or an instance of RunConfig, got []",
        ),
        ('{"sed":1}', "the agreed [run]: unknown key sed; known here: buffers, "),
        ('{"seed":"1"}', "the agreed [run]: seed: Input should be a valid integer, got '1'"),
        ('{"outer_steps":0}', "the agreed [run]: run.outer_steps must be positive, got 0"),
    ],
)
def test_an_agreed_text_that_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_from_json(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_text_is_the_same_however_a_run_was_written(tmp_path: Path) -> None:
    texts = ("[run]\nseed = 7\noptimizer = {lr = 1}", "[run]\noptimizer = {lr = 1.0}\nseed = 7")
    runs = [load_config(write(tmp_path, text)).run for text in texts]
    assert len({run_to_json(run) for run in runs if run is not None}) == 1


def test_every_table_is_in_the_text() -> None:
    base = RunConfig()
    others = [
        replace(base, seed=1),
        replace(base, model=ModelConfig(layers=5)),
        replace(base, optimizer=AdamWConfig(lr=0.5)),
        replace(base, method=DiLoCoMethod(inner_steps=3)),
        replace(base, data=DataConfig(batch=3)),
        replace(base, protocol=ProtocolConfig(round_grace_s=1.0)),
    ]
    assert len({run_to_json(run) for run in (base, *others)}) == 7


@pytest.mark.parametrize(
    ("mine", "agreed", "difference"),
    [
        ({}, {}, ""),
        ({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}, ""),
        ({"a": 1}, {"a": 2}, "run.a is 1 here and 2 in the run"),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, "run.a is 1 here and 2 in the run"),
        ({"a": {"x": 1, "y": 1}}, {"a": {"x": 1, "y": 2}}, "run.a.y is 1 here and 2 in the run"),
        ({"a": {"x": 1}, "b": 1}, {"a": {"x": 1}, "b": 2}, "run.b is 1 here and 2 in the run"),
        ({"a": 1}, {}, "run.a is 1 here and absent in the run"),
        ({}, {"a": None}, "run.a is absent here and null in the run"),
        ({"a": 1}, {"a": {"b": 1}}, 'run.a is 1 here and {"b": 1} in the run'),
        ({"a": 1}, {"a": 1.0}, "run.a is 1 here and 1.0 in the run"),
        ({"a": True}, {"a": 1}, "run.a is true here and 1 in the run"),
        ({"a": "1"}, {"a": 1}, 'run.a is "1" here and 1 in the run'),
        ({"a": (1, 2.0)}, {"a": [1, 2.0]}, ""),
        ({"a": [1, 2]}, {"a": [1, 2.0]}, "run.a is [1, 2] here and [1, 2.0] in the run"),
    ],
)
def test_the_first_difference_is_named_with_both_values(
    mine: dict[str, Any], agreed: dict[str, Any], difference: str
) -> None:
    assert first_difference(mine, agreed) == difference


def test_two_agreed_texts_differ_where_the_runs_do() -> None:
    mine, agreed = (json.loads(run_to_json(run)) for run in (RunConfig(), OTHER_RUN))
    assert first_difference(mine, mine) == ""
    assert first_difference(mine, agreed) == "run.data.eval_window is 256 here and 64 in the run"
