"""A cluster of real peers on this machine: each is `lowcomm peer` as a user would start it.

However the launcher ends, no process outlives it: children have the kernel's parent-death signal.
Must NOT know more about peers than `lowcomm status` and their files say.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lowcomm.startup import ask, new_token, read_record
from peers.processes import TOKEN_VARIABLE, Child, dying_with_us, own_module, start_child
from peers.storage import make_private
from protocols.types import LowcommError
from sims.wan.network import Place

LOG = "daemon.log"
PLAN = "cluster.json"
LOOK_S = 0.02
ADDRESS_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.5
"""Seconds from SIGTERM to SIGKILL. A checkpoint of a big model takes a moment; Ctrl+C has 5 s."""
STATUS_TIMEOUT_S = 0.5
LAST_CHARS = 1000
"""Length of the end of a log that an error quotes."""


@dataclass(slots=True)
class LocalNode:
    """One daemon that we started. Its process is a wrapper first, which becomes the daemon."""

    name: str
    directory: Path
    child: Child

    @property
    def running(self) -> bool:
        return self.child.returncode is None

    @property
    def killed(self) -> bool:
        """True if a signal ended it, and it did not end by itself."""
        return self.child.returncode is not None and self.child.returncode < 0

    def last_words(self) -> str:
        """The end of its log, for an error text."""
        log = (self.directory / LOG).read_text(encoding="utf-8", errors="replace")
        return log.strip()[-LAST_CHARS:]

    def address(self) -> str:
        """The address at which it listens; "" until this incarnation has recorded it."""
        record = read_record(self.directory)
        return record.address if record is not None and record.pid == self.child.pid else ""


class LocalCluster:
    """Starts, watches and stops nodes. Use it as an async context manager in the main thread.

    The run directory always names the nodes to resume: those that are expected, or were started and
    not killed; or all nodes if all were killed.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.nodes: list[LocalNode] = []
        self._expected: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def expect(self, names: Sequence[str]) -> None:
        """These nodes are started soon: if this process ends before, they are to be resumed."""
        self._expected = list(names)

    def start_node(
        self, name: str, arguments: Sequence[str], *, token: str = "", place: Place | None = None
    ) -> LocalNode:
        """Start `lowcomm <arguments>`; its output goes to daemon.log in the node's directory.

        `token`: the token to join with, which other users must not read; `place`: the place in an
        emulated network where this node's processes run.
        """
        directory = self.run_dir / name
        make_private(directory)
        argv = [*own_module("sims.logged"), str(directory / LOG)]
        argv += [*own_module("lowcomm.cli.main"), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        if token:
            environment[TOKEN_VARIABLE] = token
        if place is not None:
            argv, environment = place.command(argv), {**environment, **place.environment}
        child = start_child(dying_with_us(argv), env=environment)
        node = LocalNode(name, directory, child)
        self.nodes.append(node)
        self._write_plan()
        return node

    def start_peer(
        self,
        name: str,
        config: Path | None,
        *,
        join: str = "",
        overrides: Sequence[str] = (),
        fault: str = "",
        command: Sequence[str] = (),
        place: Place | None = None,
    ) -> LocalNode:
        """Start `lowcomm peer`: the first peer of a run, or one that joins with a token.

        `command`: the ranks' program, if it is not lowcomm's own.
        """
        arguments = ["peer", *([str(config)] if config else [])]
        arguments += [] if join else ["--new"]
        directory = json.dumps(str(self.run_dir / name), ensure_ascii=False)  # A TOML string.
        own = [f'node.name="{name}"', f"node.directory={directory}"]
        if place is not None:
            own += [f'node.listen="{place.listen}"', f'node.advertise="{place.advertise}"']
        # Ours come last, so that no override for all nodes gives two the same name or directory.
        for override in (*overrides, *own):
            arguments += ["--set", override]
        arguments += ["--fault", fault] if fault else []
        arguments += ["--", *command] if command else []
        return self.start_node(name, arguments, token=join, place=place)

    async def start_all(
        self, names: Sequence[str], start: Callable[[str, str], LocalNode]
    ) -> list[LocalNode]:
        """Start the first node, and then the others with its token. `start` starts the node of a
        name with a token, which is "" for the first one. Raises LowcommError if that one ends."""
        first = start(names[0], "")
        token = await self.token_of(first)
        if not token:
            raise LowcommError(f"{first.name} ended at its start: {first.last_words()}")
        return [first, *(start(name, token) for name in names[1:])]

    def invite(self, node: LocalNode) -> str:
        """A token with which peers join at this node, which listens. Raises ConfigError."""
        return new_token(self.run_dir, advertise=node.address())

    async def token_of(self, node: LocalNode) -> str:
        """As `invite`, once the node listens; "" if it ended instead. Raises LowcommError if that
        takes too long."""
        try:
            async with asyncio.timeout(ADDRESS_TIMEOUT_S):
                while node.running:
                    if node.address():
                        return self.invite(node)
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise LowcommError(
                f"{node.name} does not listen after {ADDRESS_TIMEOUT_S:g} s: "
                f"see {node.directory / LOG}"
            ) from None
        return ""

    async def statuses(self) -> list[dict[str, object]]:
        """The status of every daemon that answers."""
        running = [node.directory for node in self.nodes if node.running]
        asked = [asyncio.to_thread(ask, path, timeout_s=STATUS_TIMEOUT_S) for path in running]
        answers = await asyncio.gather(*asked)
        return [answer for answer in answers if answer is not None]

    async def stop(self) -> None:
        """Send SIGTERM to all nodes, then SIGKILL to those that are left. Idempotent."""
        running = [node.child for node in self.nodes if node.running]
        if running:
            self._write_plan()  # Now: later, stopped nodes count as killed.
        for child in running:
            os.kill(child.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*(child.wait() for child in running))
        await asyncio.gather(*(node.child.stop() for node in self.nodes))

    def _write_plan(self) -> None:
        started = {node.name: node for node in self.nodes}
        known = list(dict.fromkeys((*self._expected, *started)))
        alive = [name for name in known if name not in started or not started[name].killed]
        names = alive or known
        path = self.run_dir / PLAN
        torn = path.with_suffix(".json.new")
        torn.write_text(json.dumps({"nodes": names}, indent=1), encoding="utf-8")
        torn.replace(path)


def read_plan(run_dir: Path) -> list[str]:
    """The nodes to resume, the first one first; empty if the directory is no run directory of a
    local cluster."""
    try:
        plan: dict[str, list[str]] = json.loads((run_dir / PLAN).read_text(encoding="utf-8"))
        return [str(name) for name in plan["nodes"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []
