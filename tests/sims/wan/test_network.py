"""What a network may be; nothing is started here (tests/cluster/test_wan.py does)."""

from collections.abc import Mapping

import pytest

from protocols.types.errors import ConfigError
from sims.wan.link import Pair, WanError, WanLink
from sims.wan.network import Means, Wan


@pytest.mark.parametrize(
    ("links", "peers", "means"),
    [
        (WanLink(), 1, "netns"),
        (WanLink(), 201, "proxy"),
        ({(0, 2): WanLink()}, 2, "netns"),
        ({(0, 0): WanLink()}, 2, "netns"),
        ({(0, 1): WanLink(rate_bps=1e9)}, 3, "loopback"),
        (WanLink(rate_bps=1e9, delay_s=0.01), 2, "loopback"),
        (WanLink(rate_bps=1e9, loss=0.01), 2, "loopback"),
        ({(0, 1): WanLink(rate_bps=1e9), (1, 0): WanLink(rate_bps=1e8)}, 2, "loopback"),
    ],
)
def test_a_network_that_cannot_be_is_refused(
    links: WanLink | Mapping[Pair, WanLink], peers: int, means: Means
) -> None:
    with pytest.raises(ConfigError):
        Wan(links, peers=peers, means=means)


def test_links_left_out_are_perfect() -> None:
    wan = Wan({(0, 1): WanLink(delay_s=0.1)}, peers=2)
    assert wan.link(0, 1).delay_s == 0.1
    assert wan.link(1, 0) == WanLink()


def test_a_network_that_is_not_open_says_so() -> None:
    with pytest.raises(WanError, match="with Wan"):
        Wan(WanLink(), peers=2).counters()
