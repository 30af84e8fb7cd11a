"""Small clusters of real peers for test_exactness.py, and what they leave behind.

Must NOT judge anything: the tests do.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from lowcomm.checkpoints.checkpoint import FragmentArrays, newest_checkpoint, read_checkpoint
from lowcomm.reports.events import Commit, Event
from peers.processes.processes import dying_with_us, start_child
from sims.cluster.local_cluster import LOG, LocalCluster, LocalNode
from sims.cluster.process_tree import children
from tests.cluster.running import events_of

HERE = Path(__file__).parent
LOOK_S = 0.05
TEXT = "text"
"""The corpus, beside the configuration."""
CHECKPOINT_ROUNDS = 3
RUN = """
[run]
seed = 7
peers_min = {peers}
outer_steps = {rounds}
[run.model]
hidden_size = {hidden}
layers = 2
heads = 2
kv_heads = 1
intermediate_size = 23
context = 64
[run.optimizer]
lr = 1e-2
warmup_steps = 5
grad_clip = 0.5
[run.method]
inner_steps = {inner}
outer_lr = 0.7
outer_momentum = 0.9
[run.data]
source = "files"
window = {window}
eval_window = {window}
batch = 6
held_out_below = 64
eval_windows = 8
[node]
corpus = "{corpus}"
checkpoint_every_rounds = {every}
"""

E = TypeVar("E", bound=Event)


def write_config(
    directory: Path, *, peers: int, rounds: int, inner: int, hidden: int = 12, window: int = 16
) -> Path:
    """A run on a corpus that takes no time to read."""
    corpus = directory / TEXT
    corpus.mkdir()
    for number in range(16):
        lines = (f"def f{n}(x):\n    return x * {n * number} + {n ^ number}\n" for n in range(60))
        (corpus / f"{number}.py").write_text("".join(lines), encoding="utf-8")
    path = directory / "run.toml"
    values = {"peers": peers, "rounds": rounds, "inner": inner, "corpus": corpus}
    values["every"] = CHECKPOINT_ROUNDS
    path.write_text(RUN.format(**values, hidden=hidden, window=window), encoding="utf-8")
    return path


def play(
    tmp_path: Path, scenario: Callable[[LocalCluster], Awaitable[None]], *, timeout_s: float
) -> Path:
    """Run `scenario` on a cluster until every peer has ended well; returns the run directory."""
    run_dir = tmp_path / "run"

    async def life() -> None:
        async with asyncio.timeout(timeout_s), LocalCluster(run_dir) as cluster:
            await scenario(cluster)
            # As soon as one fails: others may wait for it as long as they live.
            await asyncio.gather(*map(end_well, cluster.nodes))

    asyncio.run(life())
    return run_dir


async def end_well(node: LocalNode) -> None:
    """Wait for the end of a daemon; fail with its words if it failed."""
    assert await node.child.wait() == 0, log_of(node)


async def start_pair(cluster: LocalCluster, config: Path, joiner: Sequence[str] = ()) -> None:
    """alpha starts the run, beta joins it."""
    alpha = cluster.start_peer("alpha", config)
    token = await cluster.token_of(alpha)
    assert token, log_of(alpha)
    overrides = [f"node.corpus={config.parent / TEXT}", *joiner]
    overrides.append(f"node.checkpoint_every_rounds={CHECKPOINT_ROUNDS}")
    cluster.start_peer("beta", None, join=token, overrides=overrides)


def start_recording(
    cluster: LocalCluster, name: str, arguments: Sequence[str], *, target: str, ranks: int
) -> LocalNode:
    """`lowcomm peer` by exactness_daemon.py, which leaves daemon.json."""
    directory = cluster.run_dir / name
    directory.mkdir(parents=True)
    argv = [sys.executable, "-m", "sims.logged", str(directory / LOG), sys.executable]
    argv += [str(HERE / "exactness_daemon.py"), target, "peer", *arguments]
    for override in (f"name={name}", f"directory={directory}", f"ranks={ranks}"):
        argv += ["--set", f"node.{override}"]
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    child = start_child(dying_with_us(argv), env=environment)
    cluster.nodes.append(LocalNode(name, directory, child))
    return cluster.nodes[-1]


async def seen(cluster: LocalCluster, enough: Callable[[Sequence[Event]], bool]) -> None:
    """Wait until the events of the run so far are `enough`; fail when somebody ends before."""
    while not enough(events_of(cluster.run_dir)):
        for node in cluster.nodes:
            assert node.running, log_of(node)
        await asyncio.sleep(LOOK_S)


def log_of(node: LocalNode) -> str:
    return (node.directory / LOG).read_text(encoding="utf-8", errors="replace")


def of(kind: type[E], events: Sequence[Event], name: str) -> list[E]:
    """What the node of that name wrote, in its order."""
    return [event for event in events if isinstance(event, kind) and event.name == name]


def digests(events: Sequence[Event], name: str) -> list[str]:
    """Of the outer state after each round, from round 1 on."""
    commits = of(Commit, events, name)
    assert [commit.round for commit in commits] == list(range(1, len(commits) + 1))
    return [commit.state_digest for commit in commits]


def last_state(run_dir: Path, name: str, *, rounds: int) -> FragmentArrays:
    """Outer parameters and momentum of the final checkpoint."""
    path, problems = newest_checkpoint(run_dir / name / "checkpoints")
    assert path is not None, problems
    cut, _, (arrays,) = read_checkpoint(path)
    assert cut.round == rounds
    return arrays


def inner_state(run_dir: Path, name: str, *, round_: int) -> NDArray[np.float32]:
    """AdamW's first moments of a node's only rank as they were after that round, fp32 [P]."""
    directory = run_dir / name / "rank-state" / f"round-{round_:06d}"
    path, _ = newest_checkpoint(run_dir / name / "checkpoints")
    assert path is not None
    _, (layout,), _ = read_checkpoint(path)
    with cast(Any, safe_open(directory / "rank-0-of-1.safetensors", framework="np")) as file:
        moments = [file.get_tensor(f"exp_avg:{parameter}").ravel() for parameter, *_ in layout]
    return np.concatenate(moments)


def ranks_of(node: LocalNode) -> list[int]:
    """The pids of its ranks: what its zygote has forked."""
    return [rank for zygote in children(node.child.pid) for rank in children(zygote)]


def maps_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def raw_events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """Also those that `lowcomm.reports.events` has no record for."""
    text = (run_dir / name / "events.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
