"""A person asks one node for a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest

from lowcomm.daemon.checkpoint_command import checkpoint_json
from lowcomm.rank_control.checkpoint_schedule import RequestedCheckpoint
from lowcomm.rank_control.context import DaemonContext
from peers.ipc.command_bus import MakeCheckpoint
from tests.lowcomm.checkpoint_scene import Scene
from tests.lowcomm.daemon.test_daemon import daemon


def answered(context: DaemonContext, *, again: bool = False) -> dict[str, Any]:
    return json.loads(checkpoint_json(context, MakeCheckpoint(again=again)))


@pytest.mark.asyncio
async def test_the_answer_follows_the_request(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene")
    with daemon(tmp_path / "node") as made:
        context = made.context
        assert "no state yet" in answered(context)["error"]
        context.core, context.replica = scene.core, scene.replica
        for again in (False, True):
            assert answered(context, again=again) == {"asked": 1}
        asked = context.checkpoint_schedule.requested
        assert asked is not None
        assert asked == RequestedCheckpoint(1)
        asked.begun, asked.path = 2, Path("round-000002")
        assert answered(context, again=True) == {"done": "round-000002", "round": 2}
        asked.path, asked.why = None, "the disk is full"
        assert answered(context, again=True)["error"] == (
            "no checkpoint was written: the disk is full"
        )
        assert answered(context) == {"asked": 1}, "asked anew"
    scene.checkpoint_schedule.close()
