"""A cluster of real peers on this machine: each is `lowcomm peer` as a user would start it.

Whatever happens to the launcher, no process outlives it: children carry the kernel's death
signal. Must NOT know anything about peers that `lowcomm status` and their files do not tell.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lowcomm.identity import read_record
from lowcomm.status import ask
from peers.processes import Child, dying_with_us, start_child

LOG = "daemon.log"
PLAN = "cluster.json"
LOOK_S = 0.02
ADDRESS_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.5
"""From SIGTERM to SIGKILL: a checkpoint of a big model takes a moment; Ctrl+C has 5 s."""
STATUS_TIMEOUT_S = 0.5


@dataclass(slots=True)
class LocalNode:
    """One daemon that we started."""

    name: str
    directory: Path
    child: Child
    expendable: bool = False
    """It is meant to die."""

    @property
    def running(self) -> bool:
        return self.child.returncode is None

    def address(self) -> str:
        """Where it listens; "" until it says so in this life."""
        record = read_record(self.directory)
        return record.address if record is not None and record.pid == self.pid() else ""

    def pid(self) -> int:
        """Of the daemon; the wrapper that ties it to us turns into it."""
        return self.child.pid


class LocalCluster:
    """Starts, watches and stops nodes; use as an async context manager."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.nodes: list[LocalNode] = []

    async def __aenter__(self) -> "LocalCluster":
        self.run_dir.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self, name: str, arguments: Sequence[str], *, expendable: bool = False) -> LocalNode:
        """Start `lowcomm <arguments>`; its output goes to daemon.log in the node's directory."""
        directory = self.run_dir / name
        directory.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "sims.logged", str(directory / LOG)]
        argv += [sys.executable, "-m", "lowcomm.cli", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        child = start_child(dying_with_us(argv), env=environment)
        node = LocalNode(name, directory, child, expendable)
        self.nodes.append(node)
        return node

    def start_peer(
        self,
        name: str,
        config: Path | None,
        *,
        join: str = "",
        overrides: Sequence[str] = (),
        fault: str = "",
    ) -> LocalNode:
        """Start `lowcomm peer`: the first of a run, or one that joins at an address."""
        arguments = ["peer", *([str(config)] if config else [])]
        arguments += ["--join", join] if join else ["--new"]
        directory = str(self.run_dir / name)
        for override in (f"node.name={name}", f"node.directory={directory}", *overrides):
            arguments += ["--set", override]
        arguments += ["--fault", fault] if fault else []
        return self.start(name, arguments, expendable=bool(fault))

    async def address_of(self, node: LocalNode) -> str:
        """Wait until the node listens; "" if it ended instead."""
        async with asyncio.timeout(ADDRESS_TIMEOUT_S):
            while not (address := node.address()) and node.running:
                await asyncio.sleep(LOOK_S)
        return address

    async def statuses(self) -> list[dict[str, object]]:
        """What every daemon that answers says of itself."""
        running = [node.directory for node in self.nodes if node.running]
        asked = [asyncio.to_thread(ask, path, timeout_s=STATUS_TIMEOUT_S) for path in running]
        answers = await asyncio.gather(*asked)
        return [answer for answer in answers if answer is not None]

    async def stop(self) -> None:
        """SIGTERM to all, SIGKILL to what is left; idempotent."""
        running = [node for node in self.nodes if node.running]
        for node in running:
            os.kill(node.child.pid, signal.SIGTERM)
        await asyncio.wait(
            [asyncio.ensure_future(node.child.wait()) for node in running],
            timeout=STOP_TIMEOUT_S,
        ) if running else None
        for node in self.nodes:
            await node.child.stop()


def write_plan(run_dir: Path, nodes: Sequence[str]) -> None:
    """Remember which nodes a run has, the first one first: `lowcomm resume` starts them again."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / PLAN).write_text(json.dumps({"nodes": list(nodes)}, indent=1), encoding="utf-8")


def read_plan(run_dir: Path) -> list[str]:
    """The nodes of a run directory; empty if it is none of ours."""
    try:
        plan = json.loads((run_dir / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(name) for name in cast(dict[str, Any], plan).get("nodes", [])]
