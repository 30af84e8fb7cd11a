"""The built-in trainer as real ranks under a real RankGroup, against a plain loop in this process.

On one thread the two must agree bit by bit: sharding, shared memory, snapshots and restarts are
changes that change nothing.
"""

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from lowcomm.config.lr_schedule import CosineSchedule
from lowcomm.config.schema import (
    AdamWConfig,
    DataConfig,
    ModelConfig,
    MuonConfig,
    NodeConfig,
    RunConfig,
)
from lowcomm.data.batches import Batches
from lowcomm.data.corpus import Corpus, build_corpus
from lowcomm.methods import DiLoCoMethod, StreamingDiLoCoMethod
from lowcomm.models.llama import Llama, build_model, next_token_loss
from lowcomm.numerics.operations import F32
from lowcomm.program.evaluate import held_out_loss
from lowcomm.tensors.fsdp import node_shards
from lowcomm.worker import make_optimizer
from peers.ipc.messages import NONE, Answer, Boundary
from peers.processes.supervisor import ZygoteSpawner
from peers.ranks.events import RanksEvaluated, RanksFinished, RanksSnapshotted
from protocols.types.errors import ConfigError
from protocols.types.sample_ranges import SampleRange, Samples
from tests.lowcomm import rank_driver
from tests.marks import few

H = 4
SLOT = 3
BATCH = 4
RUN = RunConfig(
    seed=5,
    outer_steps=4,
    model=ModelConfig(
        hidden_size=12,
        layers=2,
        heads=2,
        kv_heads=1,
        intermediate_size=23,
        context=16,
        tied_embeddings=True,
    ),
    optimizer=AdamWConfig(lr=1e-2, warmup_steps=5, grad_clip=0.05, joiner_warmup_steps=6),
    method=DiLoCoMethod(inner_steps=H),
    data=DataConfig(
        source="files", window=16, batch=4, held_out_below=128, eval_windows=20, eval_window=16
    ),
)
PRELOAD = ("torch", "torch.distributed.fsdp", "torch._dynamo", "lowcomm.worker")


def test_muon_steps_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    model = build_model(RUN.model, seed=1)
    optimizer = make_optimizer(model, replace(RUN, optimizer=MuonConfig(momentum=0.9)))
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_muon, by_adamw = ({names[p] for p in group["params"]} for group in optimizer.param_groups)
    assert by_muon | by_adamw == set(names.values())
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in by_muon} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert "model.embed_tokens.weight" in by_adamw


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        text = "".join(f"def f{n}(x):\n    return x + {n * number}\n" for n in range(40))
        (source / f"{number}.py").write_text(text)
    return build_corpus(RUN.data, folder=str(source), directory=tmp_path / "corpus")


class Reference:
    """The same training in one plain loop."""

    def __init__(self, corpus: Corpus) -> None:
        self.model: Llama = build_model(RUN.model, seed=RUN.seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        data = RUN.data
        self.batches = Batches(corpus.train, window=data.window, seed=RUN.seed)

    @property
    def flat(self) -> F32:
        return parameters_to_vector(self.model.parameters()).detach().numpy().copy()

    def set(self, values_P: F32) -> None:
        vector_to_parameters(torch.from_numpy(values_P.copy()), self.model.parameters())

    def train(
        self, *, data_step: int, inner_step: int, steps: int = H, warmed: Sequence[float] = ()
    ) -> F32:
        """Steps on the samples from that of `data_step` on, at the rates from `inner_step` on, of
        which the first ones have a factor each."""
        schedule = CosineSchedule(warmup_steps=5, total_steps=4 * H, final=0.1)
        for step in range(steps):
            factor = schedule(inner_step + step) * ([*warmed] + [1.0] * steps)[step]
            self.optimizer.param_groups[0]["lr"] = 1e-2 * factor
            self.optimizer.zero_grad()
            first = BATCH * (data_step + step)
            tokens_BT1 = torch.from_numpy(self.batches.of(range(first, first + BATCH)))
            next_token_loss(self.model, tokens_BT1).backward()
            clip_grad_norm_(self.model.parameters(), 0.05)
            self.optimizer.step()
        return self.flat


def lease(first: int, last: int) -> Samples:
    """The samples of these steps."""
    return (SampleRange(BATCH * first, BATCH * last),)


def node(ranks: int) -> NodeConfig:
    return NodeConfig(name="alpha", ranks=ranks)


def worker(corpus: Path, ranks: int, run: RunConfig = RUN, **options: Any) -> Any:
    spawner = ZygoteSpawner(PRELOAD, target="lowcomm.worker:main")
    return rank_driver.Driver(spawner, run=run, node=node(ranks), corpus=corpus, **options)


def noise(size: int, seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32) / np.float32(20)


@pytest.mark.deadline(100)
def test_a_rank_trains_as_a_plain_loop_bit_by_bit_also_after_a_crash(
    corpus: Corpus, tmp_path: Path
) -> None:
    reference = Reference(corpus)
    initial = reference.flat
    start, delta, restart, last = (noise(initial.size, seed) for seed in range(4))
    snapshot = str(tmp_path / "state" / "round-1")

    async def play(driver: Any) -> None:
        layout = await driver.attach(initial=True, slot=SLOT)
        assert list(layout.tensors) == node_shards(reference.model, rank=0).layout
        event, values = await driver.contribution()
        assert (event.steps, event.tokens) == (0, 0)
        assert values.tobytes() == initial.tobytes()

        driver.post(start, "full", inner_step=0)
        event, values = await driver.contribution()
        reference.set(start)
        assert (event.steps, event.tokens) == (H, H * 4 * 16)
        assert values.tobytes() == reference.train(data_step=0, inner_step=0).tobytes()

        # Not counted: what was trained stays. The run has not moved, but the data has.
        assert event.samples == lease(0, H)
        driver.post(delta, "delta", inner_step=0, snapshot=snapshot, samples=lease(H, 9 * H))
        reference.set(reference.flat + delta)
        kept = deepcopy(reference.optimizer.state_dict())
        assert (await driver.expect(RanksSnapshotted)).directory == snapshot
        _, values = await driver.contribution()
        assert values.tobytes() == reference.train(data_step=H, inner_step=0).tobytes()

        lost = await driver.reattach(slot=SLOT, rank_state=snapshot)
        assert "signal 9" in lost.why
        driver.post(restart, "full", inner_step=0, samples=lease(H, 9 * H))
        reference.set(restart)
        reference.optimizer.load_state_dict(kept)
        _, values = await driver.contribution()
        assert values.tobytes() == reference.train(data_step=H, inner_step=0).tobytes()

        # The run has gone on without this node: its rates catch up.
        driver.post(restart, "full", inner_step=3 * H, samples=lease(3 * H, 9 * H))
        reference.set(restart)
        _, values = await driver.contribution()
        assert values.tobytes() == reference.train(data_step=3 * H, inner_step=3 * H).tobytes()

        driver.post(last, "full", inner_step=4 * H, finish=True, evaluate=True)
        evaluated = await driver.expect(RanksEvaluated)
        reference.set(last)
        assert evaluated.loss == held_out_loss(
            reference.model, corpus.held_out, windows=20, window=16, seed=RUN.seed
        )
        assert evaluated.windows == 20
        assert evaluated.sample.startswith("def ")
        assert len(evaluated.sample) > 100
        await driver.expect(RanksFinished)
        assert driver.metrics[-1].step == 2 * H
        assert driver.metrics[-1].tokens == 2 * H * 4 * 16
        assert 0 < driver.metrics[-1].loss < 20

    rank_driver.drive(lambda: worker(tmp_path / "corpus", 1), play)


@pytest.mark.long
@pytest.mark.deadline(100)
def test_a_fresh_optimizer_in_the_middle_of_a_run_warms_up_by_its_own_steps(
    corpus: Corpus, tmp_path: Path
) -> None:
    start = noise(Reference(corpus).flat.size, 1)
    snapshot = str(tmp_path / "state" / "round-1")
    sixths = [step / 6 for step in range(1, 6)]

    async def play(driver: Any) -> None:
        await driver.attach(initial=False, slot=SLOT)
        reference = Reference(corpus)
        for trained, rounds in enumerate((1, 2)):
            kept = snapshot if trained else ""
            samples = lease(trained * H, 9 * H)
            driver.post(start, "full", inner_step=rounds * H, samples=samples, snapshot=kept)
            if kept:
                await driver.expect(RanksSnapshotted)
            _, values = await driver.contribution()
            reference.set(start)
            warmed = sixths[trained * H :]
            wanted = reference.train(data_step=trained * H, inner_step=rounds * H, warmed=warmed)
            assert values.tobytes() == wanted.tobytes()

        for kept, warmed in ((snapshot, []), ("", sixths)):
            await driver.reattach(slot=SLOT, rank_state=kept)
            driver.post(start, "full", inner_step=2 * H, samples=lease(0, 9 * H))
            _, values = await driver.contribution()
            reference = Reference(corpus)
            if kept:
                reference.set(start)
                reference.train(data_step=0, inner_step=H, warmed=sixths)
            reference.set(start)
            wanted = reference.train(data_step=0, inner_step=2 * H, warmed=warmed)
            assert values.tobytes() == wanted.tobytes()
        driver.post(start, "full", inner_step=4 * H, finish=True)
        await driver.expect(RanksFinished)

    rank_driver.drive(lambda: worker(tmp_path / "corpus", 1), play)


def contributions_of_two_ranks(corpus: Path, start: F32) -> list[F32]:
    """The initial one, one after asking at 2 and 3 steps, one of H steps."""
    found: list[F32] = []

    async def play(driver: Any) -> None:
        await driver.attach(initial=True, slot=SLOT)
        found.append((await driver.contribution())[1])
        driver.post(start, "full", inner_step=0, boundary_steps=2)
        event, values = await driver.contribution()
        found.append(values)
        assert (event.steps, event.tokens) == (3, 3 * 4 * 16)
        driver.post(
            start, "full", inner_step=H, boundary_steps=H, evaluate=True, samples=lease(H, 9 * H)
        )
        await driver.expect(RanksEvaluated)
        event, values = await driver.contribution()
        found.append(values)
        assert (event.steps, event.tokens) == (H, H * 4 * 16)
        driver.post(start, "full", inner_step=2 * H, finish=True)
        await driver.expect(RanksFinished)

    asked: list[int] = []

    def decide(question: Boundary) -> Answer:
        asked.append(question.steps)
        return Answer(fragment=0 if question.steps == 3 else NONE)

    rank_driver.drive(lambda: worker(corpus, 2, decide_boundary=decide), play)
    assert asked == [2, 3]
    return found


@pytest.mark.long
@pytest.mark.deadline(180)
def test_two_sharded_ranks_train_as_one_does_and_the_same_bits_each_time(
    corpus: Corpus, tmp_path: Path
) -> None:
    reference = Reference(corpus)
    initial = reference.flat
    start = noise(initial.size, 1)
    first = contributions_of_two_ranks(tmp_path / "corpus", start)
    assert first[0].tobytes() == initial.tobytes()
    reference.set(start)
    early = reference.train(data_step=0, inner_step=0, steps=3)
    np.testing.assert_allclose(first[1], early, atol=2e-5)
    assert np.abs(early - start).max() > 1e-3
    reference.set(start)
    late = reference.train(data_step=H, inner_step=H)
    np.testing.assert_allclose(first[2], late, atol=2e-5)
    again = contributions_of_two_ranks(tmp_path / "corpus", start)
    assert [values.tobytes() for values in again] == [values.tobytes() for values in first]


STREAMED = replace(
    RUN, method=StreamingDiLoCoMethod(inner_steps=H, fragments=2, overlap_steps=1, mixing=0.25)
)


@pytest.mark.deadline(100)
@pytest.mark.parametrize("ranks", few([2, 1], count=1))
def test_fragments_are_streamed_as_a_plain_loop_says(
    ranks: int, corpus: Corpus, tmp_path: Path
) -> None:
    """Fragment 1, the blocks, is contributed after half a round; each is taken a step later."""
    reference = Reference(corpus)
    names = [name for name, _ in reference.model.named_parameters()]
    sizes = [parameter.numel() for parameter in reference.model.parameters()]
    in_blocks_P = np.repeat(["layers" in name for name in names], sizes)
    parts = [~in_blocks_P, in_blocks_P]
    start, first, second, last = (noise(in_blocks_P.size, seed) for seed in range(4))

    def train(step: int, steps: int) -> None:
        reference.train(data_step=step, inner_step=step, steps=steps)

    def mix(fragment: int, values: F32, mixing: float = 0.25) -> None:
        flat, part = reference.flat, parts[fragment]
        flat[part] = np.float32(mixing) * flat[part] + np.float32(1 - mixing) * values[part]
        reference.set(flat)

    async def play(driver: Any) -> None:
        layout = await driver.attach(initial=True, slot=SLOT)
        assert [bool(t.fragment) for t in layout.tensors] == ["layers" in name for name in names]

        async def expect(fragment: int, steps: int) -> None:
            event, values = await driver.contribution()
            assert (event.fragment, event.steps, event.tokens) == (fragment, steps, 64 * steps)
            assert bool(event.samples) == (fragment == 0 and steps > 0)
            ours = reference.flat[parts[fragment]]
            assert ranks > 1 or values.tobytes() == ours.tobytes()
            np.testing.assert_allclose(values, ours, atol=2e-5)

        for fragment in (0, 1):
            await expect(fragment, 0)
        for fragment in (1, 0):
            driver.post(start[parts[fragment]], "full", fragment=fragment, inner_step=0)
        reference.set(start)
        train(0, 2)
        await expect(1, 2)
        train(2, 1)
        driver.post(first[in_blocks_P], "full", fragment=1, counted=True, inner_step=0)
        mix(1, first)
        train(3, 1)
        await expect(0, H)
        train(H, 1)
        ahead = lease(H, 9 * H)
        driver.post(second[~in_blocks_P], "full", counted=True, inner_step=H, samples=ahead)
        mix(0, second)
        train(H + 1, 1)
        await expect(1, H)
        driver.post(last[in_blocks_P], "full", fragment=1, finish=True, inner_step=H)
        train(H + 2, 1)
        mix(1, last, mixing=0.0)
        train(H + 3, 1)
        await expect(0, H)
        driver.post(last[~in_blocks_P], "full", finish=True, evaluate=True, inner_step=2 * H)
        reference.set(last)  # The steps that fragment 1 made since its last result are in none.
        evaluated = await driver.expect(RanksEvaluated)
        found = held_out_loss(
            reference.model, corpus.held_out, windows=20, window=16, seed=RUN.seed
        )
        assert evaluated.loss == pytest.approx(found, rel=1e-5)
        await driver.expect(RanksFinished)

    def decide(question: Boundary) -> Answer:
        assert question.due
        return Answer(fragment=1 if question.steps % H else 0)

    rank_driver.drive(
        lambda: worker(tmp_path / "corpus", ranks, STREAMED, decide_boundary=decide), play
    )


@pytest.mark.deadline(100)
def test_a_tokenizer_that_cannot_be_used_is_found_before_the_first_step(tmp_path: Path) -> None:
    """The tokens of shards need none, except for the text that the model writes at the end."""
    np.zeros(400, "<u2").tofile(tmp_path / "train.bin")
    run = replace(RUN, data=replace(RUN.data, source="tokens"))
    build_corpus(run.data, folder=str(tmp_path / "train.bin"), directory=tmp_path / "corpus")

    async def play(driver: Any) -> None:
        await driver.attach(initial=True, slot=SLOT)
        raise AssertionError("it trains")

    def other() -> Any:
        spawner = ZygoteSpawner(PRELOAD, target="lowcomm.worker:main")
        alpha = NodeConfig(name="alpha", tokenizer="tok.jsno")
        return rank_driver.Driver(spawner, run=run, node=alpha, corpus=tmp_path / "corpus")

    with pytest.raises(ExceptionGroup) as caught:
        rank_driver.drive(other, play)
    (error,) = caught.value.exceptions
    assert isinstance(error, ConfigError)
    assert "tokenizer" in str(error)


@pytest.mark.deadline(100)
@pytest.mark.parametrize("ranks", few([1, 2], count=1))
def test_a_run_may_begin_with_the_parameters_of_a_folder(
    ranks: int, corpus: Corpus, tmp_path: Path
) -> None:
    """Each rank reads its own part."""
    model = build_model(RUN.model, seed=77)
    tensors = {name: each.detach() for name, each in model.named_parameters()}
    folder = tmp_path / "saved"
    folder.mkdir()
    sizes = {"vocab_size": 256, "hidden_size": 12, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 23}
    others = {"model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps({**sizes, **heads, **others}))
    save_file(tensors, folder / "model.safetensors")
    run = replace(RUN, model=replace(RUN.model, init_from=str(folder)))

    async def play(driver: Any) -> None:
        await driver.attach(initial=True, slot=SLOT)
        _, values = await driver.contribution()
        assert values.tobytes() == parameters_to_vector(tensors.values()).numpy().tobytes()
        driver.post(values, "full", inner_step=4 * H, finish=True)
        await driver.expect(RanksFinished)

    rank_driver.drive(lambda: worker(tmp_path / "corpus", ranks, run), play)
