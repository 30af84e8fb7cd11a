"""Real exchanges of real systems, side by side; whatever happens, nothing is left."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.exchanging import network, rounds
from benchmarks.exchanging.figures import SystemResult
from benchmarks.exchanging.lowcomm_system import system, unchecked
from benchmarks.exchanging.network import Conditions
from benchmarks.exchanging.others import others
from benchmarks.exchanging.payloads import payloads
from benchmarks.exchanging.rounds import RoundsPlan
from benchmarks.exchanging.systems import System
from sims.wan.network import Means
from tests.cluster.running import marked_processes

MIB = 1 << 20


def compared(
    systems: Sequence[System],
    directory: Path,
    *,
    peers: int = 2,
    mib: int = 1,
    deadline_s: float = 30.0,
    conditions: Conditions | None = None,
) -> list[SystemResult]:
    plan = RoundsPlan(
        peers=peers,
        mib=mib,
        codec="fp32",
        conditions=conditions or Conditions(),
        warmup=1,
        rounds=2,
        deadline_s=deadline_s,
    )

    async def play() -> list[SystemResult]:
        with payloads(plan.peers, plan.elements) as made:
            return await rounds.compare(systems, plan, made, directory)

    results = asyncio.run(play())
    assert marked_processes() == {}
    return results


@pytest.mark.long
@pytest.mark.deadline(90)
def test_the_command_measures_what_encryption_costs() -> None:
    command = [sys.executable, "-m", "benchmarks", "exchange", "--mib", "1", "--rounds", "2"]
    command += ["--encrypted", "--against", "clear", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=80)
    assert done.returncode == 0, done.stderr
    ours, clear = json.loads(done.stdout)["results"]
    assert [ours["system"], clear["system"]] == ["lowcomm", "lowcomm-clear"]
    assert [one["bit_identical"] for one in (ours, clear)] == [True, True]
    if ours["wire_bytes"] is not None:  # Seals take room.
        assert ours["wire_bytes"] > clear["wire_bytes"]


@pytest.mark.long
@pytest.mark.deadline(90)
def test_the_command_measures_us_beside_gloo() -> None:
    command = [sys.executable, "-m", "benchmarks", "exchange", "--mib", "1", "--warmup", "1"]
    done = subprocess.run(
        [*command, "--codec", "int8", "--json"], capture_output=True, check=False, timeout=80
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["peers"], told["rounds"], told["warmup_rounds"]) == (2, 9, 1)
    assert told["machine"]["torch"]
    ours, gloo = told["results"]
    assert [ours["system"], gloo["system"]] == ["lowcomm", "gloo"]
    assert [ours["codec"], gloo["codec"]] == ["int8", "fp32"]
    for one in (ours, gloo):
        assert one["error"] == ""
        assert one["rounds"] == len(one["times_s"]) == 9
        assert 0 < one["min_s"] <= one["median_s"] <= one["max_s"]
        assert one["cpu_s"] > 0
        assert one["peak_rss_bytes"] > MIB
        assert one["bit_identical"] is True
        assert abs(one["mean_error"]) < 1e-4
    assert ours["copy_in_s"] > 0
    assert 1e-3 < ours["rms_error"] < 1e-2
    assert gloo["rms_error"] < 1e-7
    assert gloo["data_path_s"] <= gloo["median_s"]
    if ours["wire_bytes"] is not None:  # Each sends a half of what it has, and a half of the mean.
        assert 0.5 * MIB < ours["wire_bytes"] < 0.7 * MIB
        assert 2 * MIB < gloo["wire_bytes"] < 2.2 * MIB
        assert gloo["congestion"] != []
        assert "reno" in ours["congestion"], "its bulk connections are loopback's"


@pytest.mark.long
@pytest.mark.deadline(60)
def test_without_namespaces_nobody_counts_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def why_not(means: Means) -> str:
        return f"{means} needs root"

    monkeypatch.setattr(network, "why_not", why_not)
    for one in compared([system(), others()["gloo"]], tmp_path):
        assert one.error == ""
        assert one.bit_identical
        assert one.wire_bytes is None
        assert one.congestion == ()


@pytest.mark.long
@pytest.mark.deadline(60)
def test_codecs_beside_each_other_and_plain_tcp(tmp_path: Path) -> None:
    ours, int8, tcp = compared([system(), system("int8"), others()["tcp"]], tmp_path)
    assert [one.codec for one in (ours, int8, tcp)] == ["fp32", "int8", "fp32"]
    for one in (ours, int8, tcp):
        assert one.error == ""
        assert one.bit_identical
        assert one.first_s is not None
    assert tcp.rms_error is not None
    assert tcp.rms_error < 1e-7
    assert int8.rms_error is not None
    assert int8.rms_error > 1e-3
    if tcp.wire_bytes is not None:  # Each sends all that it has.
        assert 2 * MIB < tcp.wire_bytes < 2.2 * MIB


@pytest.mark.long
@pytest.mark.parametrize("peers", [2, 3])
@pytest.mark.deadline(60)
def test_what_no_exchange_of_ours_can_do_without(peers: int, tmp_path: Path) -> None:
    """The same mean over as many bytes, in pieces of which the last one is short. The bare exchange
    does not check the owners either."""
    ours, bare = compared([unchecked(), others()["bare"]], tmp_path, peers=peers, mib=5)
    for one in (ours, bare):
        assert one.error == ""
        assert one.bit_identical
        assert one.rms_error is not None
        assert one.rms_error < 1e-7
        assert one.data_path_s is not None
        payload_bytes = 2 * (peers - 1) * 5 * MIB
        assert one.wire_bytes is None or payload_bytes < one.wire_bytes < 1.02 * payload_bytes


@pytest.mark.long
@pytest.mark.deadline(60)
def test_congestion_control_is_that_of_the_network(tmp_path: Path) -> None:
    if why := network.why_not("loopback"):
        pytest.skip(why)
    chosen = Conditions(congestion="cubic")
    chosen.check()
    ours, tcp = compared([system(), others()["tcp"]], tmp_path, conditions=chosen)
    assert ours.congestion == tcp.congestion == ("cubic",)


@pytest.mark.long
@pytest.mark.deadline(60)
def test_who_is_late_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    late, gloo = compared([system(), others()["gloo"]], tmp_path, mib=16, deadline_s=0.02)
    assert "lowcomm: workers 0, 1 did not exchange within 0.02 s" in late.error
    assert late.median_s is None
    assert gloo.system == "gloo"
