"""A node's event log: of each event one JSON line for programs, and a plain line for people.

`lowcomm.reports.timeline` reads the file. Must NOT block for long: lines go to the page cache,
which outlives a SIGKILL of this process. Must NOT raise errors of the disk: a full disk costs
events, but not the run.
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from lowcomm.reports.events import Event
from lowcomm.reports.timeline import EventError, decode, story
from protocols.types import PeerId

EVENTS = "events.jsonl"


class EventLog:
    """Appends events to events.jsonl in the node's directory, and prints them on standard error."""

    def __init__(self, directory: Path, *, peer: PeerId, name: str) -> None:
        self._peer = peer
        self._name = name
        self.names: dict[str, str] = {peer: name}
        """Names of peers by id, for the plain lines. The daemon adds each new member."""
        self._file = os.open(
            directory / EVENTS, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        size = os.fstat(self._file).st_size
        self._torn = bool(size) and os.pread(self._file, 1, size - 1) != b"\n"
        """The file's last line is incomplete: a SIGKILL ended a process, or the disk was full."""
        self._lost = 0
        """Number of lines that could not be written since the last one that could."""
        self._started = time.monotonic()

    def write(self, kind: str, **fields: object) -> None:
        """Record an event, and print its plain line if it has one. The fields are those of its
        record in lowcomm.reports.events."""
        text = story(self.record(kind, **fields), self.names)
        if text:
            self.say(text)

    def note(self, topic: str, text: str) -> None:
        """Record and print a text for which there is no other kind of event."""
        self.write("note", topic=topic, text=text)

    def record(self, kind: str, **fields: object) -> Event:
        """Record an event without printing it: the caller tells people in another way."""
        event = {"t": time.time(), "peer": self._peer, "name": self._name, "kind": kind, **fields}
        line = (json.dumps(event) + "\n").encode()
        try:
            record = decode(line)
        except EventError as error:
            raise AssertionError(f"this daemon wrote a malformed {kind} event: {error}") from error
        assert record is not None, f"unknown kind of event: {kind}"
        self._append(line)
        return record

    def _append(self, line: bytes) -> None:
        data = b"\n" + line if self._torn else line
        try:
            written = os.write(self._file, data)
        except OSError as error:
            written, why = 0, error.strerror or str(error)
        else:
            why = "the disk took only a part of a line"
        if written == len(data):
            if self._lost:
                self.say(f"{EVENTS} can be written again; {self._lost} events were not recorded")
            self._torn, self._lost = False, 0
            return
        self._torn = self._torn or written > 0
        self._lost += 1
        if self._lost == 1:
            self.say(f"cannot write {EVENTS} ({why}): the run goes on, but its events are lost")

    def say(self, text: str) -> None:
        """Print a plain line for people at the terminal."""
        elapsed_s = time.monotonic() - self._started
        line = f"[{elapsed_s:8.2f} {self._name}] {text}"
        with suppress(OSError):  # The terminal may be gone; the run goes on without it.
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        os.close(self._file)
