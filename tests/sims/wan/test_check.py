"""How what was measured is shown."""

from dataclasses import asdict

from sims.wan.check import CASES, Measured, table
from sims.wan.link import WanLink
from sims.wan.network import MEANS


def test_every_means_has_its_cases() -> None:
    assert set(CASES) == set(MEANS)


def test_the_table_has_asked_beside_measured_and_says_what_is_missing() -> None:
    asked = WanLink(rate_bps=1e8, delay_s=0.05, jitter_s=0.005, loss=0.01)
    result = Measured(
        means="netns",
        asked=asked,
        rtt_s=0.1,
        rtt_min_s=0.09,
        rtt_max_s=0.12,
        rate_bps=9e7,
        loss=0.011,
        cpu_s_per_gb=2.0,
        late_max_s=0.001,
    )
    shown = table({"results": [asdict(result)], "not_here": {"loopback": "no tc"}})
    assert "100mbit, 90mbit | 100ms +-10ms, 100ms (90ms, 120ms) | 1.00%, 1.10% | 2.00 |" in shown
    assert shown.endswith("loopback does not work here: no tc")
