"""A wrong clock is said to be one, and by how much."""

import errno
import ssl
import time
from pathlib import Path

import pytest

from peers.connections.clock_skew import at, span, tls_fault, token_ended
from peers.security.certificates import untimely
from peers.security.keys import Key, OwnKey
from peers.security.trust_store import TrustStore
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId

DAY_S = 86_400.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "Clock":
    return Clock(monkeypatch)


class Clock:
    """This machine's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._real = time.time

    def off_by(self, seconds: float) -> None:
        """It stands still there."""
        now = self._real() + seconds
        self._patch.setattr(time, "time", lambda: now)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (3 * DAY_S + 2 * 3600, "3 days 2 hours"),
        (DAY_S, "1 day"),
        (3700, "1 hour 1 minute"),
        (120, "2 minutes"),
        (5, "less than a minute"),
    ],
)
def test_a_span_is_told_in_two_units(seconds: float, told: str) -> None:
    assert span(seconds) == told


def certificate() -> bytes:
    return Key.make().own_certificate(PeerId("a.1"))


def test_a_clock_that_is_behind_is_told_with_how_much(clock: Clock) -> None:
    made = certificate()
    assert untimely(made) == ""
    clock.off_by(-0.9 * DAY_S)
    assert untimely(made) == "", "a day is allowed for"
    clock.off_by(-3 * DAY_S - 60)
    why = untimely(made)
    assert f"this machine's clock says {at(time.time())}, which is 3 days" in why
    assert "before the certificate was made" in why
    assert "set the clock" in why


def test_a_clock_that_is_far_ahead_is_told_with_how_much(clock: Clock) -> None:
    made = certificate()
    clock.off_by(3653 * DAY_S)
    assert "which is 3 days after the certificate ended" in untimely(made)


def test_both_times_of_a_token_that_expired_are_told(clock: Clock) -> None:
    ends = time.time() + 3600
    assert token_ended(ends) == ""
    clock.off_by(2 * DAY_S)
    why = token_ended(ends)
    assert at(ends) in why
    assert at(time.time()) in why


def test_a_node_that_has_its_certificate_looks_at_its_clock_first(
    tmp_path: Path, clock: Clock
) -> None:
    peer = PeerId("a.1")
    certificate = OwnKey(tmp_path).certificate(peer)
    store = TrustStore(tmp_path, peer=peer, certificates={peer: certificate})
    store.open()
    clock.off_by(-4 * DAY_S - 60)
    with pytest.raises(ConfigError, match=r"node\.pem does not count: .* 4 days before"):
        store.open()


@pytest.mark.parametrize(("code", "word"), [(9, "not valid yet"), (10, "valid no more")])
def test_what_tls_says_of_another_nodes_certificate_names_our_clock(
    code: int, word: str, clock: Clock
) -> None:
    clock.off_by(0.0)
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    told = tls_fault(error)
    assert word in told
    assert at(time.time()) in told
    assert tls_fault(OSError("refused")) == "refused"
    refused = OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")
    assert tls_fault(refused) == "Connection refused"
