"""What real daemons count, and how it is asked for."""

import asyncio
import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lowcomm.reports.events import Commit, Layout, MetricsListening, Traffic, View, Witness
from sims.cluster.local_cluster import LocalCluster
from sims.paced.cluster import start_all
from sims.paced.rank import RankSpeed
from tests.cluster.running import (
    Shell,
    commits_until,
    marked_processes,
    new_shell,
    of,
    record,
    token_of,
    until,
    write_config,
)

ROUNDS = 30
"""It must not be over before we have asked."""
NAMES = ("alpha", "beta", "gamma")
PACE = RankSpeed(step_s=0.005, elements=3 << 20)
"""Each fragment, of four at most, has a part for each of three nodes."""
STEPS = 4
"""Rounds of each fragment, or steps."""
EVERY_STEP = "commit_every_steps = 2\nsnapshot_every_steps = 4"
FRAGMENTS = 'contribution_codec = "fp4"\ninner_steps = 8\nfragments = 4\noverlap_steps = 1'
COSTS = {
    "allreduce": (f'name = "allreduce"\n{EVERY_STEP}', 2 * 4),
    "diloco-int8": ('contribution_codec = "int8"\nresult_codec = "int8"', 2 / 3 * 2 * 1.016),
    "local_sgd": ('name = "local_sgd"', 2 / 3 * 2 * 4),
    "eager_diloco": ('name = "eager_diloco"', 2 / 3 * 2 * 4),
    "streaming_diloco": (
        f'name = "streaming_diloco"\nresult_codec = "bf16"\n{FRAGMENTS}',
        2 / 3 * (0.516 + 2),
    ),
    "decoupled_diloco": (f'name = "decoupled_diloco"\n{FRAGMENTS}', 2 * 0.516),
    "sparseloco": ('name = "sparseloco"', 2 * 0.0276),
}
"""A table, and the bytes for each parameter that docs/methods.md says one node of three sends in a
round of all fragments, or in a step."""
NIGHTLY = ("eager_diloco",)
"""It sends the bytes of local SGD."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with new_shell(tmp_path) as made:
        yield made


def scraped(directory: Path) -> dict[tuple[str, str, str], float]:
    """By (name, peer, purpose), as Prometheus sees it."""
    (event,) = of(MetricsListening, directory)
    with urllib.request.urlopen(f"http://{event.address}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            assert each.labels["run"] == "tiny"
            assert each.labels["method"] == "diloco"
            labels = each.labels.get("peer", ""), each.labels.get("purpose", "")
            found[each.name, *labels] = each.value
    return found


@pytest.mark.long
@pytest.mark.deadline(150)
def test_prometheus_and_the_events_say_what_both_sides_counted(
    shell: Shell, tmp_path: Path
) -> None:
    config = write_config(tmp_path, peers=2, rounds=ROUNDS)
    run_dir = tmp_path / "runs" / "tiny"
    launcher = shell.start("sim", str(config), "--set", 'node.metrics="127.0.0.1:0"')
    commits_until(run_dir / "beta", 2, within_s=60)

    beta = str(record(run_dir / "beta")["peer"])
    now = scraped(run_dir / "alpha")
    told = shell.run("status", "runs/tiny", "--json")
    answers = {(answer := json.loads(line))["name"]: answer for line in told.out.splitlines()}
    assert now["lowcomm_sent_bytes_total", beta, "payload"] > 0
    assert now["lowcomm_sent_bytes_total", beta, "transfer"] > 0  # It joined.
    assert now["lowcomm_received_bytes_total", beta, "control"] > 0
    assert now["lowcomm_outer_step", "", ""] >= 2
    assert answers["alpha"]["lag_max_s"] > 0
    assert answers["alpha"]["heartbeat_late_max_s"] >= answers["alpha"]["heartbeat_late_p99_s"]

    assert launcher.wait(within_s=80) == 0, launcher.err
    until(lambda: not marked_processes(), within_s=5, what="every process gone")
    last = {name: of(Traffic, run_dir / name)[-1] for name in ("alpha", "beta")}
    assert last["alpha"].peers == (beta,)
    for here, there in (("alpha", "beta"), ("beta", "alpha")):
        assert last[here].payload_sent_bytes == last[there].payload_received_bytes
        assert last[here].transfer_sent_bytes == last[there].transfer_received_bytes
    before = now["lowcomm_sent_bytes_total", beta, "payload"]
    assert last["alpha"].payload_sent_bytes[0] > before


@pytest.mark.long
@pytest.mark.deadline(100)
def test_a_witness_is_watched_too(shell: Shell, tmp_path: Path) -> None:
    config = str(write_config(tmp_path, peers=1, rounds=100_000))
    shell.peer("alpha", config, "--new")
    watch, words = tmp_path / "watch", token_of(tmp_path / "alpha", witness=True)
    own = (f'node.directory="{watch}"', 'node.name="watch"', 'node.metrics="127.0.0.1:0"')
    arguments = [word for value in own for word in ("--set", value)]
    witness = shell.start("witness", "--join", words, *arguments)
    until(lambda: of(Witness, watch), within_s=40, what="a witness")
    now = scraped(watch)
    alpha = str(record(tmp_path / "alpha")["peer"])
    assert now["lowcomm_received_bytes_total", alpha, "control"] > 0
    assert now["lowcomm_received_bytes_total", alpha, "payload"] == 0
    witness.signal(signal.SIGTERM)
    assert witness.wait(within_s=20) == 143, witness.err
    assert of(Traffic, watch)[-1].peers == (alpha,)


@pytest.mark.deadline(60)
def test_metrics_that_cannot_be_served_end_a_daemon_at_its_start(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=1, rounds=100_000)
    arguments = ("--new", "run.toml", "--set", 'node.metrics="203.0.113.1:0"')
    refused = shell.run("peer", *arguments, within_s=40)
    assert refused.popen.returncode == 2
    assert "node.metrics: cannot listen on 203.0.113.1:0" in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.long
@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    ("table", "per_element"),
    [
        pytest.param(*cost, id=name, marks=[pytest.mark.nightly] if name in NIGHTLY else [])
        for name, cost in COSTS.items()
    ],
)
def test_a_round_costs_what_the_docs_say(table: str, per_element: float, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=len(NAMES), rounds=STEPS, method=table)
    run_dir = tmp_path / "run"

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(50):
            nodes = await start_all(cluster, NAMES, config, pace=PACE)
            return [await node.child.wait() for node in nodes]

    assert asyncio.run(play()) == [0, 0, 0]
    assert {len(event.roster) for kind in (View, Commit) for event in of(kind, run_dir)} == {3}
    named = re.match(r'name = "(\w+)"', table)
    method = named[1] if named is not None else "diloco"  # Which is the default.
    expected = STEPS * PACE.elements * per_element
    for name in NAMES:
        told = of(Traffic, run_dir / name)[-1]
        sent = sum(told.payload_sent_bytes)
        assert told.method == method
        assert sent == pytest.approx(expected, rel=0.02), name


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(90)
def test_muon_sends_nothing_of_its_own(shell: Shell, tmp_path: Path) -> None:
    """It gathers matrices inside the node: between nodes a round is one of DiLoCo."""
    table = 'inner_steps = 2\n[run.optimizer]\nname = "muon"'
    config = write_config(tmp_path, peers=2, rounds=STEPS, method=table)
    done = shell.run("sim", str(config), "--ranks", "2,1", within_s=80)
    assert done.popen.returncode == 0, done.err
    run_dir = tmp_path / "runs" / "tiny"
    (params,) = {event.params for event in of(Layout, run_dir)}
    sent = [sum(of(Traffic, run_dir / name)[-1].payload_sent_bytes) for name in NAMES[:2]]
    # Of so small a model one of them owns all.
    assert sum(sent) / 2 == pytest.approx(STEPS * params * 1 / 2 * 2 * 4, rel=0.02)
