"""Reads the events of a run from the events.jsonl files of its nodes into typed records.

A line is read once its newline is written. A line that cannot be decoded is skipped and named in
`problems`. Control characters in text of peers are replaced here, so that no reader needs to handle
terminal escapes. Must NOT change the files, must NOT compute figures (lowcomm.reports.summary does)
and must NOT import torch.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

from lowcomm.reports.events import (
    KINDS,
    Attempt,
    Checkpoint,
    Commit,
    Diverged,
    Dropped,
    Elected,
    Evaluated,
    Event,
    Fault,
    Finished,
    Forked,
    GaveUp,
    Left,
    Listening,
    Lost,
    Member,
    MetricsListening,
    Note,
    RanksLost,
    RanksMoving,
    RanksReady,
    RanksStalled,
    Restored,
    SnapshotReceived,
    Start,
    Stopped,
    View,
    Waiting,
    Witness,
)

READ_BYTES_MAX = 8 << 20
"""Bytes that one call reads from one file at most, so that a live view does not freeze while it
reads a long history."""
PROBLEMS_MAX = 20
STORY_CHARS_MAX = 400
ROSTER_NAMES_MAX = 8
"""Names of a roster in one text; further peers are only counted."""

_ITEMS: Mapping[Any, type] = {tuple[kind, ...]: kind for kind in (str, int, float)}
"""The tuple types of fields of records, with the types of their items."""


class EventError(ValueError):
    """A line of an event file is not an event; the text says why."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """All events of a run, ordered by time, and the first lines that could not be decoded."""

    events: tuple[Event, ...]
    problems: tuple[str, ...] = ()


class Follower:
    """Reads a run directory repeatedly; each call returns the events since the last one.

    Nodes may appear at any time. `problems` names at most PROBLEMS_MAX lines that were skipped.
    """

    def __init__(self, run_dir: Path) -> None:
        self.problems: list[str] = []
        self._run_dir = run_dir
        self._read_so_far: dict[Path, tuple[int, int]] = {}  # (bytes, lines), complete lines only.

    def read(self) -> list[Event]:
        """Return the events since the last call, ordered by time. Raises OSError if a file cannot
        be read."""
        events: list[Event] = []
        # The launcher may write an event file of its own beside the directories of the nodes.
        own, nodes = self._run_dir.glob("events.jsonl"), self._run_dir.glob("*/events.jsonl")
        for path in [*own, *sorted(nodes)]:
            events += self._read_file(path)
        return sorted(events, key=lambda event: event.t)

    def read_all(self) -> list[Event]:
        """Call `read` until no file has more events; return all of them, ordered by time."""
        events, before = self.read(), dict[Path, tuple[int, int]]()
        while self._read_so_far != before:
            before = dict(self._read_so_far)
            events += self.read()
        return sorted(events, key=lambda event: event.t)

    def _read_file(self, path: Path) -> list[Event]:
        events: list[Event] = []
        offset, count = self._read_so_far.get(path, (0, 0))
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(READ_BYTES_MAX)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == READ_BYTES_MAX:
            whole = data  # No event is that long: skip it piece by piece.
        lines = whole.splitlines()
        for number, line in enumerate(lines, start=count + 1):
            try:
                event = decode(line) if line.strip() else None
            except EventError as error:
                if len(self.problems) < PROBLEMS_MAX:
                    where = printable(str(path.relative_to(self._run_dir)))
                    self.problems.append(f"{where}:{number}: {error}")
            else:
                events += [] if event is None else [event]
        self._read_so_far[path] = (offset + len(whole), count + len(lines))
        return events


def read_timeline(run_dir: Path) -> Timeline:
    """Read all events of a run directory. Raises OSError."""
    follower = Follower(run_dir)
    events = tuple(follower.read_all())
    return Timeline(events, tuple(follower.problems))


def decode(line: bytes) -> Event | None:
    """Decode one line to its record; None for an unknown kind (of a newer version). Unknown keys
    are ignored.

    Raises EventError if the line is not JSON, or a key is missing or has a value of another type.
    """
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EventError("not JSON") from error
    if not isinstance(raw, dict):
        raise EventError("not an object")
    table = cast(dict[str, Any], raw)
    kind = table.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        return None
    values: dict[str, Any] = {}
    for name, expected, needed in _fields(cls):
        if name not in table:
            if needed:
                raise EventError(f"{kind} without {name}")
            continue
        try:
            values[name] = _value(name, expected, table[name])
        except (TypeError, OverflowError):
            raise EventError(f"{kind}.{name} is not {expected}") from None
    return cls(**values)


def printable(text: str, *, keep: str = "") -> str:
    """Replace each control, format and surrogate character by a question mark, except those in
    `keep`."""
    return "".join(ch if ch.isprintable() or ch in keep else "?" for ch in text)


def peer_names(events: Iterable[Event]) -> dict[str, str]:
    """Return {peer id: name}. If several ids have one name, four digits of the id are appended to
    the name of each."""
    names: dict[str, str] = {}
    for event in events:
        if isinstance(event, Start):
            names[event.peer] = event.name
        elif isinstance(event, Member):
            names.setdefault(event.member, event.member_name)
    taken = list(names.values())
    return {
        peer: name if taken.count(name) == 1 else f"{name}.{peer.rpartition('.')[2][:4]}"
        for peer, name in names.items()
    }


def name_of(peer: str, names: Mapping[str, str]) -> str:
    """Return the peer's name; if it is unknown, the readable part of its id."""
    return names.get(peer) or peer.partition(".")[0] or "?"


def roster_text(roster: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the names as "alpha, beta", shortened to ROSTER_NAMES_MAX names."""
    shown = [name_of(peer, names) for peer in roster[:ROSTER_NAMES_MAX]]
    more = len(roster) - len(shown)
    return (", ".join(shown) + (f" and {more} more" if more else "")) or "no peers"


def story(event: Event, names: Mapping[str, str]) -> str | None:
    """Describe an event in one sentence for people; None if people do not need it during the run.

    Several peers write events about one thing (a commit, a loss); their sentences are equal.
    """
    text = _sentence(event, names)[:STORY_CHARS_MAX]
    for peer, name in names.items():
        text = text.replace(peer, name) if peer else text  # Daemons' reasons contain ids.
    return text or None


def _sentence(event: Event, names: Mapping[str, str]) -> str:
    name = name_of(event.peer, names)
    match event:
        case Listening():
            listens = (
                f"listens on {event.address}" if event.address else "dials, and does not listen"
            )
            return f"{name} {listens}"
        case MetricsListening():
            return f"{name} serves its metrics at http://{event.address}/metrics"
        case Waiting():
            return f"{name} waits: {event.reason}"
        case Member():
            return f"{name_of(event.member, names)} is a member"
        case Lost():
            return f"{name_of(event.member, names)} lost ({event.why})"
        case Left():
            return f"{name_of(event.member, names)} left ({event.why})"
        case Elected():
            return f"{event.leader_name} leads"
        case Restored():
            return f"rolled back to round {event.round}: no live node holds a newer state"
        case Forked(lonely=True):
            alone = f"goes on alone from round {event.round} on"
            return f"{event.voter_name} lost the other voter and {alone}"
        case Forked():
            return (
                f"forced recovery: {event.voter_name} is the only voter from round {event.round} on"
            )
        case Dropped():
            return f"the branch of {event.member_name} ({event.tokens} tokens) is given up"
        case GaveUp():
            return f"{name} joins again at {event.contact}: {event.why}; old files: {event.kept}"
        case Witness():
            return f"{name_of(event.member, names)} is a witness"
        case View():
            return f"roster from round {event.first_round} on: {roster_text(event.roster, names)}"
        case Attempt():
            roster = roster_text(event.roster, names)
            return f"{event.why}: round {event.round} goes on with {roster}"
        case Commit():
            roster = roster_text(event.roster, names)
            fragment = f" of fragment {event.fragment}" if event.fragment else ""
            return f"round {event.round}{fragment} committed by {roster} (step {event.inner_step})"
        case Fault():
            return f"fault at {name}: {event.what}" if name != "?" else f"fault: {event.what}"
        case RanksReady() | RanksLost() | RanksStalled() | RanksMoving():
            return _ranks_sentence(event, name)
        case SnapshotReceived():
            size = f"{sum(event.donor_bytes) / 2**20:.1f} MiB in {event.seconds:.1f} s"
            donors = ", ".join(name_of(donor, names) for donor in event.donors)
            return f"{name} received its state from {donors} ({size})"
        case Checkpoint():
            return f"{name} wrote its checkpoint of round {event.round}"
        case Evaluated():
            return f"{name} evaluated the model: loss {event.loss:.4f} over {event.windows} windows"
        case Finished():
            return f"{name} finished after {event.outer_steps} outer steps"
        case Stopped():
            return f"{name} stopped ({event.why})"
        case Diverged():
            member = name_of(event.member, names)
            return f"the state of {member} differs from the others' in round {event.round}"
        case Note():
            return f"{event.topic}: {event.text}"
        case _:
            return ""


def _ranks_sentence(event: RanksReady | RanksLost | RanksStalled | RanksMoving, name: str) -> str:
    match event:
        case RanksReady():
            return f"{name} trains" + (f" again (attempt {event.attempt})" * bool(event.attempt))
        case RanksLost():
            return f"the ranks of {name} are lost ({event.why})"
        case RanksStalled():
            return f"the ranks of {name} stall ({event.why})"
        case RanksMoving():
            return f"the ranks of {name} make steps again"


@cache
def _fields(cls: type[Event]) -> tuple[tuple[str, Any, bool], ...]:
    """Return (name, type, whether a line must have it) of each field."""
    hints = get_type_hints(cls)
    return tuple((each.name, hints[each.name], each.default is MISSING) for each in fields(cls))


def _value(name: str, expected: Any, raw: Any) -> Any:
    """Convert a JSON value to the field's type; the only coercion is int to float. Raises
    TypeError."""
    if expected is float and type(raw) in (int, float):
        if name != "loss" and not math.isfinite(raw):  # A loss may diverge.
            raise TypeError
        return float(raw)
    if expected is str and isinstance(raw, str):
        return printable(raw, keep="\n\t" if name == "sample" else "")
    if expected in _ITEMS and isinstance(raw, list):
        return tuple(_value(name, _ITEMS[expected], item) for item in cast(list[Any], raw))
    if type(raw) is not expected:
        raise TypeError
    return raw
