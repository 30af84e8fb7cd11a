"""Whether a daemon serves metrics, and what it costs when it does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from lowcomm.config.schema import RunConfig
from lowcomm.daemon.gauges import figures_of, served
from lowcomm.reports.event_log import EventLog
from lowcomm.reports.events import MetricsListening
from lowcomm.reports.timeline import read_timeline
from peers.metrics.counters import Counters
from peers.metrics.prometheus import Figures
from peers.sockets.listener import bind
from protocols.messages.peer import StateChunk
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId

ALPHA = PeerId("alpha.1")


def never() -> Figures:
    raise AssertionError("nobody asked")


@pytest.mark.asyncio
async def test_the_port_that_was_taken_is_told(tmp_path: Path) -> None:
    event_log = EventLog(tmp_path, peer=ALPHA, name="alpha")
    async with served("", event_log, never):
        assert read_timeline(tmp_path).events == ()
    async with served("127.0.0.1:0", event_log, never):
        (event,) = read_timeline(tmp_path).events
        assert isinstance(event, MetricsListening)
        assert event.address.startswith("127.0.0.1:")
        with pytest.raises(ConfigError, match=r"node\.metrics: cannot listen.*another port"):
            async with served(event.address, event_log, never):
                pass
    again, _ = bind(event.address)  # It is free again.
    again.close()
    event_log.close()


def test_figures_say_which_run_and_which_method() -> None:
    counters, gauges = Counters(), {"tokens": ("Trained.", 7.0)}
    counters.sample(1.0, late_s=0.25)
    counters.count_sent(ALPHA, StateChunk(1, 2, 3, 0, 4, 0, 4), 16)
    told = figures_of(counters, 9, RunConfig(name="first"), gauges)
    assert told.labels == {"run": "first", "method": "diloco"}
    assert (told.discarded, told.lag.max_s, told.gauges) == (9, 0.25, gauges)
    assert [each.sent["transfer"] for each in told.traffic] == [16]
    assert figures_of(counters, 0, None, {}).labels == {"run": "", "method": ""}


def test_a_daemon_that_serves_none_does_not_import_the_library() -> None:
    modules = "lowcomm.daemon.daemon, lowcomm.daemon.witness"
    code = f"import sys, {modules}; print('prometheus_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"
