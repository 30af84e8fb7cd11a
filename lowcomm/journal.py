"""A node's events: one JSON line each for programs, one plain line for people.

`lowcomm.timeline` reads them back. Must NOT block for long: lines go to the page cache, which
outlives a SIGKILL of this process.
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from lowcomm.events import Event
from lowcomm.timeline import EventError, decode, story
from protocols.ids import PeerId

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
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # A SIGKILL tore the last line of an earlier life.
        self._started = time.monotonic()

    def write(self, kind: str, **fields: object) -> None:
        """One event, and its story. Keys as in lowcomm.events."""
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
        os.write(self._file, line)
        return record

    def say(self, text: str) -> None:
        """A plain line for whoever looks at the terminal."""
        elapsed_s = time.monotonic() - self._started
        line = f"[{elapsed_s:8.2f} {self._name}] {text}"
        with suppress(OSError):  # The terminal may be gone; the run goes on without it.
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        os.close(self._file)
