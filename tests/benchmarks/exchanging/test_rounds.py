"""What does not fit is refused before it starts."""

import pytest

from benchmarks.exchanging.lowcomm_system import system
from benchmarks.exchanging.network import Conditions
from benchmarks.exchanging.others import others
from benchmarks.exchanging.rounds import RoundsPlan, check_memory
from protocols.types.errors import ConfigError


def plan(peers: int, mib: int) -> RoundsPlan:
    return RoundsPlan(
        peers=peers,
        mib=mib,
        codec="fp32",
        conditions=Conditions(),
        warmup=1,
        rounds=9,
        deadline_s=60.0,
    )


def test_what_fits_is_run_and_what_does_not_is_refused() -> None:
    systems = [system(), others()["gloo"]]
    check_memory(systems, plan(4, 64), free_bytes=20 << 30)
    check_memory(systems, plan(4, 256), free_bytes=20 << 30)
    with pytest.raises(ConfigError, match=r"4 peers x 512 MiB need about 2\d.\d GiB and 20.0 GiB"):
        check_memory(systems, plan(4, 512), free_bytes=20 << 30)
