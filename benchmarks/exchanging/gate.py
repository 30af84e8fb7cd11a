"""The harness's side of the gate, at which the workers of one system wait.

Must NOT look at the workers' data, nor judge their times.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protocols.types import LowcommError

LINE_BYTES_MAX = 1 << 16


class GateError(LowcommError):
    """Some workers did not carry out an order. The text names them, and what is known."""


class Gate:
    """Use as an async context manager; workers are numbered from 0."""

    def __init__(self, path: Path, *, system: str, workers: int) -> None:
        self.path = path
        self.system = system
        self._workers = workers
        self._server: asyncio.Server | None = None
        self._there: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(
            self._arrived, str(self.path), limit=LINE_BYTES_MAX
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, writer in self._there.values():
            writer.close()
        if self._server is not None:
            self._server.close()

    @property
    def is_open(self) -> bool:
        """Whether all workers are connected."""
        return len(self._there) == self._workers

    async def opened(self, *, within_s: float) -> None:
        """Wait until all workers are connected. Raises GateError."""
        try:
            async with asyncio.timeout(within_s):
                while not self.is_open:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            missing = sorted(set(range(self._workers)) - set(self._there))
            raise GateError(
                f"{self.system}: {_listed(missing)} did not connect within {within_s:g} s"
            ) from None

    async def ask(self, order: Mapping[str, Any], *, within_s: float) -> list[dict[str, Any]]:
        """Give all workers the order at once; return their answers by number. Raises GateError."""
        line = json.dumps(order).encode() + b"\n"
        for number in range(self._workers):
            self._there[number][1].write(line)
        answers: dict[int, dict[str, Any]] = {}
        try:
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._answer(number, answers))
        except TimeoutError:
            missing = sorted(set(range(self._workers)) - set(answers))
            raise GateError(
                f"{self.system}: {_listed(missing)} did not {order['do']} within {within_s:g} s"
            ) from None
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return [answers[number] for number in range(self._workers)]

    async def _answer(self, number: int, answers: dict[int, dict[str, Any]]) -> None:
        try:
            line = await self._there[number][0].readline()
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            raise GateError(f"{self.system}: {_listed([number])} ended")
        answers[number] = json.loads(line)

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if line:
            self._there[int(json.loads(line)["node"])] = (reader, writer)
            self._changed.set()


def _listed(numbers: list[int]) -> str:
    return f"worker{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
