"""Methods as the daemon uses them: fragments, codecs, and the outer step."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

import lowcomm.methods
from lowcomm.codecs import codec
from lowcomm.codecs.fp32 import Fp32
from lowcomm.config.schema import RunConfig, load_config, run_from_json, run_to_json
from lowcomm.methods import (
    AllReduceMethod,
    AnyMethod,
    DecoupledDiLoCoMethod,
    DiLoCoMethod,
    EagerDiLoCoMethod,
    LocalSGDMethod,
    StreamingDiLoCoMethod,
)
from lowcomm.methods.base import GATHERED, Parameter, RoundMethod
from lowcomm.numerics.operations import F32, nesterov_step
from lowcomm.numerics.state_digests import state_digest
from protocols.types.errors import ConfigError
from protocols.types.ids import Contributor, PeerId


def test_diloco_has_one_fragment_and_the_configured_codecs() -> None:
    diloco = DiLoCoMethod(inner_steps=17)
    assert diloco.name == "diloco"
    assert diloco.inner_steps == 17
    assert diloco.fragments_of([Parameter("lm_head.weight", (4, 3)), Parameter("norm", (3,))]) == (
        0,
        0,
    )
    assert diloco.codec.name == "fp32"
    assert isinstance(diloco.mean_codec, Fp32)
    assert diloco.state_arrays == ("outer", "momentum")


def test_diloco_steps_with_the_configured_rate_and_momentum() -> None:
    diloco = DiLoCoMethod(outer_lr=0.4, outer_momentum=0.75)
    outer, momentum, mean = (np.arange(5, dtype=np.float32) + k for k in range(3))
    ours, ours_momentum = np.zeros((2, 5), np.float32)
    diloco.outer_step(outer, momentum, mean, ours, ours_momentum)
    assert (outer.tolist(), momentum.tolist()) == ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5])
    nesterov_step(outer, mean, momentum, outer, momentum, lr=0.4, beta=0.75)
    assert state_digest(ours, ours_momentum) == state_digest(outer, momentum)
    assert mean.tolist() == [2, 3, 4, 5, 6]


def test_peers_that_agree_become_their_mean() -> None:
    """Rate 1 and no momentum: after a round the outer parameters are the mean of the local ones."""
    diloco = DiLoCoMethod(outer_lr=1.0, outer_momentum=0.0)
    outer, none = np.full(3, 8, np.float32), np.empty(0, np.float32)
    local_mean = np.array([6, 8, 11], np.float32)
    ours = np.zeros(3, np.float32)
    diloco.outer_step(outer, none, outer - local_mean, ours, none)
    assert ours.tolist() == local_mean.tolist()


def test_a_penalty_on_stale_means_is_a_lower_outer_rate() -> None:
    """CO2's published code (github.com/weigao266/fairscale-CO2, co2.py) divides each mean by a
    constant, the gap penalty, and then clips the momentum."""
    penalty, clip, lr, beta = 4.0, 0.05, 0.7, 0.9
    ours = StreamingDiLoCoMethod(
        outer_lr=lr / penalty, outer_momentum=beta, momentum_clip=clip * penalty
    )
    outer, momentum = np.zeros((2, 100), np.float32)
    theirs, buffer = np.zeros((2, 100))
    for round_ in range(20):
        mean = np.random.default_rng(round_).standard_normal(100, np.float32) + np.float32(0.1)
        ours.outer_step(outer, momentum, mean, outer, momentum)
        buffer = np.clip(beta * buffer + mean / penalty, -clip, clip)
        theirs -= lr * (beta * buffer + mean / penalty)
    np.testing.assert_allclose(outer, theirs, rtol=0, atol=1e-5)


def test_an_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["run.method.name=dilocko"])
    known = sorted(each.__dataclass_fields__["name"].default for each in get_args(AnyMethod))
    assert str(caught.value) == (
        f"--set: run.method.name is 'dilocko'; known: {', '.join(known)}. Did you mean 'diloco'?"
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["run.method.name=allreduce", "run.method.outer_lr=1.0"],
            "unknown key run.method.outer_lr; known here: commit_every_steps, contribution_codec,",
        ),
        (["run.method.name=3"], "run.method.name is 3; known: allreduce, decoupled_diloco,"),
        (["run.method=3"], "run.method"),
        (["run.method.outer_lr=0.0"], "run.method.outer_lr must be positive, got 0.0"),
        (["run.method.inner_steps=1.5"], "run.method.inner_steps: "),
        (
            ["run.method.name=allreduce", "run.optimizer.name=muon"],
            'run.optimizer.name is "muon", but with run.method.name = "allreduce" all nodes take',
        ),
        (
            ["run.method.name=flexdemo", "run.optimizer.joiner_warmup_steps=9"],
            'joiner_warmup_steps is 9, but with run.method.name = "flexdemo" a joiner gets the',
        ),
        (["run.optimizer.joiner_warmup_steps=-1"], "joiner_warmup_steps must not be negative"),
        (["run.optimizer.name=muoon"], "known: adamw, muon. Did you mean 'muon'?"),
        (["run.optimizer.momentum=0.9"], "unknown key run.optimizer.momentum; known here: betas,"),
        (["run.optimizer.name=muon", "run.optimizer.momentum=1.0"], "momentum must be in [0, 1)"),
    ],
)
def test_each_method_has_keys_of_its_own(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_method_comes_back_from_the_log_as_it_was() -> None:
    for method in (
        DiLoCoMethod(inner_steps=3),
        AllReduceMethod(commit_every_steps=2, snapshot_every_steps=4),
    ):
        run = RunConfig(method=method)
        assert run_from_json(run_to_json(run)) == run


def test_what_the_daemon_imports_reaches_no_torch() -> None:
    program = (
        "import sys, lowcomm.methods, lowcomm.codecs, lowcomm.checkpoints.checkpoint;"
        "print(*({'torch', 'safetensors', 'pydantic'} & sys.modules.keys()))"
    )
    package: Any = lowcomm.methods
    root = Path(package.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == []


NAMED = {
    field: get_args(get_type_hints(DiLoCoMethod)[field])
    for field in ("contribution_codec", "result_codec")
}


@pytest.mark.parametrize("result", NAMED["result_codec"])
@pytest.mark.parametrize("contribution", NAMED["contribution_codec"])
def test_every_pair_of_codecs_is_one_that_works_or_is_refused_with_what_would(
    contribution: Any, result: Any
) -> None:
    ours = codec(contribution)
    if not ours.reducible and result not in ("auto", "gather"):
        with pytest.raises(ConfigError, match=f'is "{result}", but .* leave it out, or set "gath'):
            DiLoCoMethod(contribution_codec=contribution, result_codec=result)
        return
    made = DiLoCoMethod(contribution_codec=contribution, result_codec=result)
    assert made.codec.name == contribution
    found = made.mean_codec.name if made.mean_codec is not None else "gather"
    wanted = "gather" if contribution in GATHERED else "fp32"
    assert found == (wanted if result == "auto" else result)
    assert made.mean_codec is None or made.mean_codec.reducible


@pytest.mark.parametrize(
    ("contribution", "decay"),
    [
        *(("topk", 0.95), ("topk2bit", 0.95), ("2bit", 0.95), ("sign", 0.95)),
        *(("powersgd", 0.95), ("int8", 0.0)),
    ],
)
def test_codecs_that_leave_much_out_go_with_error_feedback(contribution: Any, decay: float) -> None:
    made = DiLoCoMethod(contribution_codec=contribution, feedback_decay=0.95)
    assert made.feedback == decay
    without = DiLoCoMethod(contribution_codec=contribution, feedback_decay=0.0)
    assert without.feedback == 0


@pytest.mark.parametrize("name", NAMED["contribution_codec"])
def test_what_needs_error_feedback_is_refused_where_there_is_none(name: Any) -> None:
    if not DiLoCoMethod(contribution_codec=name).feedback:
        assert AllReduceMethod(contribution_codec=name).contribution_codec == name
        return
    with pytest.raises(
        ConfigError,
        match=rf'^run\.method\.contribution_codec is "{name}", but .* lost for good: set "ternary"',
    ):
        AllReduceMethod(contribution_codec=name)


@pytest.mark.parametrize("decay", [-0.1, 1.1])
def test_no_more_than_what_was_left_out_goes_into_the_next(decay: float) -> None:
    with pytest.raises(ConfigError, match=r"feedback_decay must be in \[0, 1\]"):
        DiLoCoMethod(feedback_decay=decay)


BLOCKS = [
    Parameter(name, (2,))
    for name in (
        "model.embed_tokens.weight",
        *(f"model.layers.{number}.{part}.weight" for number in range(12) for part in ("a", "b")),
        "model.norm.weight",
        "lm_head.weight",
    )
]


@pytest.mark.parametrize(
    ("pattern", "blocks"),
    [("strided", "123412341234"), ("sequential", "111222333444")],
)
def test_blocks_are_spread_over_fragments_and_all_else_is_the_anchor(
    pattern: Any, blocks: str
) -> None:
    made = StreamingDiLoCoMethod(fragments=5, pattern=pattern)
    found = made.fragments_of(BLOCKS)
    assert found[0] == found[-2] == found[-1] == 0
    assert "".join(map(str, found[1:-2:2])) == "".join(map(str, found[2:-2:2])) == blocks


def test_a_model_of_blocks_alone_has_them_in_every_fragment() -> None:
    names = ("0.weight", "0.bias", "2.weight", "4.weight")
    found = StreamingDiLoCoMethod(fragments=3).fragments_of(
        [Parameter(name, (1,)) for name in names]
    )
    assert found == (0, 0, 1, 2)
    assert StreamingDiLoCoMethod(fragments=1).fragments_of(BLOCKS) == (0,) * len(BLOCKS)


@pytest.mark.parametrize(
    ("parameters", "most"), [(BLOCKS, 13), (BLOCKS[1:-2], 12), (BLOCKS[:1], 1)]
)
def test_more_fragments_than_a_model_has_blocks_are_refused(
    parameters: list[Parameter], most: int
) -> None:
    made = StreamingDiLoCoMethod(fragments=14)
    with pytest.raises(ConfigError, match=f"this model has .* blocks .*: at most {most}$"):
        made.fragments_of(parameters)
    fits = StreamingDiLoCoMethod(fragments=most).fragments_of(parameters)
    assert sorted(set(fits)) == list(range(most))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            {"inner_steps": 16, "fragments": 4, "overlap_steps": 16},
            r"overlap_steps \(16\) must be below inner_steps \(16\), because .*: at most 15$",
        ),
        ({"inner_steps": 7, "fragments": 1, "overlap_steps": 9}, "at most 6$"),
        ({"inner_steps": 5, "fragments": 6}, r"fragments \(6\) must be at most 5: "),
        ({"fragments": 0}, "fragments must be positive"),
        ({"overlap_steps": -1}, "overlap_steps must not be negative"),
        ({"mixing": 1.0}, r"mixing must be in \[0, 1\), got 1.0"),
        ({"mixing": -0.1}, r"mixing must be in \[0, 1\)"),
        ({"outer_lr": 0.0}, "outer_lr must be positive"),
    ],
)
def test_what_streaming_cannot_do_is_refused_with_what_it_can(
    said: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^run\.method\..*{why}"):
        StreamingDiLoCoMethod(**said)


def test_the_longest_overlaps_are_taken() -> None:
    for steps, fragments, overlap in ((16, 4, 15), (7, 2, 6), (5, 1, 4), (3, 3, 2), (1, 1, 0)):
        StreamingDiLoCoMethod(inner_steps=steps, fragments=fragments, overlap_steps=overlap)
    assert EagerDiLoCoMethod(inner_steps=9).overlap_steps == 9


def test_who_discards_what_was_trained_meanwhile() -> None:
    assert StreamingDiLoCoMethod(mixing=0.0).discards_overlap
    assert not StreamingDiLoCoMethod(mixing=0.5).discards_overlap
    assert not EagerDiLoCoMethod().discards_overlap


def test_local_sgd_goes_on_from_the_mean_and_keeps_nothing_else() -> None:
    method, none = LocalSGDMethod(), np.empty(0, np.float32)
    assert method.state_arrays == ("outer",)
    outer, local_mean = np.full(3, 8, np.float32), np.array([6, 8, 11], np.float32)
    ours = np.zeros(3, np.float32)
    method.outer_step(outer, none, outer - local_mean, ours, none)
    assert ours.tolist() == local_mean.tolist()


def terms(*tokens: int) -> list[Contributor]:
    return [Contributor(PeerId(f"p{i}.0"), count, 1, "m") for i, count in enumerate(tokens)]


@pytest.mark.parametrize(
    ("limit", "tokens", "wanted"),
    [
        (0.0, (1, 10, 10**15), [1, 10, 10**15]),
        (1.0, (1, 10, 10**15), [1, 10, 10]),
        (2.5, (3, 10, 40, 7), [3, 10, 17, 7]),
        (1e300, (2**63, 1, 2**63), [2**63, 1, 2**63]),
        (2.0, (), []),
        (2.0, (0, 0, 5, 30), [0, 0, 5, 10]),
        (2.0, (0, 0), [0, 0]),
    ],
)
def test_no_weight_is_more_than_so_many_times_the_median_one(
    limit: float, tokens: tuple[int, ...], wanted: list[int]
) -> None:
    assert DiLoCoMethod(weight_max=limit).weights(terms(*tokens)) == wanted


ROUND_METHODS = [each for each in get_args(AnyMethod) if issubclass(each, RoundMethod)]


@pytest.mark.parametrize("method", ROUND_METHODS)
def test_a_weight_that_nobody_could_have_is_cut_by_default(method: Any) -> None:
    made = method()
    *others, largest = made.weights(terms(100, 100, 100, 100, 10**9))
    assert largest <= 10 * others[0]
    speeds = [replace(each, steps=each.tokens // 100) for each in terms(100, 100, 200, 400)]
    assert made.weights(speeds) == [made.weight(each) for each in speeds]


def moved(method: RoundMethod, contributions: list[F32], tokens: tuple[int, ...]) -> float:
    """How far from what the first one says, in its own length."""
    out = np.empty_like(contributions[0])
    rooms = [np.empty_like(out) for _ in range(len(contributions) + 1)]
    method.combine(contributions, terms(*tokens), out, rooms.__getitem__)
    right = contributions[0]
    return float(np.linalg.norm(out - right) / np.linalg.norm(right))


@pytest.mark.parametrize("aggregate", ["mean", "clipped_mean", "centred_clipping"])
def test_a_false_weight_makes_no_round_its_own(aggregate: Any) -> None:
    """Four agree, and a fifth says the opposite and that it was trained on 10**9 tokens."""
    right = np.random.default_rng(0).standard_normal(3 * 4096 + 5, np.float32)
    contributions = [right] * 4 + [-right]
    by_default = moved(DiLoCoMethod(aggregate=aggregate), contributions, (100,) * 4 + (10**9,))
    assert by_default <= 2 * 10 / 14 + 1e-6, "ten parts of fourteen, and not all"
    honest = moved(DiLoCoMethod(aggregate=aggregate), contributions, (100,) * 5)
    tight = DiLoCoMethod(aggregate=aggregate, weight_max=1.0)
    assert moved(tight, contributions, (100,) * 4 + (10**9,)) == honest
    without = DiLoCoMethod(aggregate=aggregate, weight_max=0.0)
    alone = moved(without, contributions, (100,) * 4 + (10**9,))
    # The median of elements is what the four say, and what is clipped to its distance adds nothing.
    assert alone == pytest.approx(0.0 if aggregate == "centred_clipping" else 2.0, abs=1e-5)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"trimmed_share": 0.5}, "must be above 0 and below 0.5, at which nothing is left, got"),
        ({"trimmed_share": 0.0}, "must be above 0 and below 0.5"),
        ({"weight_max": 0.5}, "must be at least 1, the median weight, or 0 for no limit, got 0.5"),
        ({"weight_max": -1.0}, "must be at least 1"),
        ({"qsr_alpha": -0.1}, "run.method.qsr_alpha must not be negative, got -0.1"),
        ({"momentum_clip": -1.0}, "run.method.momentum_clip must not be negative, got -1.0"),
        ({"momentum_clip": 0.1, "outer_momentum": 0.0}, "there is no momentum: leave it out"),
        ({"round_s": -1.0}, "run.method.round_s must not be negative, got -1.0"),
        ({"qsr_alpha": 0.1, "round_s": 1.0}, "both set a round's length: leave out one"),
        (
            {"aggregate": "trimmed_mean", "contribution_codec": "topk"},
            'with topk most elements .* would be trimmed: set "clipped_mean"',
        ),
    ],
)
def test_what_cannot_be_made_of_contributions_is_refused_with_what_can(
    said: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        DiLoCoMethod(**said)


def test_an_unknown_aggregate_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"run.method.aggregate: Input should be 'mean', 'trimm"):
        load_config(None, ["run.method.aggregate=median"])


@pytest.mark.parametrize("key", ["qsr_alpha", "round_s"])
@pytest.mark.parametrize(
    "method", [DecoupledDiLoCoMethod, EagerDiLoCoMethod, StreamingDiLoCoMethod]
)
def test_rounds_of_other_lengths_are_refused_where_training_goes_on_meanwhile(
    method: Any, key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^run\.method\.{key} is .*_diloco trains on while"):
        method(**{key: 0.01})
