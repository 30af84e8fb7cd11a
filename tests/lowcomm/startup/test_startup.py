"""How a run is entered in the log and agreed to, and what a node has kept of it."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    CheckpointCut,
    FragmentCut,
    PeerCut,
    write_checkpoint,
)
from lowcomm.checkpoints.rank_states import RANK_STATES
from lowcomm.codecs.fp32 import Fp32
from lowcomm.config.schema import AdamWConfig, DataConfig, ModelConfig, RunConfig, run_to_json
from lowcomm.methods import AllReduceMethod, DecoupledDiLoCoMethod, NoLoCoMethod
from lowcomm.numerics.operations import F32
from lowcomm.numerics.state_digests import state_digest
from lowcomm.outer_state.step_replica import StepReplica, file_bytes_for_steps
from lowcomm.startup.agreement import (
    accepted,
    agreed_layout,
    agreed_run,
    common_grain,
    interval_samples,
    known_rules,
    layout_difference,
    model_difference,
    run_entry,
)
from lowcomm.startup.identity import NodeDirectory, NodeRecord
from lowcomm.startup.startup import (
    disk_needed,
    kept,
    memory_needed,
    new_replica,
    new_run_id,
    own_rank_state,
    set_aside,
)
from protocols.messages import log_entries as e
from protocols.messages.peer import Kept
from protocols.messages.persisted import Saved
from protocols.types.errors import ConfigError, RefusedError
from protocols.types.ids import FrozenTensor, PeerId, TensorSpec, Version
from protocols.wire.layout import pack_layout
from tests.lowcomm.replicas import Coded

RUN = RunConfig(seed=7, peers_min=3, outer_steps=5, data=DataConfig(batch=4))
LAYOUT = (
    TensorSpec(0, "embed", (2, 3), 0),
    TensorSpec(0, "head", (), 6),
    TensorSpec(1, "norm", (4,), 0),
)
FOUNDER = PeerId("beta.2")
PACKED, TAIL = pack_layout(LAYOUT), [LAYOUT[2]]
ENTRY = run_entry(RUN, run_id=9, founder=FOUNDER, corpus_digest="c" * 64, layout=LAYOUT)


def state(round_: int) -> tuple[list[F32], list[F32]]:
    """(outer, momentum) of both fragments, other ones in each round."""
    values = np.random.default_rng(round_).standard_normal(22, np.float32)
    outer_0, momentum_0, outer_1, momentum_1 = np.split(values, [7, 14, 18])
    return [outer_0, outer_1], [momentum_0, momentum_1]


def write(directory: Path, round_: int) -> Path:
    outer, momentum = state(round_)
    cut = CheckpointCut(
        log_index=40,
        lineage="00000000000000ff",
        run_digest=f"{9:016x}",
        fragments=tuple(
            FragmentCut(
                version=round_ - fragment,
                inner_step=20 * round_,
                tokens=1000 * round_,
                state_digest=state_digest(outer[fragment], momentum[fragment]),
            )
            for fragment in (0, 1)
        ),
        own=PeerCut(peer="alpha.1", incarnation=2, data_slot=1, rank_state=f"round-{round_:06d}"),
    )
    layout = [[("embed", (2, 3), 0), ("head", (), 6)], [("norm", (4,), 0)]]
    return write_checkpoint(directory / CHECKPOINTS, cut, layout, outer, momentum)


def tear(path: Path) -> None:
    with (path / "model.safetensors").open("r+b") as file:
        file.truncate(100)


def test_the_first_entry_holds_what_all_peers_agree_on() -> None:
    assert (
        e.Run(
            run=9,
            run_json=run_to_json(RUN),
            corpus_digest="c" * 64,
            peers_min=3,
            outer_steps=5,
            grain=1,
            layout=pack_layout(LAYOUT),
            fragment_elements=(7, 4),
            founder=FOUNDER,
        )
        == ENTRY
    )


def test_run_ids_differ_and_fit_into_the_log() -> None:
    ids = {new_run_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(0 < number < 2**63 for number in ids)


class Coarse(Fp32):
    """Encodes so many elements together."""

    def __init__(self, grain: int) -> None:
        self.grain = grain


@pytest.mark.parametrize(
    ("one", "other", "both"), [(1, 1, 1), (1, 8, 8), (8, 4, 8), (64, 64, 64), (6, 4, 12)]
)
def test_part_borders_suit_both_codecs(one: int, other: int, both: int) -> None:
    assert common_grain(Coded(codec=Coarse(one), mean_codec=Coarse(other))) == both
    assert common_grain(Coded(codec=Coarse(other), mean_codec=Coarse(one))) == both


def test_a_joiner_takes_the_run_of_the_log_or_has_the_same() -> None:
    assert agreed_run(ENTRY, None) == RUN
    assert agreed_run(ENTRY, replace(RUN)) == RUN


def test_the_folder_of_initial_parameters_is_the_founders_own() -> None:
    """Other nodes may have it elsewhere, or not at all; its path is not published."""
    here = replace(RUN, model=replace(RUN.model, init_from="/home/a/llama"))
    entry = run_entry(here, run_id=9, founder=FOUNDER, corpus_digest="c" * 64, layout=LAYOUT)
    assert entry == ENTRY
    there = replace(RUN, model=replace(RUN.model, init_from="/data/llama"))
    for mine in (here, there, RUN):
        assert agreed_run(entry, mine) == RUN


@pytest.mark.parametrize(
    ("mine", "difference"),
    [
        (replace(RUN, seed=8), "run.seed is 8 here and 7 in the run"),
        (
            replace(RUN, seed=8, data=DataConfig(batch=5, window=9)),
            "run.data.batch is 5 here and 4 in the run",
        ),
        (
            replace(RUN, optimizer=AdamWConfig(betas=(0.9, 0.9))),
            "run.optimizer.betas is [0.9, 0.9] here and [0.9, 0.95] in the run",
        ),
        (
            replace(RUN, model=ModelConfig(tied_embeddings=True)),
            "run.model.tied_embeddings is true here and false in the run",
        ),
    ],
)
def test_a_joiner_with_another_run_hears_the_first_key_that_differs(
    mine: RunConfig, difference: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        agreed_run(ENTRY, mine)
    assert str(caught.value) == (
        f"another configuration: {difference}; "
        "leave [run] out of this node's file to take the run's"
    )


def test_who_starts_again_knows_how_patient_its_run_is() -> None:
    """Seed 9200069: after a minute, as if the run had not said anything, it went on alone."""
    saved = Saved(1, "", None, (e.LogEntry(1, 1, ENTRY), e.LogEntry(2, 1, e.Elected(FOUNDER))))
    assert known_rules(saved) == RUN.protocol
    broken = (e.LogEntry(1, 1, replace(ENTRY, run_json="{")),)
    for unknown in (None, replace(saved, entries=()), replace(saved, entries=broken)):
        assert known_rules(unknown) is None


def partial_run(entry: e.Run) -> RunConfig:
    """As by a node whose file leaves `[run]` out."""
    return agreed_run(entry, None)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"commit_every_steps": 32}, "its configuration says (0, 0)"),
        ({"voters_issue": False}, "disagree about run.tokens: voters"),
        ({"voters_revoke": False}, "disagree about run.revocations: voters"),
        ({"run_json": "{"}, "the agreed [run] is not JSON"),
        ({"run_json": "[" * 100_000}, "the agreed [run] is not JSON"),
        ({"run_json": '{"news":1}'}, "the agreed [run]: unknown key news; known here: "),
        (
            {"run_json": '{"method":{"name":"new"}}'},
            "the agreed [run]: method.name is 'new'; known: allred",
        ),
        ({"run_json": '{"outer_steps":0}'}, "run.outer_steps must be positive, got 0"),
        ({"layout": b"none"}, "a layout is not compressed as ours are"),
        ({"layout": PACKED[:-1]}, "a layout is cut off"),
        ({"layout": pack_layout(TAIL)}, "the layout has fragments [1]: one is missing"),
        ({"layout": pack_layout(LAYOUT[:2])}, "fragments of [7] elements, but its log says [7, 4]"),
        ({"fragment_elements": (7, 5)}, "fragments of [7, 4] elements, but its log says [7, 5]"),
    ],
)
def test_a_run_that_this_node_cannot_understand_is_refused(
    changed: dict[str, object], why: str
) -> None:
    look = agreed_layout if changed.keys() & {"layout", "fragment_elements"} else partial_run
    with pytest.raises(RefusedError) as caught:
        look(replace(ENTRY, **changed))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_says_less_than_this_version_would_is_another_one() -> None:
    """An older version did not know the key: whether it did the same, nobody can say."""
    raw = json.loads(ENTRY.run_json)
    del raw["data"]["eval_window"]
    older = replace(ENTRY, run_json=json.dumps(raw))
    with pytest.raises(RefusedError, match=r"run\.data\.eval_window is 256 here and absent in the"):
        agreed_run(older, RUN)


@pytest.mark.parametrize(
    ("mine", "difference"),
    [
        (LAYOUT, ""),
        (
            (LAYOUT[0], TensorSpec(0, "tail", (), 6), LAYOUT[2]),
            "parameter tail [] (fragment 0, element 6) here is head [] (fragment 0, element 6) "
            "in the run",
        ),
        (
            (TensorSpec(0, "embed", (3, 2), 0), *LAYOUT[1:]),
            "parameter embed [3, 2] (fragment 0, element 0) here is embed [2, 3] "
            "(fragment 0, element 0) in the run",
        ),
        (
            (LAYOUT[0], TensorSpec(1, "head", (), 6), LAYOUT[2]),
            "parameter head [] (fragment 1, element 6) here is head [] (fragment 0, element 6) "
            "in the run",
        ),
        (LAYOUT[:2], "parameter norm [4] (fragment 1, element 0) of the run is not here"),
        (
            (*LAYOUT, TensorSpec(1, "bias", (1,), 4)),
            "parameter bias [1] (fragment 1, element 4) here is not in the run",
        ),
    ],
)
def test_another_model_is_told_by_its_first_parameter(
    mine: tuple[TensorSpec, ...], difference: str
) -> None:
    assert layout_difference(LAYOUT, mine) == difference


BASE = (FrozenTensor("base", "BF16", (4, 2), 5), FrozenTensor("codes", "U8", (9,), 6))


def test_frozen_tensors_are_agreed_behind_the_layout() -> None:
    assert agreed_layout(ENTRY) == (LAYOUT, ())
    entry = run_entry(
        RUN, run_id=9, founder=FOUNDER, corpus_digest="c" * 64, layout=LAYOUT, frozen=BASE
    )
    assert agreed_layout(entry) == (LAYOUT, BASE)
    with pytest.raises(RefusedError, match="cut off"):
        agreed_layout(replace(entry, layout=entry.layout[:-1]))


@pytest.mark.parametrize(
    ("layout", "frozen", "difference"),
    [
        (LAYOUT, BASE, ""),
        (LAYOUT, BASE[::-1], ""),
        (LAYOUT, BASE[:1], "frozen parameter codes of the run is not here"),
        (LAYOUT, (*BASE, BASE[0]._replace(name="more")), "frozen parameter more here is not in"),
        (LAYOUT, (BASE[0]._replace(type="F32"), BASE[1]), "base is F32 [4, 2] here, and BF16 [4,"),
        (
            LAYOUT,
            (BASE[0], BASE[1]._replace(digest=255)),
            "frozen parameter codes has another content here (000000ff) than in the run (00000006)",
        ),
        (LAYOUT[:2], BASE, "parameter norm [4] (fragment 1, element 0) of the run is not here"),
        (
            LAYOUT[:2],
            (*BASE, FrozenTensor("norm", "F32", (4,), 1)),
            "parameter norm is frozen here, and trained in the run",
        ),
        (
            (*LAYOUT, TensorSpec(1, "base", (4, 2), 4)),
            BASE[1:],
            "parameter base is trained here, and frozen in the run",
        ),
    ],
)
def test_another_base_is_told_by_its_first_tensor(
    layout: tuple[TensorSpec, ...], frozen: tuple[FrozenTensor, ...], difference: str
) -> None:
    found = model_difference((LAYOUT, BASE), (layout, frozen))
    assert difference in found
    assert bool(found) == bool(difference)


def version(fragment: int, round_: int) -> Version:
    """As `write` keeps it at this round."""
    outer, momentum = state(round_)
    return Version(fragment, round_ - fragment, state_digest(outer[fragment], momentum[fragment]))


def held(round_: int) -> Kept:
    """What a node says that wrote a checkpoint of this round."""
    return Kept(0xFF, (version(0, round_), version(1, round_)), 20 * round_, 1000 * round_)


def test_a_node_says_what_its_newest_checkpoint_holds(tmp_path: Path) -> None:
    for round_ in (3, 4):
        write(tmp_path, round_)
    assert kept(tmp_path) == (held(4), ())


def test_a_torn_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    write(tmp_path, 3)
    tear(write(tmp_path, 4))
    found, skipped = kept(tmp_path)
    assert found == held(3)
    assert len(skipped) == 1
    assert skipped[0].startswith("round-000004: model.safetensors has 100 bytes, expected ")
    for round_ in (3, 4):
        ranks_wrote(tmp_path / RANK_STATES / f"round-{round_:06d}", (0, 1))
    assert own_rank_state(tmp_path) == tmp_path / RANK_STATES / "round-000003"


def test_its_ranks_go_on_with_what_was_written_at_its_checkpoint_or_last_before(
    tmp_path: Path,
) -> None:
    places = {number: tmp_path / RANK_STATES / f"round-{number:06d}" for number in (2, 3, 4)}
    write(tmp_path, 3)
    assert own_rank_state(tmp_path) is None
    for number, expected in ((4, None), (2, 2), (3, 3)):  # 4: of a round that was taken back.
        ranks_wrote(places[number], (0, 1))
        assert own_rank_state(tmp_path) == (places[expected] if expected else None)


def test_what_a_part_of_the_ranks_wrote_is_passed_over(tmp_path: Path) -> None:
    before, at = (tmp_path / RANK_STATES / f"round-{number:06d}" for number in (2, 3))
    write(tmp_path, 3)
    ranks_wrote(before, (0, 1))
    ranks_wrote(at, (1,))
    (at / ".rank-0-of-2.safetensors.writing").touch()
    (at / "kept-0-of-2.safetensors").touch()
    assert own_rank_state(tmp_path) == before
    ranks_wrote(at, (0,))
    assert own_rank_state(tmp_path) == at


def ranks_wrote(place: Path, ranks: Sequence[int]) -> None:
    """These ones of two."""
    place.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        (place / f"rank-{rank}-of-2.safetensors").touch()


def test_without_a_whole_checkpoint_nothing_is_kept(tmp_path: Path) -> None:
    assert kept(tmp_path) == (None, ())
    assert own_rank_state(tmp_path) is None
    tear(write(tmp_path, 4))
    found, skipped = kept(tmp_path)
    assert found is None
    assert len(skipped) == 1
    assert own_rank_state(tmp_path) is None


def test_a_per_step_run_says_its_rhythm_and_is_taken_with_it() -> None:
    method = AllReduceMethod(commit_every_steps=8, snapshot_every_steps=24)
    run = replace(RUN, method=method)
    entry = run_entry(
        run, run_id=7, founder=FOUNDER, corpus_digest=ENTRY.corpus_digest, layout=LAYOUT[:2]
    )
    assert (entry.commit_every_steps, entry.snapshot_every_steps, entry.grain) == (8, 24, 1)
    assert agreed_run(entry, None) == run
    assert run.total_inner_steps == run.outer_steps
    layout = agreed_layout(entry)[0]
    made = new_replica(run, layout)
    assert isinstance(made, StepReplica)
    assert made.arrays.directory is None
    assert disk_needed(run, layout) == file_bytes_for_steps(method, layout)
    needed = [memory_needed(run, layout, peers=2, joins=True, in_file=x) for x in (True, False)]
    assert needed[0] < needed[1]
    for wrong in ({"commit_every_steps": 4}, {"snapshot_every_steps": 48}):
        with pytest.raises(RefusedError, match=r"its configuration says \(8, 24\)"):
            agreed_run(replace(entry, **wrong), None)


def test_whether_nodes_exchange_in_pairs_is_said_and_must_be_the_methods() -> None:
    run = replace(RUN, method=NoLoCoMethod())
    entry = run_entry(
        run, run_id=7, founder=FOUNDER, corpus_digest=ENTRY.corpus_digest, layout=LAYOUT[:2]
    )
    assert (entry.gossip, ENTRY.gossip) == (True, False)
    assert agreed_run(entry, None) == run
    with pytest.raises(RefusedError, match=r"the run's method is noloco, .* exchange with all"):
        agreed_run(replace(entry, gossip=False), None)
    with pytest.raises(RefusedError, match="exchange in pairs"):
        agreed_run(replace(ENTRY, gossip=True), None)


def test_whether_who_is_late_is_asked_is_said_and_must_be_the_methods() -> None:
    run = replace(RUN, method=DecoupledDiLoCoMethod(fragments=1))
    entry = run_entry(
        run, run_id=7, founder=FOUNDER, corpus_digest=ENTRY.corpus_digest, layout=LAYOUT[:1]
    )
    assert (entry.asks, ENTRY.asks) == (True, False)
    assert agreed_run(entry, None) == run
    with pytest.raises(RefusedError, match="method decoupled_diloco asks stragglers"):
        agreed_run(replace(entry, asks=False), None)
    with pytest.raises(RefusedError, match="method diloco does not ask stragglers"):
        agreed_run(replace(ENTRY, asks=True), None)


def test_only_a_committed_state_is_copied() -> None:
    with pytest.raises(ConfigError, match="must be a multiple of commit_every_steps"):
        AllReduceMethod(commit_every_steps=8, snapshot_every_steps=12)


def test_a_run_without_a_source_of_data_gets_one_when_it_is_founded() -> None:
    own = RUN.with_source("own")
    assert (own.data.source, own.data.has_corpus, own.data.is_leased) == ("own", False, True)
    assert own.with_source("stdlib") == own
    entry = run_entry(own, run_id=9, founder=FOUNDER, corpus_digest="c" * 64, layout=LAYOUT)
    assert agreed_run(entry, RUN) == own, "a file that names none takes the run's"
    with pytest.raises(RefusedError, match='source is "stdlib" here and "own" in the run'):
        agreed_run(entry, RUN.with_source("stdlib"))


def test_what_the_data_decides_is_taken_from_the_run_unless_the_file_says_it() -> None:
    data = replace(RUN.data, source="tokens", tokenizer="a" * 64)
    agreed = replace(RUN, data=data, model=replace(RUN.model, vocab_size=50304))
    entry = run_entry(
        agreed,
        run_id=9,
        founder=FOUNDER,
        corpus_digest="c" * 64,
        corpus_files=b"marks",
        layout=LAYOUT,
    )
    assert entry.corpus_files == b"marks"
    assert agreed_run(entry, RUN) == agreed
    other = replace(RUN, model=replace(RUN.model, vocab_size=50257))
    with pytest.raises(RefusedError, match="vocab_size is 50257 here and 50304 in the run"):
        agreed_run(entry, other)
    other = replace(RUN, data=replace(RUN.data, tokenizer="b" * 64))
    with pytest.raises(RefusedError, match=r"run\.data\.tokenizer is"):
        agreed_run(entry, other)


def test_private_data_is_not_leased() -> None:
    private = RUN.with_source("private")
    assert accepted(private).samples_ahead == 0 < accepted(RUN).samples_ahead
    assert interval_samples(private, 50) == 0


def test_a_branch_is_set_aside_beside_what_a_crash_left_of_it(tmp_path: Path) -> None:
    """The node was killed between two moves, went on, and wrote another checkpoint."""
    with closing(NodeDirectory(tmp_path)) as node:
        node.write(NodeRecord(peer="a.1", name="a", incarnation=1))
    for number in (1, 2, 3):
        (tmp_path / CHECKPOINTS).mkdir()
        (tmp_path / CHECKPOINTS / f"round-{number:06d}").mkdir()
        place = set_aside(tmp_path)
    found = sorted(path.relative_to(place).as_posix() for path in place.glob("*/*"))
    assert found == [
        "checkpoints.2/round-000002",
        "checkpoints.3/round-000003",
        "checkpoints/round-000001",
    ]
