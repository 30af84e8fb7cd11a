"""Finding the daemon by the environment, and what `import lowcomm` costs."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

import lowcomm
from lowcomm.config.schema import DataConfig, NodeConfig, RunConfig, run_to_json
from lowcomm.data.corpus import build_corpus
from lowcomm.methods.allreduce import AllReduceMethod
from lowcomm.training.attach import Peer, attach
from lowcomm.training.launched_ranks import LaunchedRanks
from peers.ipc.messages import Configured
from protocols.types.errors import ConfigError, LowcommError
from protocols.types.sample_ranges import SampleRange, Samples

ROOT = Path(__file__).parents[3]
VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOWCOMM_SOCKET",
    "LOWCOMM_ATTEMPT",
    "TORCHELASTIC_RESTART_COUNT",
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_without_a_daemon_it_says_how_to_start() -> None:
    with pytest.raises(ConfigError, match=r"start it as `lowcomm peer run\.toml --new -- "):
        attach()


def test_several_ranks_need_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"by a launcher, as in `torchrun --nproc-per-node 2 "):
        attach(run="run.toml")


def test_another_rank_than_the_first_starts_no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOWCOMM_TOKEN", "secret")
    found = {"LOWCOMM_SOCKET": "/nonexistent", "LOWCOMM_ATTEMPT": "0"}

    def ask(_: LaunchedRanks) -> dict[str, str]:
        return found

    monkeypatch.setattr(LaunchedRanks, "ask", ask)
    for name in found:  # What attach sets is taken back after the test.
        monkeypatch.setenv(name, "")
    with pytest.raises(LowcommError, match="no lowcomm daemon listens at /nonexistent"):
        attach(run="run.toml")
    assert "LOWCOMM_TOKEN" not in os.environ, "children need no token"


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE 2"),
        ({"RANK": "one"}, "RANK must be a number, got 'one'"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE must be a number, got '-1'"),
        ({"LOWCOMM_ATTEMPT": "x"}, "LOWCOMM_ATTEMPT must be a number"),
        ({"TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT must be a number"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(
    variables: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWCOMM_SOCKET", "/nonexistent")
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=complaint):
        attach()


def test_a_daemon_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWCOMM_SOCKET", str(tmp_path / "lifeline"))
    with pytest.raises(LowcommError, match=f"no lowcomm daemon listens at {tmp_path}"):
        attach()


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_importing_lowcomm_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, lowcomm; print(sorted({'torch', 'numpy', 'zmq'} & set(sys.modules)))"
    assert run(code) == "[]"


def test_attach_is_the_function_whatever_was_imported_before() -> None:
    code = (
        "import lowcomm.training.attach, lowcomm.config.schema, lowcomm\n"
        "assert callable(lowcomm.attach) and 'attach' in dir(lowcomm)\n"
        "import sys; print('torch' in sys.modules)"
    )
    assert run(code) == "False"


def test_what_lowcomm_exports() -> None:
    from lowcomm.training.round_methods import DiLoCo

    assert lowcomm.DiLoCo is DiLoCo
    assert lowcomm.attach is attach
    assert lowcomm.__version__ == version("lowcomm")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = lowcomm.nothing  # pyright: ignore


class Client:
    """The daemon's answers to one rank. Implements what Peer needs of a RankClient."""

    def __init__(self, run: RunConfig) -> None:
        node = json.dumps(asdict(NodeConfig()))
        self.configured = Configured(run=run_to_json(run), node=node, corpus="")
        self.unfits: list[str] = []
        self.demands: list[tuple[int, int]] = []
        self.losses: list[float] = []

    def metrics(self, *, loss: float, **_: Any) -> None:
        self.losses.append(loss)

    def evaluated(self, *, loss: float, **_: Any) -> None:
        self.losses.append(-loss)

    def attach(self, *_: Any, **__: Any) -> None: ...

    def unfit(self, why: str) -> None:
        self.unfits.append(why)

    def demand_samples(self, *, step_samples: int, ahead: int) -> Samples:
        self.demands.append((step_samples, ahead))
        return (SampleRange(0, 1000),)


def new_peer(run: RunConfig, *, joined: bool = True) -> tuple[Peer, Client]:
    client = Client(run)
    peer = Peer(cast(Any, client), rank=0, world_size=1)
    if joined:
        peer.join((), elements=0)
        peer.lease.renew((SampleRange(0, 200),))
    return peer, client


def test_the_corpus_is_opened_once(tmp_path: Path) -> None:
    """To open it takes a look at each of its files, and its maps take file descriptors."""
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number}, longer than a window")
    data = DataConfig(source="files", window=8, eval_window=8, held_out_below=128)
    folder, built = str(tmp_path / "texts"), tmp_path / "corpus"
    digest = build_corpus(data, folder=folder, directory=built).digest
    client = Client(RunConfig(data=data))
    client.configured = replace(client.configured, corpus=str(built))
    peer = Peer(cast(Any, client), rank=0, world_size=1)
    first = peer.corpus
    assert first.digest == digest
    assert peer.corpus is first


def test_the_daemon_hears_how_many_samples_a_step_takes_before_the_first_batch() -> None:
    peer, client = new_peer(RunConfig(data=DataConfig(batch=4)))
    assert list(islice(peer.batches(range(50)), 2))
    assert client.demands == [], "an ordinary loop has no demand"
    peer, client = new_peer(RunConfig(data=DataConfig(batch=4)))
    with pytest.raises(ConfigError, match="accumulate must be at least 1, got 0"):
        peer.batches(range(50), accumulate=0)
    with pytest.raises(ConfigError, match="collate_fn, num_workers and prefetch are for a dataset"):
        peer.batches(num_workers=2)  # pyright: ignore
    peer.reserve(accumulate=3, ahead=2)
    peer.reserve(accumulate=3, ahead=1)
    assert client.demands == [(12, 8)]
    assert (peer.lease.per_step, peer.lease.ahead, peer.lease.unused) == (3, 2, 1000)
    with pytest.raises(ConfigError, match="accumulate is 2 here, and 3 for batches of before"):
        peer.reserve(accumulate=2)
    with pytest.raises(ConfigError, match="samples in a round"):
        peer.reserve(accumulate=3, ahead=1 << 30)
    early, _ = new_peer(RunConfig(), joined=False)
    with pytest.raises(LowcommError, match="make the method before the batches"):
        early.batches(range(50))


def test_ranks_that_work_on_the_same_rows_say_which_share_they_take() -> None:
    client = Client(RunConfig(data=DataConfig(batch=4)))
    peer = Peer(cast(Any, client), rank=1, world_size=4)
    shares = {None: [1], (0, 1): [0, 1, 2, 3], (1, 2): [2, 3]}
    for share, rows in shares.items():
        peer = Peer(cast(Any, client), rank=1, world_size=4)
        peer.join((), elements=0)
        peer.lease.renew((SampleRange(0, 200),))
        peer.reserve(share=share)
        assert peer.draw() == rows
    for wrong in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(
            ConfigError, match=r"\(number, count\) of equal parts of run.data.batch"
        ):
            peer.reserve(share=wrong)
    with pytest.raises(ConfigError, match=r"run.data.batch \(4\) must be a multiple of 3"):
        peer.reserve(share=(0, 3))
    assert len(client.unfits) == 0


@pytest.mark.parametrize(("rank", "last"), [(0, None), (1, 1)])
def test_one_rank_reports_the_first_one_or_that_of_the_last_stage(
    rank: int, last: int | None
) -> None:
    client = Client(RunConfig())
    for number in range(2):
        peer = Peer(cast(Any, client), rank=number, world_size=2)
        if last is not None:
            peer.reports = number == last
        peer.evaluate()
        peer.metrics(step=1, tokens=1, loss=1.0 + number, tokens_per_s=1.0)
        peer.evaluated(loss=1.0 + number, windows=1, sample="")
        assert not peer.evaluation_due
    assert client.losses == [1.0 + rank, -1.0 - rank]


def test_ranks_that_share_their_rows_do_not_divide_the_batch() -> None:
    """Eight ranks of tensor parallelism may work on a batch of one row."""
    peer = Peer(cast(Any, Client(RunConfig(data=DataConfig(batch=1)))), rank=5, world_size=8)
    peer.join((), elements=0)
    with pytest.raises(ConfigError, match=r"run.data.batch \(1\) must be a multiple of 8"):
        peer.reserve()
    peer.reserve(share=(0, 1))


def test_a_per_step_method_takes_one_batch_in_a_step_and_none_ahead() -> None:
    peer, client = new_peer(RunConfig(method=AllReduceMethod()))
    with pytest.raises(ConfigError, match=r"with run\.method\.name = 'allreduce' all nodes"):
        peer.reserve(accumulate=2)
    peer.reserve(ahead=8)
    assert client.demands == []
    assert peer.lease.ahead == 0


def test_a_loop_without_batches_of_the_run_is_refused_at_its_second_step() -> None:
    peer, client = new_peer(RunConfig(data=DataConfig(batch=4)))
    for _ in range(3):
        peer.check_drawn()
        peer.draw()
        peer.check_drawn()
        peer.lease.step()
    peer.check_drawn()
    with pytest.raises(ConfigError, match="this loop draws no batches of the run"):
        peer.check_drawn()
    (why,) = client.unfits
    assert 'run.data.source = "private"' in why


def test_private_data_is_not_drawn_and_not_missed() -> None:
    peer, _ = new_peer(RunConfig(data=DataConfig(source="private")))
    for _ in range(3):
        peer.check_drawn()
    with pytest.raises(ConfigError, match="so no samples are leased"):
        peer.batches(range(50))
    with pytest.raises(ConfigError, match="this run has no text: pass a dataset"):
        _ = peer.corpus
