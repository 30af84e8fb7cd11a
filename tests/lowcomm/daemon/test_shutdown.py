"""Why a daemon ends, and its exit code."""

import signal
from pathlib import Path

import pytest

from lowcomm.daemon.shutdown import Shutdown
from peers.ranks.events import StopAsked
from protocols.interface import events as v
from protocols.types.errors import ConfigError, RefusedError
from tests.lowcomm.daemon.test_daemon import daemon


@pytest.mark.asyncio
async def test_the_first_reason_stays(tmp_path: Path) -> None:
    with daemon(tmp_path) as made:
        shutdown: Shutdown = made.shutdown
        shutdown.end_daemon("another model", "refused", contact="h:1")
        shutdown.end_daemon("the run is finished", "finished")
        assert shutdown.requested.is_set()
        assert shutdown.ending is not None
        assert (shutdown.ending.why, shutdown.ending.contact) == ("another model", "h:1")
        assert shutdown.code == 3


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (ConfigError("x"), "failed", 2),
        (RefusedError("x"), "refused", 3),
        (OSError("x"), "failed", 4),
    ],
)
async def test_an_operating_error_ends_the_daemon(
    tmp_path: Path, error: Exception, outcome: str, code: int
) -> None:
    async def fail() -> None:
        raise error

    with daemon(tmp_path) as made:
        await made.shutdown.guarded(fail())
        assert made.shutdown.ending is not None
        assert (made.shutdown.ending.why, made.shutdown.ending.outcome) == ("x", outcome)
        assert made.shutdown.code == code


@pytest.mark.asyncio
async def test_a_signal_ends_at_once_a_daemon_that_no_peer_knows(tmp_path: Path) -> None:
    with daemon(tmp_path) as made:
        made.shutdown._signalled(signal.SIGTERM)
        assert made.shutdown.code == 128 + 15


@pytest.mark.asyncio
async def test_a_signal_makes_a_peer_leave_the_run(tmp_path: Path) -> None:
    with daemon(tmp_path) as made:
        made.node_admission.entered = True
        made.shutdown._signalled(signal.SIGINT)
        assert made.shutdown.ending is None
        assert made.context.driver._inbox.get_nowait() == v.LeaveRequested("SIGINT")
        made.shutdown.end_daemon("SIGINT", "left")
        assert made.shutdown.code == 128 + 2


@pytest.mark.asyncio
async def test_a_person_makes_a_peer_leave_as_a_signal_does_with_exit_code_0(
    tmp_path: Path,
) -> None:
    with daemon(tmp_path) as made:
        made.node_admission.entered = True
        made.ranks._on_event(StopAsked())
        assert made.context.driver._inbox.get_nowait() == v.LeaveRequested("asked to leave")
        made.context.core.member_status.leaving = "asked to leave"
        made.shutdown._signalled(signal.SIGTERM)
        assert made.context.driver._inbox.empty(), "it leaves already"
        made.shutdown.end_daemon("asked to leave", "left")
        assert made.shutdown.code == 0
