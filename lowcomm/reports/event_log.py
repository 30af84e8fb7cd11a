"""A node's events: one JSON line each for programs, one plain line for people.

`lowcomm.reports.timeline` reads them back. Must NOT block for long: lines go to the page cache,
which outlives a SIGKILL of this process. Must NOT raise what the disk raises: a full one costs
events, and not the run.
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from lowcomm.reports.events import Event
from lowcomm.reports.timeline import EventError, decode, story
from protocols.types.ids import PeerId

EVENTS = "events.jsonl"


class Journal:
    """Appends to events.jsonl in the node's directory, and tells stories on standard error."""

    def __init__(self, directory: Path, *, peer: PeerId, name: str) -> None:
        self._peer = peer
        self._name = name
        self.names: dict[str, str] = {peer: name}
        """Of peers, for the plain lines."""
        self._file = os.open(
            directory / EVENTS, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        size = os.fstat(self._file).st_size
        self._torn = bool(size) and os.pread(self._file, 1, size - 1) != b"\n"
        """The last line is not whole: a SIGKILL ended an earlier life, or the disk is full."""
        self._lost = 0
        """Lines that the disk did not take, since it took one."""
        self._started = time.monotonic()

    def write(self, kind: str, **fields: object) -> None:
        """One event, and its story. Keys as in lowcomm.reports.events."""
        text = story(self.record(kind, **fields), self.names)
        if text:
            self.say(text)

    def note(self, topic: str, text: str) -> None:
        """Something worth saying that is no event of its own."""
        self.write("note", topic=topic, text=text)

    def record(self, kind: str, **fields: object) -> Event:
        """One event that people are told in another way."""
        event = {"t": time.time(), "peer": self._peer, "name": self._name, "kind": kind, **fields}
        line = (json.dumps(event) + "\n").encode()
        try:
            record = decode(line)
        except EventError as error:
            raise AssertionError(f"a {kind} event of our own is malformed: {error}") from error
        assert record is not None, f"nobody knows the kind {kind}"
        self._append(line)
        return record

    def _append(self, line: bytes) -> None:
        data = b"\n" + line if self._torn else line
        try:
            written = os.write(self._file, data)
        except OSError as error:
            written, why = 0, error.strerror or str(error)
        else:
            why = "no room for a whole line"
        if written == len(data):
            if self._lost:
                self.say(f"{EVENTS} is written again; {self._lost} of its lines are lost")
            self._torn, self._lost = False, 0
            return
        self._torn = self._torn or written > 0
        self._lost += 1
        if self._lost == 1:
            self.say(f"{EVENTS} cannot be written, and the run goes on without it: {why}")

    def say(self, text: str) -> None:
        """A plain line for whoever looks at the terminal."""
        elapsed_s = time.monotonic() - self._started
        line = f"[{elapsed_s:8.2f} {self._name}] {text}"
        with suppress(OSError):  # The terminal may be gone; the run goes on without it.
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        os.close(self._file)
